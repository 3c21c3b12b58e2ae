"""Requests to language models, with the router of their data; pictures of digits."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from inside import PRICES, ParetoRouter, pictures, requests

import cbandit as cb
from cbandit.problems import Contexts, digits, routing


def test_rows_that_come_first_are_shuffled_by_themselves():
    z = torch.arange(12.0).double().unsqueeze(-1)
    problem = Contexts(z, torch.zeros(12, 2), torch.zeros(12, 1, 2), first=5)
    gp = cb.GP.linear(problem.actions)
    policy = cb.CKB(problem.actions, reward=gp, costs=gp, trials=3)
    run = cb.simulate(policy, problem, 24, progress=False)
    rows = problem.actions.split(run.actions)[1][..., 0]
    for one in (rows[:, :12], rows[:, 12:]):
        assert torch.equal(one[:, :5].sort().values, z[:5, 0].expand(3, -1))
        assert torch.equal(one[:, 5:].sort().values, z[5:, 0].expand(3, -1))
    assert not torch.equal(rows[0], rows[1])
    with pytest.raises(
        cb.CBanditError, match="first must be an int from 0 to 12; got 13"
    ):
        Contexts(z, torch.zeros(12, 2), torch.zeros(12, 1, 2), first=13)


def test_without_the_package_an_error_says_what_to_install(monkeypatch):
    requests.cache_clear()
    monkeypatch.setitem(sys.modules, "pareto_bandit", None)
    monkeypatch.setitem(sys.modules, "pareto_bandit.data", None)
    with pytest.raises(cb.CBanditError, match="pip install 'cbandit"):
        routing()
    with pytest.raises(cb.CBanditError, match="pip install 'cbandit"):
        _router(trials=None)


def _router(trials):
    space = cb.Space(model=cb.Category("a", "b", "c"), prompt=cb.Context(25))
    return ParetoRouter(space, prices=PRICES, thresholds=6e-4, trials=trials)


def test_the_requests_are_those_of_the_package():
    pytest.importorskip("pareto_bandit")
    known = requests()
    assert known.prompts.shape == (1785 + 1824, 25)
    assert known.first == 1785
    # the cheapest model first; means as the package's demonstration states them
    assert torch.allclose(
        known.usd.mean(0), torch.tensor([2.9e-5, 5.15e-4, 1.51e-2]).double(), rtol=0.02
    )
    assert known.models[0].startswith("llama")
    learned = known.prompts[:1785]
    assert torch.allclose(learned.mean(0), torch.zeros(25).double(), atol=1e-9)
    assert torch.allclose(learned.std(0, unbiased=False), torch.ones(25).double())
    assert 0 <= float(known.rewards.min()) <= float(known.rewards.max()) <= 1


def test_the_router_chooses_what_its_package_chooses():
    """Against ``route`` and ``process_feedback`` themselves, and after a copy."""
    package = pytest.importorskip("pareto_bandit")
    from pareto_bandit.budget_pacer import BudgetPacer
    from pareto_bandit.feature_service import FeatureService
    from pareto_bandit.storage import EphemeralContextStore

    known = requests()
    problem = routing(6e-4)
    theirs = [
        package.BanditRouter.create(
            model_registry={str(k): dict(price) for k, price in enumerate(PRICES)},
            feature_service=FeatureService.for_precomputed(26),
            context_store=EphemeralContextStore(),
            priors="none",
            alpha=0.05,
            forgetting_factor=0.997,
            cost_penalty=0.0,
            budget_pacer=BudgetPacer(6e-4),
            bandit_seed=seed,
        )
        for seed in range(2)
    ]
    policy = _router(trials=2)
    taken = set()
    for row in range(150):
        if row == 100:
            policy = policy.__copy__()  # rebuilt by what it was asked and told
        choice = policy.ask(context={"prompt": known.prompts[row]})
        index = choice.index
        reward, usd = known.rewards[row, index], known.usd[row, index]
        policy.tell(choice, reward=reward, cost=usd)
        x = np.append(known.prompts[row].numpy(), 1.0)
        for i, router in enumerate(theirs):
            name, log = router.route(x)
            assert int(name) == int(index[i])
            log.cost_usd = float(usd[i])
            router.process_feedback(log.request_id, reward=float(reward[i]))
            taken.add(name)
    assert taken == {"0", "1", "2"}
    assert problem.actions.size == 3


def test_the_pictures_are_those_of_scikit_learn():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    played = torch.as_tensor(data.images[898:])
    guess, right, costs = pictures()
    whole = (played > 0).sum((1, 2)).double()
    small = played.view(-1, 4, 2, 4, 2).sum((2, 4)).gt(0).sum((1, 2)).double()
    sent = torch.stack([0 * whole, small, whole, whole], -1)
    products = sent * torch.tensor([0.0, 10.0, 10.0, 898.0])
    assert torch.equal(costs, torch.stack([sent, products], 1))
    assert torch.allclose(guess.sum(-1), torch.ones(899).double())
    digit = torch.as_tensor(data.target[898:])
    device, *others = right.mean(0).tolist()  # sharper eyes read better
    assert device == float((guess.argmax(-1) == digit).double().mean())
    assert device < others[0] < others[1] < others[2]
    problem = digits(sent=15.0)
    assert problem.thresholds == {"sent": 15.0, "operations": 1e4}
    assert problem.fixed.reward < problem.linear.reward < problem.each_row.reward
    limits = torch.tensor([15.0, 1e4]).double()
    assert bool((problem.linear.costs <= limits * (1 + 1e-9)).all())
