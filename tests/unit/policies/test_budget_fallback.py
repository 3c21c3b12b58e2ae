"""A budget that is spent: free choices by name, and what its error says."""

from __future__ import annotations

import pytest
import torch

import cbandit as cb

MODELS = cb.Category("small", "large", "huge")
PRICE = {"small": 0.0, "large": 1.0, "huge": 3.0}


def played(space, budget, rounds, trials=None, context=None, noise=0.01, **more):
    """A policy that spends a budget in a few rounds, and its choices."""
    gp = cb.GP(cb.GP.default(space).kernel, noise=noise)
    goal = {"reward": gp, "costs": {"usd": gp}, "thresholds": {"usd": budget}}
    policy = cb.RPOL(space, **goal, trials=trials, **more)
    return policy, [tell(policy, context) for _ in range(rounds)]


def tell(policy, context=None, **asked):
    if context is not None:
        asked["context"] = context
    choice = policy.ask(**asked)
    rows = choice.params if policy.trials else [choice.params]
    price = torch.tensor([PRICE[row["model"]] for row in rows]).double()
    shape = policy.batch_shape
    policy.tell(choice, reward=price.reshape(shape), cost={"usd": price.reshape(shape)})
    return choice


def models(choices):
    rows = [c.params if isinstance(c.params, list) else [c.params] for c in choices]
    return [[row["model"] for row in each] for each in rows]


class TestFallback:
    @pytest.mark.parametrize("trials", [None, 2])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_it_is_played_when_nothing_else_fits(self, trials, dtype):
        """Of 4.2 a huge model leaves 1.2, and no other is known to cost less."""
        space, given = cb.Space(model=MODELS), {"dtype": dtype, "noise": 0.25}
        budget = cb.Budget(4.2, rounds=40, fallback={"model": "small"})
        policy, _ = played(space, budget, 0, trials, **given)
        plain, _ = played(space, cb.Budget(4.2, rounds=40), 0, trials, **given)
        for each in (policy, plain):
            tell(each, among={"model": "huge"})
        with pytest.raises(
            cb.BudgetError, match="nothing fits what is left of the budget"
        ):
            tell(plain)
        choices = [tell(policy) for _ in range(39)]
        assert {m for row in models(choices) for m in row} == {"small"}
        torch.testing.assert_close(
            policy.budget["usd"].left.double().mean(), torch.tensor(1.2).double()
        )
        assert not any(bool(c.infeasible.any()) for c in choices)
        assert all(c.idle is None for c in choices)

    def test_in_contexts(self):
        space = cb.Space(model=MODELS, prompt=cb.Context(2))
        budget = cb.Budget(6.0, rounds=40, fallback={"model": ["small"]})
        context = {"prompt": [0.3, -1.0]}
        policy, choices = played(space, budget, 40, context=context)
        assert models(choices)[-1] == ["small"]
        assert policy.budget["usd"].left >= 0
        grid = cb.Space(model=MODELS, load=cb.Context(cb.Category("low", "high")))
        _, choices = played(grid, budget, 40, context={"load": "high"})
        assert models(choices)[-1] == ["small"]

    def test_it_promises_nothing_from_the_first_round_on(self):
        budget = cb.Budget(6.0, rounds=40, fallback={"model": "small"})
        policy, _ = played(cb.Space(model=MODELS), budget, 3)
        before = policy.budget["usd"].promised
        choice = policy.ask(among={"model": "small"})
        assert policy.budget["usd"].promised == before
        policy.tell(choice, reward=0.0, cost={"usd": 0.5})  # it was not free after all
        assert policy.budget["usd"].promised == before
        policy.ask(among={"model": "large"})
        assert policy.budget["usd"].promised > before

    def test_one_budget_of_two_is_spared(self):
        space = cb.Space(model=MODELS)
        gp = cb.GP(cb.GP.default(space).kernel, noise=0.01)
        free = cb.Budget(6.0, rounds=99, fallback={"model": "small"})
        policy = cb.RPOL(
            space,
            reward=gp,
            costs={"usd": gp, "wh": gp},
            thresholds={"usd": free, "wh": cb.Budget(20.0, rounds=99)},
        )
        played = []

        def spend():
            for _ in range(99):
                choice = policy.ask()
                played.append(choice.params["model"])
                price = PRICE[played[-1]]
                policy.tell(choice, reward=price, cost={"usd": price, "wh": 1.0})

        with pytest.raises(cb.BudgetError, match="'wh'"):
            spend()
        assert 15 <= len(played) <= 20

    def test_by_number_on_plain_sets(self):
        actions = cb.Finite(torch.linspace(0, 1, 3).double().unsqueeze(-1))
        gp = cb.GP(cb.GP.default(actions).kernel, noise=0.01)
        budget = cb.Budget(2.0, rounds=30, fallback=[0])
        policy = cb.RPOL(actions, reward=gp, costs=gp, thresholds=budget)
        for _ in range(30):
            choice = policy.ask()
            policy.tell(choice, reward=float(choice.x), cost=float(choice.x))
        assert choice.index == 0

    def test_it_is_saved_and_set_later(self, tmp_path):
        space = cb.Space(model=MODELS)
        policy, _ = played(space, cb.Budget(6.0, rounds=40), 3)
        policy.limit("usd", cb.Budget(2.0, rounds=20, fallback={"model": "small"}))
        policy.save(tmp_path / "a")
        policy = cb.load(tmp_path / "a")
        policy.add("model", "tiny")  # the set grows, and the names stay
        choices = [policy.ask() for _ in range(20)]
        assert choices[-1].params["model"] == "small"

    def test_what_is_no_choice_is_an_error(self):
        space = cb.Space(model=MODELS)
        for fallback, words in [
            (
                {"model": "none"},
                "fallback of the budget 'usd': among: model must be of",
            ),
            ({"size": 1}, "there is no parameter 'size'"),
            ([7], "fallback of the budget 'usd': among"),
        ]:
            with pytest.raises(cb.CBanditError, match=words):
                played(space, cb.Budget(6.0, rounds=9, fallback=fallback), 0)
        box = cb.Space(model=MODELS, share=cb.Float(0, 1))
        budget = cb.Budget(6.0, rounds=9, fallback={"model": "small"})
        with pytest.raises(cb.CBanditError, match="among picks from numbered actions"):
            played(box, budget, 0)


class TestError:
    def test_it_names_what_fits_outside_of_among(self):
        budget = cb.Budget(6.0, rounds=60)
        policy, _ = played(cb.Space(model=MODELS), budget, 6)
        among = {"model": ["huge"]}
        with pytest.raises(cb.BudgetError) as caught:
            for _ in range(5):
                tell(policy, among=among)
        error = caught.value
        assert {"model": "small"} in error.fits
        assert "the cheapest is {'model': 'huge'}" in str(error)
        assert "this round does not allow what fits, {'model': 'small'}" in str(error)
        left, t = policy.budget["usd"].left, policy.t
        choice = policy.ask(among={"model": [row["model"] for row in error.fits]})
        assert choice.params in error.fits
        assert (policy.budget["usd"].left <= left, policy.t) == (True, t + 1)

    def test_it_names_them_in_a_context(self):
        space = cb.Space(model=MODELS, load=cb.Context(cb.Category("low", "high")))
        policy, _ = played(space, cb.Budget(6.0, rounds=60), 6, context={"load": "low"})
        with pytest.raises(cb.BudgetError) as caught:
            for _ in range(5):
                tell(policy, {"load": "low"}, among={"model": ["huge"]})
        assert {"model": "small"} in caught.value.fits

    def test_where_nothing_fits_it_says_how_to_go_on(self):
        policy, _ = played(cb.Space(model=MODELS), cb.Budget(0.01, rounds=2), 0)
        with pytest.raises(cb.BudgetError, match=r"name it: cb\.Budget\(\.\.\., fall"):
            for _ in range(2):
                policy.ask(among={"model": ["large"]})
