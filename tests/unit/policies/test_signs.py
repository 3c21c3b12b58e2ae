"""Costs by name, limits from below, rewards that are to be small: turned once."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import cbandit as cb

X = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
SET = cb.Finite(X)
LIMIT = 0.9  # of availability, which is to stay above
NAN = float("nan")


def rbf(mean=0.0):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return cb.GP(kernel, noise=0.01, mean=mean)


def classes(sign):
    values = torch.stack([0.2 * X[:, 0], 0.5 * X[:, 0], X[:, 0]])
    return cb.FiniteClass(sign * values, radius=4.0)


def model(botorch_model, policy):
    from botorch.acquisition import PosteriorMean
    from botorch.acquisition.objective import ScalarizedPosteriorTransform

    weights = torch.tensor([1.0] + [-0.5] * policy.m, dtype=torch.float64)
    transform = ScalarizedPosteriorTransform(weights)
    return PosteriorMean(botorch_model, posterior_transform=transform)


UCB, TS = {"explore": cb.UCB(2.0)}, {"explore": cb.TS(1.0)}
DUAL = {"step": 0.5, "cap": 5.0}
LINEAR = cb.Linear(0.1)

# the constructor, its own words for (sign of the reward, signs of the costs), what it
# is asked with, whether it takes beliefs about its costs
GPS = {
    "CKB": (cb.CKB, UCB | DUAL),
    "CKB-TS": (cb.CKB, TS | DUAL),
    "RPOL": (cb.RPOL, UCB),
    "RPOL-late": (cb.RPOL, UCB | {"feedback": cb.Delayed(3)}),
    "RPOL-window": (cb.RPOL, UCB | {"feedback": cb.Sliding(4)}),
    "RPOL-ahead": (cb.RPOL, UCB | {"pending": "hallucinate"}),
    "CONFIG": (cb.baselines.CONFIG, UCB),
    "BoTorch": (cb.baselines.BoTorchPolicy, {"make_acquisition": model}),
    "ADMMBO": (cb.baselines.ADMMBO, {}),
    "StageOpt": (cb.baselines.StageOpt, UCB | {"safe": 3, "rounds": 4}),
}


def pair(name, trials=None, mean=0.5):
    """One policy in the user's words, and one in the library's."""
    kind, own = GPS[name]
    costs = {"latency": rbf(), "availability": rbf(mean)}
    ours = kind(
        SET,
        reward=rbf(mean),
        costs=costs,
        thresholds={"availability": f">= {LIMIT}", "latency": " <=2.5e-1"},
        minimise=True,
        trials=trials,
        **own,
    )
    plain = kind(
        SET,
        reward=rbf(-mean),
        costs=[rbf(), rbf(-mean)],
        thresholds=[0.25, -LIMIT],
        trials=trials,
        **own,
    )
    return ours, plain


def world(x, t):
    """Expense, latency, availability, ``(*trials,)`` each, as users see them."""
    x = x[..., 0]
    return 2 + x.sin() + 0.1 * t, 0.4 * x, 1.2 - x + 0.01 * t


# ----------------------------------------------------- the same, turned, everywhere


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("name", GPS)
def test_a_policy_does_the_same_in_the_users_words(name, trials):
    ours, plain = pair(name, trials)
    data = X[[1, 6, 9]]
    expense, latency, available = world(data, 0)
    ours.observe(
        x=data,
        reward=expense,
        cost={"availability": available, "latency": latency},
    )
    both = torch.stack([latency, -available], -1)
    plain.observe(x=data, reward=-expense, cost=both)
    for t in range(1, 5):
        mine, its = ours.ask(), plain.ask()
        assert torch.equal(mine.x, its.x)
        expense, latency, available = world(mine.x, t)
        ours.tell(mine, reward=expense)
        plain.tell(its, reward=-expense)
        if t % 2:
            ours.tell(mine, cost={"latency": latency, "availability": available})
        else:
            ours.tell(mine, cost=torch.stack([latency, available], -1))
        plain.tell(its, cost=torch.stack([latency, -available], -1))
        assert torch.equal(ours.multiplier, plain.multiplier)
    seen, its = ours.posterior(), plain.posterior()
    assert torch.equal(seen.reward.mean, -its.reward.mean)
    assert torch.equal(seen.reward.std, its.reward.std)
    sign = torch.tensor([1.0, -1.0]).double().unsqueeze(-1)
    assert torch.equal(seen.costs.mean, sign * its.costs.mean)
    assert torch.equal(seen.costs.std, its.costs.std)
    found, its = ours.recommend(), plain.recommend()
    assert torch.equal(found.index, its.index)
    assert torch.equal(found.value, -its.value)
    assert torch.equal(found.margin, its.margin)
    assert "margin latency " in str(found)
    assert ", availability " in str(found)


def stagewise():
    counts = {"reward": cb.Counts(0.1, (0.0, 4.0)), "costs": {"up": cb.Counts(0.1)}}
    turned = {"reward": cb.Counts(0.1, (-4.0, 0.0)), "costs": cb.Counts(0.1)}
    safe = {"safe": cb.Safe(index=0, reward=2.0, cost={"up": 1.2}), "largest": 0.5}
    its = {"safe": cb.Safe(index=0, reward=-2.0, cost=-1.2), "largest": -0.5}
    yield "OPB", cb.OPB, counts | safe | {"horizon": 9}, turned | its | {"horizon": 9}
    gps = {"reward": rbf(), "costs": {"up": rbf()}} | safe
    yield "GP", cb.OPB, gps, {"reward": rbf(), "costs": rbf()} | its
    both = {"reward": LINEAR, "costs": LINEAR}
    named = {"reward": LINEAR, "costs": {"up": LINEAR}}
    middle, other = (cb.Safe(index=9, reward=0.0, cost=s * 1.2) for s in (1, -1))
    for kind in (cb.LCLUCB, cb.OPLB):
        yield kind.__name__, kind, named | {"safe": middle}, both | {"safe": other}
    named = {"reward": classes(1), "costs": {"up": classes(1)}}
    both = {"reward": classes(-1), "costs": classes(-1)}
    last = {"index": 11}
    yield (
        "OPNLB",
        cb.OPNLB,
        named | {"safe": cb.Safe(**last, reward=1.0, cost={"up": 1.0}), "largest": 0.0},
        both | {"safe": cb.Safe(**last, reward=-1.0, cost=-1.0), "largest": 0.0},
    )


@pytest.mark.parametrize(("name", "kind", "own", "its"), [*stagewise()])
def test_stagewise_policies_do_the_same_in_the_users_words(name, kind, own, its):
    ours = kind(SET, thresholds={"up": ">= 0.9"}, minimise=True, trials=2, **own)
    plain = kind(SET, thresholds=-0.9, trials=2, **its)
    ours.observe(index=[3, 4], reward=[2.0, 1.9], cost={"up": [1.0, 1.1]})
    plain.observe(index=[3, 4], reward=[-2.0, -1.9], cost=[-1.0, -1.1])
    for t in range(1, 4):
        mine, other = ours.ask(), plain.ask()
        assert torch.equal(mine.index, other.index)
        reward, _, up = world(mine.x, t)
        ours.tell(mine, reward=reward, cost={"up": up})
        plain.tell(other, reward=-reward, cost=-up)
    assert torch.equal(ours.posterior().reward.mean, -plain.posterior().reward.mean)
    assert torch.equal(ours.posterior().costs.mean, -plain.posterior().costs.mean)
    found, its = ours.recommend(), plain.recommend()
    assert torch.equal(found.value, -its.value)
    assert torch.equal(found.margin, its.margin)


@pytest.mark.parametrize("trials", [None, 2])
def test_costs_without_beliefs_have_names_too(trials):
    own = {"explore": cb.UCB(2.0), "trials": trials, "slater": 0.5, "clip": 1.0}
    ours = cb.SCGPUCB(
        SET,
        reward=rbf(),
        costs=["latency", "availability"],
        thresholds={"latency": 0.25, "availability": ">= 0.9"},
        **own,
    )
    plain = cb.SCGPUCB(SET, reward=rbf(), costs=2, thresholds=[0.25, -0.9], **own)
    _, latency, up = world(X, 0)
    lead = (trials,) if trials else ()
    for _ in range(4):
        shown = {"latency": latency.expand(*lead, 12), "availability": up}
        mine = ours.ask(observed_costs=shown)
        its = plain.ask(observed_costs=torch.stack([latency, -up]))
        assert torch.equal(mine.index, its.index)
        for each, choice in ((ours, mine), (plain, its)):
            each.tell(choice, reward=world(choice.x, 0)[0])
        assert torch.equal(ours.multiplier, plain.multiplier)
    box = cb.Box([0.0], [1.0])
    own = {"explore": cb.UCB(2.0), "slater": 0.5, "clip": 1.0, "reward": rbf()}
    turned = cb.SCGPUCB(box, costs=["up"], thresholds=">= 0.9", **own)
    other = cb.SCGPUCB(box, costs=1, thresholds=-0.9, **own)
    one = turned.ask(observed_costs=lambda x: (1.2 - x).mT)
    assert torch.equal(one.x, other.ask(observed_costs=lambda x: (x - 1.2).mT).x)


def test_epoch_penalties_wait_for_all_costs():
    own = {"reward": rbf(), "explore": cb.UCB(2.0), "epoch": 2}
    ours = cb.EpochPenalty(
        SET,
        costs=["latency", "up"],
        thresholds={"latency": 0.25, "up": ">= 0.9"},
        minimise=True,
        **own,
    )
    plain = cb.EpochPenalty(SET, costs=2, thresholds=[0.25, -0.9], **own)
    for t in range(1, 7):
        mine, its = ours.ask(), plain.ask()
        assert torch.equal(mine.index, its.index)
        reward, latency, up = world(mine.x, t)
        ours.tell(mine, cost={"up": up})
        assert torch.equal(ours.multiplier, plain.multiplier)
        ours.tell(mine, reward=reward)
        assert len(ours.outstanding) == 1
        ours.tell(mine, cost={"latency": latency})
        assert not ours.outstanding
        plain.tell(its, reward=-reward, cost=torch.stack([latency, -up]))
    assert torch.equal(ours.posterior().reward.mean, -plain.posterior().reward.mean)


def test_bandit_oco_in_the_users_words():
    box, own = cb.Box([0.0], [4.0]), {"radius": 0.3, "step": 0.1, "dual_step": 0.1}
    kind = cb.baselines.BanditOCO
    ours = kind(box, costs=["up"], thresholds=">= 1", minimise=True, **own)
    plain = kind(box, costs=1, thresholds=-1, **own)
    for _ in range(6):
        mine, its = ours.ask(), plain.ask()
        assert torch.equal(mine.x, its.x)
        ours.tell(mine, reward=mine.x[0], cost={"up": mine.x[0].cos()})
        plain.tell(its, reward=-mine.x[0], cost=-mine.x[0].cos())


# ----------------------------------------------------------- one by one, by name


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("name", [n for n in GPS if n not in ("BoTorch", "ADMMBO")])
def test_costs_one_by_one_say_what_all_at_once_do(name, trials):
    apart, whole = pair(name, trials)[0], pair(name, trials)[0]
    for t in range(1, 5):
        mine, its = apart.ask(), whole.ask()
        torch.testing.assert_close(mine.x, its.x)
        expense, latency, up = world(mine.x, t)
        apart.tell(mine, cost={"availability": up})
        apart.tell(mine, reward=expense)
        assert len(apart.outstanding) == 1
        apart.tell(mine, cost={"latency": latency})
        assert not apart.outstanding
        whole.tell(its, reward=expense, cost={"latency": latency, "availability": up})
        torch.testing.assert_close(apart.multiplier, whole.multiplier)
    for one, other in (
        (apart.posterior().reward, whole.posterior().reward),
        (apart.posterior().costs, whole.posterior().costs),
    ):
        torch.testing.assert_close(one.mean, other.mean, atol=1e-9, rtol=0)
        torch.testing.assert_close(one.std, other.std, atol=1e-9, rtol=0)


def test_belief_and_multiplier_take_each_cost_when_it_comes():
    ours = pair("RPOL")[0]
    choice = ours.ask()
    before = ours.posterior().costs.std[:, int(choice.index)].clone()
    ours.tell(choice, cost={"availability": 0.1})
    after = ours.posterior().costs.std[:, int(choice.index)]
    assert after[0] == before[0]
    assert after[1] < 0.2 * before[1]
    first = ours.multiplier.clone()
    assert first.tolist() == pytest.approx([1.0, 1.8])
    ours.tell(choice, cost={"latency": 3.0})
    assert ours.multiplier[0] == pytest.approx(3.75)  # its excess over 0.25


def test_trials_may_hear_of_costs_at_different_times(tmp_path):
    apart, whole = pair("RPOL", 2)[0], pair("RPOL", 2)[0]
    mine, its = apart.ask(), whole.ask()
    apart.tell(mine, reward=[1.0, 2.0])
    apart.tell(mine, cost={"latency": [0.3, 9.9]}, where=[True, False])
    apart.tell(mine, cost={"availability": [0.8, 0.7]})
    apart.save(tmp_path / "a.ckpt")
    apart = cb.load(tmp_path / "a.ckpt")
    assert len(apart.outstanding) == 1
    with pytest.raises(cb.ChoiceError, match="told its cost 'availability' already"):
        apart.tell(mine.id, cost={"availability": [0.0, 0.0]}, where=[False, True])
    with pytest.raises(cb.ChoiceError, match="told its cost already in some"):
        apart.tell(mine.id, cost=[[0.0, 0.0], [0.0, 0.0]], where=[False, True])
    apart.tell(mine.id, cost={"latency": [9.9, 0.4]}, where=[False, True])
    assert not apart.outstanding
    whole.tell(its, reward=[1.0, 2.0], cost=[[0.3, 0.8], [0.4, 0.7]])
    torch.testing.assert_close(apart.multiplier, whole.multiplier)
    torch.testing.assert_close(
        apart.posterior().costs.mean, whole.posterior().costs.mean, atol=1e-9, rtol=0
    )


def test_held_costs_are_saved_and_come_together(tmp_path):
    safe = cb.Safe(index=9, reward=0.0, cost=[0.0, 1.2])
    costs = {"latency": LINEAR, "up": LINEAR}
    own = {"safe": safe, "thresholds": {"latency": 0.25, "up": ">= 0.9"}, "trials": 2}
    apart, whole = (cb.LCLUCB(SET, reward=LINEAR, costs=costs, **own) for _ in "ab")
    mine, its = apart.ask(), whole.ask()
    apart.tell(mine, cost={"up": [1.0, 9.0]}, where=[True, False])
    apart.tell(mine, cost={"latency": [0.1, 0.2]})
    apart.save(tmp_path / "a.ckpt")
    apart = cb.load(tmp_path / "a.ckpt")
    apart.tell(mine.id, cost={"up": [9.0, 1.1]}, where=[False, True])
    apart.tell(mine.id, reward=[0.1, 0.2])
    whole.tell(its, reward=[0.1, 0.2], cost=[[0.1, 1.0], [0.2, 1.1]])
    assert not apart.outstanding
    torch.testing.assert_close(
        apart.posterior().costs.mean, whole.posterior().costs.mean
    )


# ------------------------------------------------------------------- simulations


class World:
    """Expense to be small, latency at most 0.25, availability at least 0.9."""

    trials, actions, minimise = None, SET, True

    def __init__(self, named=True):
        both = {"latency": "<= 0.25", "availability": ">= 0.9"}
        self.thresholds = both if named else [0.25, -0.9]
        self.named, self.minimise = named, named

    def reward(self, x, t):
        return world(x, 0)[0] * (1 if self.named else -1)

    def costs(self, x, t):
        _, latency, up = world(x, 0)
        return torch.stack([latency, up if self.named else -up], -1)

    def observe(self, choice, generator):
        noise = 0.1 * generator.normal(3)
        if not self.named:
            noise = noise * torch.tensor([-1.0, 1.0, -1.0])
        reward, costs = self.reward(choice.x, 1), self.costs(choice.x, 1)
        return reward + noise[..., 0], costs + noise[..., 1:]

    def optimum(self, t):
        return float(self.reward(torch.zeros(1), t))

    stochastic_optimum = optimum


@pytest.mark.parametrize("trials", [None, 2])
def test_a_run_in_the_users_words_has_the_same_account(trials, tmp_path):
    ours, plain = pair("RPOL", trials)
    run = cb.simulate(ours, World(), 6, progress=False)
    other = cb.simulate(plain, World(named=False), 6, progress=False)
    run.save(tmp_path)
    for each in (run, cb.Run.load(tmp_path)):
        assert torch.equal(each.actions, other.actions)
        for name in (
            *("regret", "stochastic_regret", "soft_violation", "hard_violation"),
            *("rounds_in_violation", "realised_regret", "realised_violation"),
            *("policy_regret", "true_costs", "multipliers"),
        ):
            assert torch.equal(getattr(each, name), getattr(other, name)), name
        assert torch.equal(each.rewards, -other.rewards)
        assert torch.equal(each.costs[..., 1], -other.costs[..., 1])
        assert float(each.thresholds.flatten()[1]) == 0.9
        frame = each.frame()
        assert (frame["availability"] > 0).all()
        assert np.array_equal(frame["latency"], each.costs[..., 0].flatten())
        wanted = torch.stack(world(each.actions, 0)[1:], -1)[..., 1].flatten()
        assert frame["true_availability"].tolist() == pytest.approx(wanted.tolist())
        assert (frame["threshold_availability"] == 0.9).all()
        for name in ("true_latency", "true_availability", "multiplier_availability"):
            assert name in frame


def test_policy_and_problem_must_state_things_alike():
    plain = pair("RPOL")[1]
    with pytest.raises(cb.CBanditError, match="minimise, latency <=, availability >="):
        cb.simulate(plain, World(), 2, progress=False)


# ----------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"thresholds": {"latency": "<= 1"}}, r"thresholds by name.*misses \['up'\]"),
        (
            {"thresholds": {"latency": 1, "up": 1, "price": 1}},
            "no cost is called 'price'",
        ),
        (
            {"thresholds": {"latency": "< 20", "up": 1}},
            r"thresholds\['latency'\] must be a number, '<= NUMBER' or .*got '< 20'",
        ),
        ({"thresholds": {"latency": "<= 20 ms", "up": 1}}, "got '<= 20 ms'"),
        ({"thresholds": {"latency": "<= nan", "up": 1}}, "got '<= nan'"),
        ({"thresholds": {"latency": "<= 1e999", "up": 1}}, "got '<= 1e999'"),
        ({"thresholds": {"latency": [1, 2], "up": 1}}, "must be a number"),
        ({"thresholds": ["<= 1"]}, "thresholds must be 2, one a cost; got 1"),
        ({"minimise": "yes"}, "minimise must be True or False; got 'yes'"),
        ({"costs": {"latency": rbf(), 3: rbf()}}, "costs must be named by strings"),
        ({"costs": {}}, "costs must be named by strings"),
        (
            {"costs": [rbf(), rbf()], "thresholds": {"latency": 1}},
            "thresholds by name need costs by name",
        ),
        ({"costs": {"latency": 3}}, r"costs\['latency'\] must be a cb.GP; got int"),
    ],
)
def test_words_that_say_nothing(own, words):
    given = {"reward": rbf(), "costs": {"latency": rbf(), "up": rbf()}} | own
    with pytest.raises(cb.CBanditError, match=words):
        cb.RPOL(SET, explore=cb.UCB(1.0), **given)


PLAINLY = [
    "20 000",
    "1_000",
    "1'000",
    "2k",
    "10^3",
    "1/2",
    "0x10",
    "1.000.000",
    "1,2,3",
]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("=< 25", "the sign '=<' is written '<=': '<= 25'"),
        ("< 25", "the sign '<' is written '<=': '<= 25'"),
        ("\u2264 25", "the sign '\u2264' is written '<=': '<= 25'"),
        ("=> 0.9", "the sign '=>' is written '>=': '>= 0.9'"),
        ("\u2265 3 ms", "the sign '\u2265' is written '>=': '>= 3'"),
        ("== 25", "a limit has a side: '<= 25' or '>= 25'"),
        ("25", "say on which side: '<= 25' or '>= 25'"),
        ("25 ms", "say on which side: '<= 25' or '>= 25'"),
        *((f"<= {text}", "write the number plainly, as in Python") for text in PLAINLY),
        ("<= 25 ms", "leave 'ms' out: '<= 25', in the unit in which it is told"),
        (">= 90 percent", "write '>= 90%', which is a share of 1"),
        ("> 90%", "the sign '>' is written '>=': '>= 90%'"),
        ("90%", "say on which side: '<= 90%' or '>= 90%'"),
        ("<= 1,5 %", "numbers have a point and no comma: '<= 1.5%'"),
        (
            "<= 5% of all",
            "leave 'of all' out: '<= 5%', in the unit in which it is told",
        ),
        ("<= 25,0", "numbers have a point and no comma: '<= 25.0'"),
        ("<= 1,000", "no comma: '<= 1.000' or '<= 1000'"),
        ("<=", "the number is missing behind '<='"),
        ("<= -", "the number is missing behind '<='"),
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("25 <=", "the sign comes first"),
        ("at most 25", "'<= 20' for example"),
        ("<= inf", "it must be finite"),
        ("<= 1e400", "it must be finite"),
        ("<= nan", "it must be finite"),
    ],
)
def test_limits_in_words_say_what_is_wrong_with_them(text, advice):
    gp = cb.GP.default(cb.ProductGrid([torch.arange(3.0)]))
    with pytest.raises(cb.CBanditError) as error:
        cb.RPOL(
            cb.ProductGrid([torch.arange(3.0)]),
            reward=gp,
            costs={"latency": gp},
            thresholds={"latency": text},
        )
    said = str(error.value)
    assert said.startswith("thresholds['latency'] must be a number, '<= NUMBER' or")
    assert f"got {text!r}" in said
    assert advice in said


def test_a_limit_by_name_that_is_no_number_is_named():
    actions = cb.ProductGrid([torch.arange(3.0)])
    goal = {"reward": cb.GP.default(actions), "costs": {"a": cb.GP.default(actions)}}
    with pytest.raises(cb.CBanditError, match=r"thresholds\['a'\] must .*got NoneType"):
        cb.RPOL(actions, **goal, thresholds={"a": None})


def test_feedback_that_names_no_cost():
    ours, plain = pair("RPOL")
    choice, its = ours.ask(), plain.ask()
    for cost, words in (
        ({"price": 1.0}, "no cost is called 'price'"),
        ({}, "must hold at least one cost"),
        ({"latency": float("nan")}, r"cost\['latency'\] must be finite"),
        ({"latency": [1.0, 2.0]}, r"cost\['latency'\] must have shape"),
        ([1.0], "cost must have shape"),
    ):
        with pytest.raises(cb.CBanditError, match=words):
            ours.tell(choice, cost=cost)
    with pytest.raises(cb.CBanditError, match="the costs have no names"):
        plain.tell(its, cost={"latency": 1.0})
    ours.tell(choice, cost={"latency": 1.0})
    with pytest.raises(cb.ChoiceError, match="cost 'latency' already"):
        ours.tell(choice, cost={"latency": 2.0})
    with pytest.raises(cb.ChoiceError, match="told its cost already"):
        ours.tell(choice, cost=[1.0, 1.0])
    assert len(ours.outstanding) == 1
    with pytest.raises(cb.CBanditError, match=r"misses \['availability'\]"):
        ours.observe(index=[1], reward=[1.0], cost={"latency": [1.0]})


@pytest.mark.parametrize("costs", [1, 2, ["a"], ("a", "b"), True])
@pytest.mark.parametrize(
    "kind",
    [
        cb.CKB,
        cb.RPOL,
        cb.baselines.CONFIG,
        lambda *a, **own: cb.baselines.CKBRestart(*a, restart=9, **own),
        lambda *a, **own: cb.baselines.SGPUCB(
            *a, safe=cb.Safe(index=0), rounds=5, **own
        ),
    ],
)
def test_costs_without_beliefs_are_refused_where_they_would_not_count(kind, costs):
    with pytest.raises(cb.CBanditError, match=r"costs must be a cb.GP, a list"):
        kind(SET, reward=rbf(), costs=costs)


def two(**own):
    costs = {"a": rbf(), "b": rbf()}
    return cb.RPOL(SET, reward=rbf(), costs=costs, explore=cb.UCB(1.0), **own)


def one_cost(**own):
    return cb.RPOL(SET, reward=rbf(), costs=rbf(), explore=cb.UCB(1.0), **own)


def two_costs():
    return two(thresholds=0.5)


def binary(**own):
    costs = {"fails": cb.GP.default(SET, outcome="binary")}
    limits = {"fails": "<= 0.3"}
    return cb.RPOL(SET, reward=rbf(), costs=costs, thresholds=limits, **own)


SWAPPED = "in a pair successes come first, (1, 400)"
ROWS = "{name: [row[name] for row in rows] for name in rows[0]}"
GAPS = (
    "leave out the rows that have none. Rewards and costs of other rows go into calls"
)


@pytest.mark.parametrize(
    ("make", "call", "advice"),
    [
        (binary, {"tell": {"cost": {"fails": (400, 1)}}}, SWAPPED),
        (binary, {"tell": {"cost": (400, 1)}}, SWAPPED),
        (
            binary,
            {"index": [1], "reward": [0.0], "cost": {"fails": ([400], [1])}},
            SWAPPED,
        ),
        (
            two_costs,
            {"index": [1], "reward": [0.0], "cost": [{"a": 1.0, "b": 2.0}]},
            ROWS,
        ),
        (
            two_costs,
            {"tell": {"cost": [{"a": 1.0, "b": 2.0}]}},
            "cost={'latency': 3.1,",
        ),
        (
            two_costs,
            {"index": [1, 2], "reward": [0.0, NAN], "cost": [[0.0, 0.0]] * 2},
            f"reward must be finite; got nan: {GAPS}",
        ),
        (
            two_costs,
            {"index": [1, 2], "reward": [0.0, 0.0], "cost": [[0.0, 0.0], [NAN, 0.0]]},
            f"cost must be finite; got nan: {GAPS}",
        ),
        (one_cost, {"tell": {"cost": [1.0, 2.0]}}, "build it with costs=[gp] * 2, or"),
        (
            two_costs,
            {"tell": {"cost": {"a": [1.0, 2.0]}}},
            "2 choices are told one by one",
        ),
    ],
)
def test_feedback_in_the_wrong_form_says_what_to_write(make, call, advice):
    policy, twin = make(), make()
    for each in (policy, twin):
        choice = each.ask()
    with pytest.raises(cb.CBanditError) as error:
        if "tell" in call:
            policy.tell(policy.outstanding[0], reward=1.0, **call["tell"])
        else:
            policy.observe(**call)
    assert advice in str(error.value)
    assert len(policy.outstanding) == 1
    for each in (policy, twin):
        cost = 1.0 if each.m == 1 else [1.0, 2.0]
        each.tell(each.outstanding[0], reward=1.0, cost=cost)
        choice = each.ask()
    assert torch.equal(policy.outstanding[0].x, choice.x)
    assert torch.equal(policy.multiplier, twin.multiplier)
    mine, its = policy.posterior(), twin.posterior()
    assert torch.equal(mine.reward.mean, its.reward.mean)
    assert torch.equal(mine.costs.mean, its.costs.mean)
    assert torch.equal(mine.costs.std, its.costs.std)


@pytest.mark.parametrize(
    ("make", "own", "advice"),
    [
        (one_cost, {"share": 90}, "got 90: 90 % is share=0.9"),
        (
            binary,
            {"restart": "adaptive", "forget": True},
            "without feedback=, share=, outcome= and shared studies; restart= a number",
        ),
    ],
)
def test_keywords_that_do_not_go_say_what_to_write(make, own, advice):
    with pytest.raises(cb.CBanditError) as error:
        make(**own)
    assert advice in str(error.value)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a": [0.1, 0.2], "b": [5.0, 6.0]}, [[0.1, 5.0], [0.2, 6.0]]),
        ({"b": torch.tensor([5.0, 6.0]), "a": 0.5}, [[0.5, 5.0], [0.5, 6.0]]),
        ({"a": np.float64(0.5), "b": 3}, [[0.5, 3.0], [0.5, 3.0]]),
    ],
)
def test_limits_by_name_may_differ_by_trial(limits, expected):
    policy = two(trials=2, thresholds=limits)
    assert policy.thresholds.tolist() == expected


def test_limits_by_name_may_change_with_the_round():
    policy = two(thresholds=lambda t: {"b": 2.0 * t, "a": 1.0})
    for t in (1, 2):
        choice = policy.ask()
        policy.tell(choice, reward=0.0, cost={"a": 1.5, "b": 2.0 * t - 1})
    policy.ask()
    assert policy.multiplier.tolist() == pytest.approx([2.0, 3**0.5])  # the floor
    with pytest.raises(cb.CBanditError, match=r"'a'.*callable.*lambda t"):
        two(thresholds={"a": lambda t: 1.0, "b": 2.0})


def test_botorch_models_speak_the_users_words():
    costs = {"delay": rbf(), "uptime": rbf()}
    limits = {"delay": "<= 1", "uptime": ">= 0.5"}
    own = {"thresholds": limits, "minimise": True, "explore": cb.UCB(1.0)}
    policy = cb.RPOL(SET, reward=rbf(mean=0.5), costs=costs, **own)
    for _ in range(5):
        policy.tell(policy.ask(), reward=2.0, cost={"delay": 0.5, "uptime": 0.9})
    seen, model = policy.posterior(), policy.model.posterior(X.unsqueeze(1))
    mean = torch.cat([seen.reward.mean.unsqueeze(0), seen.costs.mean])
    std = torch.cat([seen.reward.std.unsqueeze(0), seen.costs.std])
    assert (model.mean[:, 0].mT - mean).abs().max() <= 1e-9
    assert (model.variance[:, 0].mT.sqrt() - std).abs().max() <= 1e-7
    assert mean[0].max() > 1.5  # and not turned


@pytest.mark.parametrize("trials", [None, 1, 2])
def test_one_number_in_an_array_is_a_cost_by_name_too(trials):
    n = trials or 1
    column = np.full((n, 1), 3.0) if trials else np.array([3.0])
    plain = two(trials=trials, thresholds=0.5)
    by_name = two(trials=trials, thresholds=0.5)
    reward = np.zeros(n) if trials else 0.0
    for _ in range(3):
        whole = np.full((n, 2), 3.0) if trials else [3.0, 3.0]
        plain.tell(plain.ask(), reward=reward, cost=whole)
        by_name.tell(by_name.ask(), reward=reward, cost={"a": column, "b": column})
    assert torch.equal(plain.posterior().costs.mean, by_name.posterior().costs.mean)
    assert torch.equal(plain.multiplier, by_name.multiplier)


def test_a_cost_that_has_come_is_no_longer_counted_as_outstanding():
    policy = two(thresholds=0.01)
    policy.tell(policy.ask(), reward=0.0, cost={"a": 0.0})  # b is still to come
    choice = policy.ask()
    taken = policy.explain(choice).taken
    std = policy.posterior().costs.std[:, int(choice.index)]
    assert taken[1].item() == pytest.approx(-std[0].item(), abs=1e-12)
    assert taken[2].item() > -std[1].item() + 1e-6  # b is, in the score alone


def test_the_multipliers_width_counts_outstanding_choices_as_the_scores_does():
    def moved(dual_beta):
        policy = cb.CKB(
            cb.Finite([[0.5]]),
            reward=rbf(),
            costs=rbf(),
            thresholds=-3.0,
            explore=cb.UCB(1.0),
            step=1.0,
            cap=50.0,
            dual_beta=dual_beta,
            pending="hallucinate",
        )
        for _ in range(3):
            policy.ask()
        return policy.multiplier.item()

    assert moved(1.0) == pytest.approx(moved(None), abs=1e-10)
