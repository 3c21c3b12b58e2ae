"""The contract: names, signatures and shapes that other people's scripts rely on.

``SIGNATURES`` is the table of all names, written as one would write the call. To
promise another name, add a row; a policy also gets a row in ``POLICIES``.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import math
import re
import typing
from pathlib import Path

import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from every_policy import (
    BELIEF,
    BOTH,
    BOX,
    EVERY_POLICY,
    EVERYWHERE,
    POINTS,
    POLICIES,
    X,
    acquisition,
    public,
)
from inside import keywords, main, policies

import cbandit as cb

ANYHOW = inspect.Parameter.POSITIONAL_OR_KEYWORD
OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# A row is a parameter list. What stands before "*" may be passed by position, in this
# order, and the rest by name. A default given here is promised; where none is given,
# nothing is promised of it. A function may take more, as long as nobody has to give it.
SIGNATURES = {
    # action sets
    "Finite": "points, *, covariance=None",
    "ProductGrid": "axes",
    "Box": "lower, upper, choices=None, linear=None",
    "Star": "center, tips",
    "Space": "*, where=None",
    "Int": "lo, hi, log=False",
    "Float": "lo, hi, log=False, step=None",
    "Category": "",
    "Context": "shown",
    "Finite.points": "index",
    "ProductGrid.points": "index",
    "Star.points": "index",
    # beliefs
    "GP": "kernel=None, noise=None, mean=0.0, standardize=False, refit_every=None, "
    "noise_prior=None",
    "GP.default": "actions",
    "GP.of": "model",
    "data_of": "model",
    "Linear": "subgaussian, ridge, norm",
    "Counts": "subgaussian",
    # exploration and widths
    "UCB": "beta, cost_beta=None",
    "TS": "beta, cost_beta=None",
    "Rand": "beta, cost_beta=None, draw='normal'",
    "RKHS": "norm, subgaussian, delta=0.1, form",
    "Constant": "beta",
    # feedback
    "Delayed": "window",
    "Sliding": "window",
    # policies
    "Budget": "total, rounds",
    "CKB": "actions, *, reward, costs, explore=None, step=None, cap=None, slack=0.0, "
    "clip=None, horizon=None, slater=None, anytime=False, restart=None, "
    "forget=False, dual=None, dual_beta=None, price_window=500",
    "RPOL": "actions, *, reward, costs, explore=None, penalty='observation'",
    "SCGPUCB": "actions, *, reward, costs, explore=None, schedule=1, slater, clip=None",
    "EpochPenalty": "actions, *, reward, costs, explore=None, epoch, psi='exp', "
    "rate=None, inner='ucb', reuse=True",
    "GPUCB": "actions, *, reward, explore=None",
    "GPTS": "actions, *, reward, explore=None",
    "LCLUCB": "actions, *, reward, costs, safe, delta, alpha=None",
    "OPLB": "actions, *, reward, costs, safe, delta, alpha=None",
    "OPB": "actions",  # hands its keywords on to one of two; see POLICIES
    "OPNLB": "actions, *, reward, costs, safe, delta, alpha=None",
    "Safe": "index=None, x=None, reward=None, cost=None",
    "baselines.CONFIG": "actions, *, reward, costs, explore=None",
    "baselines.SafeOpt": "actions, *, reward, costs, explore=None, safe",
    "baselines.StageOpt": "actions, *, reward, costs, explore=None, safe, rounds",
    "baselines.SGPUCB": "actions, *, reward, costs, explore=None, safe, rounds",
    "baselines.Random": "actions, *, reward=None, costs=0",
    "baselines.SafeLTS": "actions, *, reward, costs, safe, delta, alpha=None",
    "baselines.ROFUL": "actions, *, reward, costs, safe, delta",
    "baselines.SCOLTS": "actions, *, reward, costs, safe, delta",
    "baselines.LoSBO": "actions, *, reward, costs, explore=None, safe, lipschitz, "
    "noise_bound",
    "baselines.ADMMBO": "actions, *, reward, costs",
    "baselines.BanditOCO": "actions, *, costs, radius, step, dual_step",
    "baselines.BKB": "actions, *, reward, costs=None, explore=None",
    "baselines.CKBRestart": "actions, *, reward, costs, explore=None, restart",
    "baselines.BoTorchPolicy": "actions, *, reward, costs=None, make_acquisition",
    # policies of the user's own
    "GPPolicy": "actions, *, reward, costs, explore=None, start=None, restart=None, "
    "forget=False, observed_costs=False, clip=None, engine='auto', feedback=None",
    "GPPolicy.score": "t, multiplier",
    "GPPolicy.acquire": "t, multiplier, estimates",
    "Estimates": "mean, std, f, g, unit, incumbent",
    "GPPolicy.move": "t, multiplier, estimate, arrived",
    "Policy.absorb": "state, news",
    "Policy.begin": "state",
    "Policy.limits": "t",
    # a round
    "Policy.ask": "*, n=None, among=None, actions=None, observed_costs=None, "
    "context=None, confidence=None",
    "Policy.tell": "choice, reward=None, cost=None, noise=None, where=None, "
    "failed=False",
    "Policy.cancel": "choice",
    "Policy.history": "",
    "Policy.explain": "choice",
    "Policy.save": "path",
    "load": "path, trust=()",
    "CKB.observe": "*, index=None, x=None, reward=None, cost=None, params=None",
    "CKB.posterior": "x=None, params=None, context=None, index=None, joint=False",
    "CKB.recommend": "confidence=0.95, context=None",
    "CKB.refit": "",
    "LCLUCB.observe": "*, index=None, x=None, reward=None, cost=None, params=None",
    "LCLUCB.posterior": "",
    "LCLUCB.recommend": "confidence=0.95",
    "Decision": "index, infeasible=None, distribution=None, x=None",
    "Distribution": "index, probability",
    "optuna.Sampler": "policy, limits=None, *, constraints_func=None",
    "search.best_policy": "u_r, u_c, tau",
    # the loop, the account, the world
    "simulate": "policy, problem, horizon, checkpoint=None, progress=True, "
    "callback=None, *, trust=()",
    "Run.summary": "",
    "Run.frame": "",
    "Run.plot": "",
    "Run.save": "directory",
    "Run.load": "directory",
    "compare": "runs",
    # logs, and what another policy would have done
    "Log": "actions, action, contexts, distribution, outcomes, limits, ranges, "
    "maximise=True",
    "Log.from_frame": "frame, *, action, propensity, reward, costs, contexts",
    "Log.save": "path",
    "Log.load": "path",
    "evaluate": "log, candidate, ranges=None, *, alpha=0.05",
    "gate": "log, candidates, limits, *, control, ranges=None, alpha=0.05",
    "Policy.certificate": "alpha=0.05, window=None, outstanding=None",
    "Policy.plot": "",
    "Round": "actions=None, among=None, observed_costs=None, delays=None, context=None",
    "problems.Contexts": "contexts, rewards, costs",
    "problems.Contexts.from_frame": "frame, contexts, maximise, limits, knobs=None",
    "problems.Table": "reward, costs, noise=0.0",
    "problems.Table.from_frame": "frame, maximise, limits, knobs=None, noise=None",
    "problems.from_botorch": "test_function, points=None",
    "problems.zhou_synthetic": "cost='half', trials=None, seed=0",
    "problems.zhou_light": "trials=None, seed=0",
    "problems.zhou_finance": "trials=None, seed=0",
    "problems.shi_small_feasible": "constraint='noiseless', trials=None, seed=0",
    "problems.shi_data_rate": "constraint='noiseless', trials=None, seed=0",
    "problems.shi_proposition_1": "constraint='noiseless', trials=None, seed=0",
    "problems.guo_classical": "trials=None, seed=0",
    "problems.guo_delayed": "trials=None, seed=0",
    "problems.guo_nonstationary": "trials=None, seed=0",
    "problems.pacchiano_cyclic": "d=10, tau=0.5, *, trials=None",
    "problems.pacchiano_sphere": "d=5, *, trials=None, seed=0",
    "problems.pacchiano_opb_random": "arms=10, tau=0.5, *, trials=None, seed=0",
    "problems.pacchiano_opb_four": "tau=0.8, *, trials=None",
    "problems.pacchiano_hard": "*, trials=None",
    "problems.pacchiano_hard_linear": "*, trials=None",
    "problems.cbo_gpu_allocation": "trials=None, seed=0",
    # BoTorch plug-ins
    "acquisition.PrimalDual": "model, beta, multiplier, cost_beta=None, "
    "thresholds=0.0, clip=None, *, units=None",
    "acquisition.RectifiedPenalty": "model, beta, multiplier, cost_beta=None, "
    "thresholds=0.0, *, units=None",
    "acquisition.OptimisticFeasible": "model, beta, cost_beta=None, thresholds=0.0, "
    "*, units=None",
    "acquisition.PathwisePrimalDual": "model, beta, multiplier, *, seed, units=None",
    # ranks that share an action set
    "distributed.shard": "group=None",
}

# errors, types to annotate with, and rooms, promised as names alone
NAMES = """
    Actions Choice Explore Marginal Policy Posterior Recommendation Run
    __version__
    BudgetError CBanditError CheckpointError ChoiceError HorizonError InfeasibleError
    LostRankError
    MissingDataError MissingExtraError
    account acquisition baselines confidence distributed evaluation multipliers plots
    problems receipt
    scores search
"""


def promised(row):
    """The parameters of a row; ``...`` stands for a default that is not promised."""
    parts = [part.strip() for part in row.split(",") if part]
    # Python wants a default after a default
    parts = [p if "=" in p or p == "*" else f"{p}=..." for p in parts]
    return inspect.signature(eval(f"lambda {', '.join(parts)}: None")).parameters


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    row = promised(SIGNATURES[name])
    taken = dict(inspect.signature(public(name)).parameters)
    taken.pop("self", None)
    by_position = [each.name for each in row.values() if each.kind == ANYHOW]
    assert list(taken)[: len(by_position)] == by_position
    assert all(taken[each].kind == ANYHOW for each in by_position)
    for each in row.values():
        assert each.name in taken
        if each.default is not ...:
            assert taken[each.name].default == each.default, each.name
    for each in taken.keys() - row.keys():
        optional = taken[each].default is not inspect.Parameter.empty
        assert optional or taken[each].kind in OPEN_ENDED, each


@pytest.mark.parametrize("name", NAMES.split())
def test_name(name):
    assert public(name) is not None
    assert name in cb.__all__


def test_all_public_names_are_promised():
    known = {name.split(".")[0] for name in SIGNATURES} | set(NAMES.split())
    new = set(cb.__all__) - known - {"FiniteClass"}  # OPNLB's belief
    new |= {f"baselines.{name}" for name in cb.baselines.__all__} - SIGNATURES.keys()
    assert not new, f"give {new} a row in SIGNATURES"


def test_public_names_are_what_type_checkers_are_told():
    """Each is in the stub, and lives where the stub says."""
    stub = ast.parse(Path(cb.__file__).with_suffix(".pyi").read_text())
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    names = {alias.name: line.module for line in lines for alias in line.names}
    assert sorted(names) == cb.__all__
    assert all(alias.asname == alias.name for line in lines for alias in line.names)
    for name, home in names.items():
        assert name in vars(importlib.import_module(home)) or home == "cbandit"


def test_public_policies_are_those_of_their_room():
    own = {
        name.partition(",")[0] for name in POLICIES if not name.startswith("baselines.")
    }
    assert set(policies.__all__) == own, "cbandit/policies/__init__.py"


def test_every_public_policy_is_tried():
    found = {
        name
        for name in SIGNATURES
        if isinstance(public(name), type) and issubclass(public(name), cb.Policy)
    }
    tried = {name.partition(",")[0] for name in POLICIES}
    # OPB is a function that makes one of two
    left = found - {"GPPolicy"} ^ tried - {"OPB"}
    assert not left, f"a row in POLICIES for each of SIGNATURES' policies: {left}"


def build(name, **common):
    actions, own, _ = POLICIES[name]
    return public(name)(actions, **(common | own))


@EVERY_POLICY
def test_shared_keywords_have_types_and_help(name):
    policy = type(build(name))
    taken = inspect.signature(policy).parameters
    group = taken["common"].annotation.removeprefix("Unpack[").removesuffix("]")
    typed = set(typing.get_type_hints(getattr(keywords, group)))
    assert not typed & taken.keys()
    assert typed <= set(policy.common) <= typed | taken.keys()


@EVERY_POLICY
def test_every_argument_is_noted_for_runs_that_are_resumed(name):
    policy = build(name)
    apart = {"self", "actions", "trials", "device", "dtype"}
    taken = inspect.signature(type(policy).__init__).parameters.values()
    wanted = {each.name for each in taken if each.kind not in OPEN_ENDED} - apart
    left = wanted - policy.settings.keys()
    assert not left, f"self.settings = stated(self, locals()), its first line: {left}"


def ask(policy):
    if isinstance(policy, cb.SCGPUCB):
        return policy.ask(observed_costs=torch.zeros(1, 5))
    return policy.ask()


@EVERY_POLICY
def test_policies_share_keywords_with_these_defaults(name):
    everything = EVERYWHERE | POLICIES[name][2]
    choice, other = ask(build(name, **everything)), ask(build(name))
    assert torch.equal(choice.x, other.x)
    with pytest.raises(TypeError, match="no_such_keyword"):
        build(name, no_such_keyword=1)


@EVERY_POLICY
@pytest.mark.parametrize("trials", [None, 2])
def test_rounds_of_every_policy(name, trials, tmp_path):
    policy = build(name, trials=trials)
    lead = () if trials is None else (trials,)
    m = policy.m
    assert policy.multiplier.shape in ((*lead, m), (*lead, 0))
    assert policy.price.shape == policy.multiplier.shape
    for t in (1, 2, 3):
        choice = ask(policy)
        assert choice.t == t
        assert isinstance(choice.id, str)
        assert choice.x.shape == (*lead, 1)
        assert choice.infeasible.shape == lead
        assert choice.infeasible.dtype == torch.bool
        if policy.actions.size == math.inf:
            assert choice.index is None
        else:
            assert choice.index.shape == lead
        if choice.distribution is not None:
            assert choice.distribution.index.shape[:-1] == lead
            assert choice.distribution.probability.shape[:-1] == lead
        cost = torch.zeros(*lead, m) if m else None
        policy.tell(choice, reward=torch.ones(lead), cost=cost)
    assert policy.outstanding == []
    policy.save(tmp_path / "state.ckpt")
    again = cb.load(tmp_path / "state.ckpt", trust=(acquisition,))
    assert torch.equal(ask(again).x, ask(policy).x)


@EVERY_POLICY
def test_policies_take_what_their_abilities_say(name):
    actions, own, _ = POLICIES[name]
    kind = type(build(name))
    abilities, refuses = kind.abilities, kind.abilities.refuses

    def takes(**keywords):
        try:
            public(name)(actions, **(own | keywords))
        except cb.CBanditError:
            return False
        return True

    assert takes(design=2) == ("design" not in refuses)
    if build(name).m:
        assert takes(thresholds=cb.Budget(5.0, rounds=5)) == abilities.budgets
    if "feedback" in kind.common:
        assert takes(feedback=cb.Sliding(5)) == ("Sliding" not in refuses)
    if build(name).m and "limit" in refuses:
        with pytest.raises(cb.CBanditError, match=re.escape(refuses["limit"])):
            build(name).limit("cost1", 5.0)
    elif build(name).m:
        build(name).limit("cost1", 5.0)


def test_a_class_that_states_nothing_has_what_it_defines():
    class Mean(cb.GPPolicy):
        def acquire(self, t, multiplier, estimates):
            return estimates.mean[:, 0]

    class Moving(cb.CKB):
        def move(self, t, phi, estimate, arrived):
            return phi

    class Again(Mean):
        def score(self, t, multiplier):
            return cb.scores.Reward()

    assert Mean.abilities.acquires and not Mean.abilities.moves
    assert Moving.abilities.told_costs and not cb.CKB.abilities.told_costs
    assert not Again.abilities.acquires


class Own(cb.GPPolicy):
    """Two methods are a policy."""

    def score(self, t, multiplier):
        if t % 2:
            return cb.scores.PrimalDual(multiplier)
        return lambda f, g: f - (multiplier.unsqueeze(-1) * g.square()).sum(1)

    def move(self, t, multiplier, estimate, arrived):
        assert estimate.shape == (len(multiplier), 1 + multiplier.shape[-1])
        assert all(each.shape == multiplier.shape for each in arrived)
        return (multiplier + estimate[:, 1:] / t).clamp_min(0)


@pytest.mark.parametrize("actions", [POINTS, BOX])
@pytest.mark.parametrize("trials", [None, 2])
def test_own_policy(actions, trials):
    gp = cb.GP.default(actions)
    own = {"reward": gp, "costs": [gp, gp], "explore": cb.UCB(2.0), "start": 0.0}
    policy = Own(actions, **own, trials=trials, thresholds=[0.2, 0.5])
    lead = () if trials is None else (trials,)
    for t in range(1, 5):
        choice = policy.ask()
        assert (choice.t, choice.x.shape) == (t, (*lead, 1))
        policy.tell(choice, choice.x[..., 0], torch.cat([choice.x, choice.x], -1))
    assert policy.multiplier.shape == (*lead, 2)


def test_randomised_policies_say_what_they_drew_from():
    for name in ("OPLB", "OPB", "OPB, GP form", "OPNLB"):
        assert isinstance(build(name).ask().distribution, cb.Distribution)
    assert build("CKB").ask().distribution is None


@pytest.mark.parametrize("trials", [None, 2])
def test_a_live_policy(trials):
    lead = () if trials is None else (trials,)
    policy = cb.RPOL(
        POINTS,
        reward=BELIEF,
        costs=[BELIEF, BELIEF],
        explore=cb.UCB(2.0),
        thresholds=[0.5, 2.0],
        trials=trials,
    )
    policy.observe(
        index=torch.tensor([0, 1]).expand(*lead, 2),
        reward=torch.zeros(*lead, 2),
        cost=torch.zeros(*lead, 2, 2),
    )
    first = policy.ask(among=[0, 1])
    second, third = policy.ask(), policy.ask()
    assert int(first.index.max()) <= 1
    assert [each.t for each in policy.outstanding] == [1, 2, 3]
    policy.tell(second, cost=torch.zeros(*lead, 2))
    policy.tell(first, reward=torch.ones(lead), cost=torch.zeros(*lead, 2))
    policy.tell(second.id, reward=torch.ones(lead), noise=0.1)
    policy.cancel(third)
    assert policy.outstanding == []
    if trials:
        late = policy.ask()
        some = torch.tensor([True, False])
        policy.tell(late, torch.ones(lead), torch.zeros(*lead, 2), where=some)
        policy.tell(late, torch.ones(lead), torch.zeros(*lead, 2), where=~some)
    assert policy.multiplier.shape == (*lead, 2)
    believed = policy.posterior()
    assert believed.reward.mean.shape == believed.reward.std.shape == (*lead, 5)
    assert believed.costs.mean.shape == believed.costs.std.shape == (*lead, 2, 5)
    policy.refit()
    best = policy.recommend(confidence=0.9)
    assert best.x.shape == (*lead, 1)
    for each in (best.index, best.value, best.probability, best.feasible):
        assert each.shape == lead
    assert best.margin.shape == (*lead, 2)
    assert "reward" in str(best)
    assert isinstance(policy.model, ModelListGP)
    assert all(isinstance(each, SingleTaskGP) for each in policy.model.models)


def test_epoch_penalties_believe_in_the_penalised_function():
    policy = build("EpochPenalty")
    policy.tell(policy.ask(), reward=1.0, cost=0.2)
    assert policy.posterior().costs is None


def test_numbers_of_all_kinds_are_taken():
    policy = build("RPOL")
    for reward, cost in [(1, 0), (torch.tensor(1.0), [0.0]), (X.numpy()[4, 0], X[0])]:
        policy.tell(policy.ask(), reward=reward, cost=cost)
    assert policy.t == 3


def test_the_policy_programme():
    found = cb.search.best_policy(
        torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0, 1.0, 2.0]]), [0.5]
    )
    assert isinstance(found, cb.Distribution)
    assert found.index.shape == found.probability.shape == (2,)


def test_widths_are_numbers_schedules_and_functions():
    for width in (2.0, cb.Constant(2.0), lambda t, gain: 2.0, cb.RKHS(1.0, 0.1)):
        policy = cb.GPUCB(POINTS, reward=BELIEF, explore=cb.UCB(width))
        assert policy.ask().t == 1
    for draw in ("normal", "uniform", "gaussian-grid"):
        assert cb.Rand(1.0, draw=draw).draw is not None


# ------------------------------------------------------------- the loop and its account


class World:
    """A problem with the members of the contract and no others."""

    actions, trials = POINTS, None

    def reward(self, x, t):
        return x[..., 0]

    def costs(self, x, t):
        return x - 0.5

    def observe(self, choice, generator):
        noise = 0.1 * torch.randn(1, generator=generator, dtype=torch.float64)
        x, t = choice.x, choice.t
        return self.reward(x, t) + noise[0], self.costs(x, t) + noise

    def optimum(self, t):
        return 0.5

    def stochastic_optimum(self, t):
        return 0.5

    def round(self, t, generator):
        return cb.Round(among=[0, 1, 2, 3, 4], delays=(1, 2))


CUMULATIVE = (
    "regret",
    "stochastic_regret",
    "soft_violation",
    "hard_violation",
    "rounds_in_violation",
)


def test_a_world_of_the_contract_alone_and_its_account(tmp_path):
    policy = cb.RPOL(POINTS, **BOTH)
    seen = []
    run = cb.simulate(
        policy,
        World(),
        horizon=6,
        checkpoint=tmp_path / "run.ckpt",
        progress=False,
        callback=lambda played: seen.append(played) or len(seen) == 5,
    )
    assert isinstance(run, cb.Run)
    for name in (*CUMULATIVE, "rewards"):
        assert getattr(run, name).shape == (5,), name
    assert run.actions.shape == (5, 1)
    assert run.costs.shape == run.multipliers.shape == run.prices.shape == (5, 1)
    assert len(run.seconds) == 5
    assert {*CUMULATIVE} <= run.summary().keys()
    assert run.summary()["regret"].keys() == {"mean", "sem"}
    assert len(run.frame()) == 5
    assert type(run.plot()).__name__ == "Figure"
    run.save(tmp_path / "run")
    assert torch.equal(cb.Run.load(tmp_path / "run").regret, run.regret)


def test_batched_accounts_lead_with_the_trials():
    problem = cb.problems.zhou_synthetic(trials=2)
    belief = cb.GP(problem.known.kernel, noise=problem.known.noise)
    own = {"explore": cb.UCB(2.0), "step": 0.1, "cap": 10.0, "trials": 2}
    policy = cb.CKB(problem.actions, reward=belief, costs=belief, **own)
    run = cb.simulate(policy, problem, horizon=3, progress=False)
    for name in CUMULATIVE:
        assert getattr(run, name).shape == (2, 3), name
    assert run.actions.shape == run.costs.shape == run.multipliers.shape == (2, 3, 1)


@pytest.mark.parametrize(
    "name",
    [each for each in cb.problems.__all__ if each.startswith(("shi_", "guo_", "pacc"))],
)
def test_problems_of_the_papers(name):
    problem = getattr(cb.problems, name)(trials=2)
    assert isinstance(problem, cb.problems.Problem)
    assert len(problem.trials) == 2
    size = problem.actions.size
    assert size == math.inf or size == int(size)
    for each in ("optimum", "stochastic_optimum"):
        found = torch.as_tensor(getattr(problem, each)(1))
        assert found.shape in ((), (2,))


# ------------------------------------------------------------------- the command line


REPEATED = (
    "--set --trials --horizon --policies --seed --device --dtype --out --resume "
    "--workers"
)
COMMANDS = {
    "list": "",
    "init": "--out",
    "reproduce": REPEATED,
    "run": REPEATED,
    "compare": "--by --latex",
    "plot": "",
    "info": "",
}
SHI = ("reuse=", "beta=", "noise=", "lengthscale=")
EXPERIMENTS = {
    "zhou-synthetic": ["cost=half | quarter | independent", "noise=", "bound=max |"],
    "zhou-light": ["noise=resampled | gaussian", "seeds="],
    "zhou-finance": ["lam=data | squared", "draw=normal |", "seeds="],
    "shi-small-feasible": ["constraint=noiseless | noisy", *SHI],
    "shi-data-rate": ["constraint=noiseless | noisy", *SHI],
    "shi-proposition-1": ["constraint=noiseless | noisy", *SHI],
    "guo-classical": ["beta=", "lam="],
    "guo-delayed": ["beta=", "lam=", "window=", "weight="],
    "guo-nonstationary": ["beta=", "lam=", "window=", "restart="],
    "pacchiano-cyclic": ["d=10 |", "tau=0.5 |", "noise="],
    "pacchiano-sphere": ["d=5 |", "noise=", "rays="],
    "pacchiano-opb-random": ["arms=10 |", "tau=0.5 |"],
    "pacchiano-opb-four": ["tau=0.8 |"],
    "pacchiano-hard": [],
    "pacchiano-hard-linear": [],
    "cbo-gpu-allocation": [],
    "routing": ["budget=", "beta=", "fade="],
    "digits": ["sent=", "operations="],
}


def said(capsys, *arguments):
    with contextlib.suppress(SystemExit):
        main([*arguments])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, capsys):
    shown = said(capsys, command, "--help").split()
    for option in COMMANDS[command].split():
        assert option in shown


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment(name, capsys):
    shown = said(capsys, "list", name)
    assert shown.startswith(f"{name}: ")
    for parameter in EXPERIMENTS[name]:
        assert f"--set {parameter}" in shown


def test_policies_in_results_have_the_names_of_the_papers(capsys):
    shown = [said(capsys, "list", name) for name in EXPERIMENTS]
    listed = [text.partition("--policies")[2].split()[0].split(",") for text in shown]
    named = {each for names in listed for each in names}
    assert named >= {
        *("CKB-UCB", "CKB-TS", "CKB-Rand", "StageOpt", "SGP-UCB", "CONFIG", "ADMMBO"),
        *("RPOL-UCB", "RPOL-CensoredUCB", "RPOL-SWUCB", "LC-LUCB", "Safe-LTS", "OPB"),
        "OCO",
    }


def test_what_an_experiment_writes(capsys, tmp_path):
    few = ["--trials", "2", "--horizon", "3", "--policies", "CKB-UCB"]
    said(capsys, "reproduce", "zhou-synthetic", *few, "--out", str(tmp_path))
    files = {path.name for path in tmp_path.iterdir()}
    assert files >= {"summary.json", "rounds.parquet", "means.parquet", "config.toml"}
    assert any(name.endswith(".png") for name in files)
    summary = json.loads((tmp_path / "summary.json").read_text())
    kinds = {
        "experiment": str,
        "horizon": int,
        "trials": int,
        "device": str,
        "dtype": str,
        "seed": int,
        "versions": dict,
        "policies": dict,
    }
    assert {key: type(summary[key]) for key in kinds} == kinds
    (account,) = summary["policies"].values()
    for name in CUMULATIVE:
        assert account[name].keys() == {"mean", "sem"}
    assert isinstance(account["seconds_per_round"], float)
    assert account["status"] == "complete"
