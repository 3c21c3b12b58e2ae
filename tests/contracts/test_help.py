"""What a user of an editor or of ``help`` is shown."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import pydoc
import typing

import pytest

import cbandit as cb

PUBLIC = [
    getattr(home, name)
    for home in (cb, cb.baselines)
    for name in home.__all__
    if name[0].isupper()
]
POLICIES = [
    each
    for each in PUBLIC
    if isinstance(each, type)
    and issubclass(each, cb.Policy)
    and each not in (cb.Policy, cb.GPPolicy)
]
EVERYWHERE = ("thresholds", "seed", "trials", "device", "dtype")
GP_ONLY = ("clip", "engine", "feedback", "pending")


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_help_on_a_policy_names_what_it_shares_with_others(policy):
    shown = inspect.getdoc(policy)
    keywords = set(EVERYWHERE)
    if "GPPolicy" in [base.__name__ for base in policy.__mro__]:
        keywords |= set(GP_ONLY)
    for name in keywords:
        # once, with a text of its own
        assert shown.count(f"\n    {name}: ") == 1, name
    assert "\n    kind: " not in shown


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_help_on_a_policy_tells_of_the_round(policy):
    assert inspect.getdoc(policy).count("\n    t: the round last asked for") == 1


def test_help_on_a_restarting_policy_names_what_it_hands_on():
    shown = inspect.getdoc(cb.baselines.CKBRestart)
    for name in ("restart", "step", "cap", "slater", "dual"):
        assert shown.count(f"\n    {name}: ") == 1, name


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("ask", ("among", "actions", "observed_costs")),
        ("tell", ("choice", "reward", "cost", "noise", "where")),
    ],
)
def test_help_on_ask_and_tell_names_their_arguments(policy, method, arguments):
    shown = pydoc.plain(pydoc.render_doc(getattr(policy, method)))
    for name in arguments:
        assert f"    {name}: " in shown, name


@pytest.mark.parametrize(
    "name",
    [
        "Policy",
        "Decision",
        "Recommendation",
        "Posterior",
        "Marginal",
        "Explore",
        "Actions",
        "Choice",
        "Distribution",
        "Run",
        "Round",
    ],
)
def test_types_to_annotate_with_are_public(name):
    assert name in cb.__all__
    assert name in dir(cb)
    assert getattr(cb, name) is not None


def test_annotations_mean_what_policies_return():
    policy = cb.GPUCB(
        cb.Finite([[0.0], [1.0]]),
        reward=cb.GP.default(cb.Finite([[0.0], [1.0]])),
        explore=cb.UCB(1.0),
    )
    assert isinstance(policy, cb.Policy)
    assert isinstance(policy.explore, cb.Explore)
    assert isinstance(policy.actions, cb.Actions)
    assert isinstance(policy.ask(), cb.Choice)
    assert isinstance(policy.posterior(), cb.Posterior)
    assert isinstance(policy.posterior().reward, cb.Marginal)
    policy.observe(index=[0], reward=[1.0])
    assert isinstance(policy.recommend(), cb.Recommendation)
    assert isinstance(policy.ask(n=2)[1], cb.Choice)
    returns = typing.get_type_hints(cb.Policy.ask)["return"]
    assert returns == cb.Choice | list[cb.Choice]


def _examples():
    for found in pkgutil.walk_packages(cb.__path__, "cbandit."):
        if found.name == "cbandit.__main__":
            continue
        module = importlib.import_module(found.name)
        for example in doctest.DocTestFinder().find(module, found.name):
            if example.examples:
                yield example


def test_examples_in_help_run():
    run = {each.name: doctest.DocTestRunner().run(each) for each in _examples()}
    assert {"cbandit.policies.base.Policy", "cbandit.problems.protocol.Problem"} < {
        *run
    }
    assert [name for name, result in run.items() if result.failed] == []


def test_what_one_writes_oneself_has_an_example():
    for known in (cb.Policy, cb.problems.Problem, cb.problems.Table, cb.SCGPUCB):
        assert "cb.simulate(" in known.__doc__ or "optimum(1)" in known.__doc__


def test_a_baseline_is_found_from_the_top():
    with pytest.raises(AttributeError, match=r"there is cbandit\.baselines\.CONFIG"):
        _ = cb.CONFIG
    assert not hasattr(cb, "Config")


def test_help_is_composed_of_docstrings_that_python_has_dedented():
    """Python does so from 3.13 on."""

    class Own(cb.GPPolicy):
        __doc__ = "Do.\n\nArgs:\n    actions: a set.\n    common: see below.\n"

    shown = inspect.getdoc(Own)
    assert shown.count("\n    actions: ") == 1
    for name in ("engine", "thresholds", "trials"):
        assert shown.count(f"\n    {name}: ") == 1, name
