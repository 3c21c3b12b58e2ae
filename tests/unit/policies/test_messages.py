"""What users are told in words: limits, choices, explanations."""

from __future__ import annotations

import warnings

import pytest
import torch

import cbandit as cb

LIMITS = {"latency": "<= 20", "accuracy": ">= 0.9"}


def space():
    return cb.Space(memory=cb.Float(0.5, 8.0, step=0.5), threads=cb.Int(1, 8))


def tuned(**given):
    on = space()
    belief = cb.GP.default(on)
    goal = {"reward": belief, "costs": {"latency": belief, "accuracy": belief}}
    return cb.RPOL(on, **goal, **{"thresholds": LIMITS, **given})


def played(policy, rounds):
    for _ in range(rounds):
        choice = policy.ask()
        memory, threads = choice.params["memory"], choice.params["threads"]
        cost = {"latency": 5 + 3.0 * threads, "accuracy": 0.8 + memory / 40}
        policy.tell(choice, reward=300 - 10.0 * threads, cost=cost)
    return policy


# ------------------------------------------------------------------------------ limits


def test_named_costs_without_limits_are_warned_of():
    belief = cb.GP.default(space())
    costs = {"latency": belief, "accuracy": belief}
    with pytest.warns(
        UserWarning, match="costs latency, accuracy are limited at 0"
    ) as w:
        cb.RPOL(space(), reward=belief, costs=costs)
    assert w[0].filename == __file__  # the user's line, not the library's
    assert "thresholds={'latency': '<= 0', 'accuracy': '<= 0'}" in str(w[0].message)
    on = cb.Finite(torch.rand(5, 2).double())
    belief = cb.GP.default(on)
    with pytest.warns(UserWarning, match="costs a are limited at 0"):
        cb.CKB(on, reward=belief, costs={"a": belief})
    with pytest.warns(UserWarning, match="costs a are limited at 0"):
        cb.SCGPUCB(on, reward=belief, costs=["a"], slater=0.1, clip=(5.0, 2.0))


def test_limits_that_are_said_are_not_warned_of(tmp_path):
    on = cb.Finite(torch.rand(5, 2).double())
    belief = cb.GP.default(on)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cb.CKB(on, reward=belief, costs={"a": belief}, thresholds={"a": 0})
        cb.CKB(on, reward=belief, costs=belief)
        cb.CKB(on, reward=belief, costs=[belief], thresholds=0.0)
        cb.CKB(on, reward=belief, costs={"a": belief}, thresholds=0.0)
        policy = tuned()
        policy.save(tmp_path / "a.ckpt")
        cb.load(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "both", [[">= 0.2", "<= 0.8"], ">= 0.2, <= 0.8", "0.2<=x<=0.8"]
)
def test_two_limits_of_one_cost(both):
    with pytest.raises(cb.CBanditError, match="two limits is two costs") as error:
        tuned(thresholds={"latency": both, "accuracy": ">= 0.9"})
    assert "thresholds['latency']" in str(error.value)


def test_two_limits_as_two_costs():
    on = space()
    belief = cb.GP.default(on)
    sides = {"low": ">= 0.2", "high": "<= 0.8"}
    costs = dict.fromkeys(sides, belief)
    policy = cb.CKB(on, reward=belief, costs=costs, thresholds=sides)
    for share in (0.1, 0.5, 0.9):
        policy.tell(policy.ask(), reward=1.0, cost={"low": share, "high": share})
    told = policy.history()
    assert told["low"].tolist() == told["high"].tolist() == [0.1, 0.5, 0.9]


def test_a_table_whose_limits_nobody_keeps():
    with pytest.warns(UserWarning, match="none of the 2 actions keeps all limits") as w:
        problem = cb.problems.Table([0.0, 1.0], [[1.0, 2.0], [0.0, -1.0]])
    assert "cost1 0, cost2 2" in str(w[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once: simulate does not repeat it
        policy = cb.baselines.Random(problem.actions, costs=2)
        run = cb.simulate(policy, problem, 3)
    assert run.regret.isnan().all()


# ----------------------------------------------------------------------------- choices


def test_a_choice_prints_id_and_names():
    choice = tuned().ask()
    assert repr(choice) == (
        f"Choice({choice.id!r}, round 1, action {int(choice.index)}: {choice.params})"
    )


def test_a_choice_prints_numbers_where_there_are_no_names():
    box = cb.Box([0.0, 0.0], [1.0, 2.0])
    choice = cb.GPUCB(box, reward=cb.GP.default(box)).ask()
    point = ", ".join(f"{v:.4g}" for v in choice.x.tolist())
    assert repr(choice) == f"Choice({choice.id!r}, round 1: ({point}))"
    many = cb.baselines.Random(cb.Finite([[0.0], [1.0]]), trials=6).ask()
    assert ", round 1, 6 trials, actions " in repr(many)
    assert repr(many).endswith(", ...)")


# ------------------------------------------------------------------------ explanations


def test_an_explanation_says_its_units():
    policy = played(tuned(), 6)
    choice = policy.ask()
    why = policy.explain(choice)
    assert why.unit == "spreads"
    # by hand: what was told gives the units
    told = policy.history()
    shown = told[told["state"] == "told"]
    limits = {"latency": 20.0, "accuracy": 0.9}
    reward = shown["reward"].to_numpy()
    taken = why.estimate[0] * reward.std(ddof=1) + reward.mean()
    assert why.taken[0].item() == pytest.approx(taken.item(), rel=1e-9)
    for j, (name, limit) in enumerate(limits.items()):
        spread = shown[name].to_numpy().std(ddof=1)
        sign = 1 if name == "latency" else -1
        expected = limit + sign * why.estimate[1 + j].item() * spread
        assert why.taken[1 + j].item() == pytest.approx(expected, rel=1e-9)
        price = why.multiplier[j].item() * reward.std(ddof=1) / spread
        assert why.price[j].item() == pytest.approx(price, rel=1e-9)
    text = str(why)
    assert f"latency: believed {why.mean[1]:.4g} +- {why.std[1]:.3g}, taken for" in text
    assert f"multiplier {why.multiplier[0]:.4g} (in spreads)" in text
    assert f"price {why.price[0]:.4g} of reward for 1 of it" in text
    assert f"score {why.score:.6g} (in spreads)" in text
    assert text.count("(in spreads)") == 3  # two multipliers and a score


def test_an_old_explanation_says_its_units_too():
    policy = played(tuned(), 6)
    first = policy.ask()
    policy.ask()
    why = policy.explain(first)
    assert why.taken is None and why.price is None
    side = "over" if why.estimate[1] > 0 else "within"
    assert f"taken for {abs(why.estimate[1]):.4g} spreads {side} its limit" in str(why)


def test_beliefs_that_keep_the_users_units_name_no_other():
    on = cb.Finite(torch.linspace(0, 1, 5).double().unsqueeze(-1))
    import gpytorch

    belief = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.1)
    policy = cb.RPOL(on, reward=belief, costs=belief, thresholds=2.0)
    policy.tell(policy.ask(), reward=1.0, cost=3.0)
    why = policy.explain(policy.ask())
    assert why.unit == ""
    assert "spreads" not in str(why) and "price" not in str(why)
    assert why.taken[1].item() == pytest.approx(2.0 + why.estimate[1].item())
    assert torch.equal(why.price, why.multiplier)


# ------------------------------------------------------------- what Random recommends


def test_random_recommends_the_best_of_what_was_told():
    on = space()
    policy = cb.baselines.Random(on, costs=list(LIMITS), thresholds=LIMITS, seed=4)
    with pytest.raises(cb.CBanditError, match="nothing has been told"):
        policy.recommend()
    seen = {}
    for k in range(30):
        choice = policy.ask()
        memory, threads = choice.params["memory"], choice.params["threads"]
        if k % 5 == 0:
            policy.tell(choice, failed=True)
            continue
        reward = 10 * threads + memory + k % 3
        cost = {"latency": 3.0 * threads, "accuracy": 0.85 + memory / 40}
        policy.tell(choice, reward=reward, cost=cost)
        row = (reward, cost["latency"], cost["accuracy"])
        seen.setdefault((memory, threads), []).append(row)
    rows = {k: zip(*v, strict=True) for k, v in seen.items()}
    means = {k: [sum(c) / len(c) for c in v] for k, v in rows.items()}
    kept = {k: v for k, v in means.items() if v[1] <= 20 and v[2] >= 0.9}
    best = max(kept, key=lambda k: kept[k][0])
    found = policy.recommend()
    assert tuple(found.params.values()) == best
    assert found.value.item() == pytest.approx(kept[best][0])
    margin = [20 - kept[best][1], kept[best][2] - 0.9]
    assert found.margin.tolist() == pytest.approx(margin)
    assert bool(found.feasible) and bool(found.probability.isnan())
    assert "observed within its limits, margin latency" in str(found)


def test_random_recommends_the_least_excess_where_nothing_is_kept():
    on = cb.Finite([[0.0], [1.0], [2.0]])
    policy = cb.baselines.Random(on, costs=1, thresholds=0.5, trials=2)
    for _ in range(12):
        choice = policy.ask()
        x = choice.x[..., 0]
        policy.tell(choice, reward=x, cost=1 + x * torch.tensor([1.0, -0.1]))
    found = policy.recommend()
    assert found.index.tolist() == [0, 2]
    assert not found.feasible.any()
    assert "observed above its limits" in str(found)
