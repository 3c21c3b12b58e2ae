"""Threads, copies and forks: whole states only, and choices known by their ids."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
import threading

import gpytorch
import pytest
import torch
from places import COMMON

import cbandit as cb
from cbandit._core.threads import Limit

F64 = torch.float64


def belief() -> cb.GP:
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=F64)
    return cb.GP(kernel, noise=1e-2)


def policy_of(explore=None, **more) -> cb.CKB:
    actions = cb.Finite(torch.linspace(0, 1, 40, dtype=F64).unsqueeze(-1))
    how = {"step": 0.1, "cap": 10.0, **more}
    explore = explore or cb.UCB(2.0)
    return cb.CKB(actions, reward=belief(), costs=belief(), explore=explore, **how)


def outcome(x: float) -> tuple[float, float]:
    return 1 - (x - 0.7) ** 2, x - 0.5


@pytest.fixture
def hurried():
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("explore", [cb.UCB(2.0), cb.TS(1.0)], ids=["UCB", "TS"])
def test_threads_see_whole_states_only(explore, tmp_path):
    policy, each, workers = policy_of(explore), 40, 8
    told: list[tuple[int, float]] = []
    wrong: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            for _ in range(each):
                choice = policy.ask()
                reward, cost = outcome(choice.x.item())
                policy.tell(choice.id, cost=cost)
                policy.tell(choice, reward=reward)
                told.append((choice.t, choice.x.item()))
        except BaseException as error:
            wrong.append(error)

    def read() -> None:
        try:
            while not ended.is_set():
                assert policy.posterior().reward.std.isfinite().all()
                assert policy.multiplier.isfinite().all()
                if told:  # before data nothing is recommended
                    policy.recommend()
                policy.save(tmp_path / "state.ckpt")
                assert cb.load(tmp_path / "state.ckpt").t <= each * workers
                assert len(policy.outstanding) <= workers
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    reader = threading.Thread(target=read)
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    reader.join()
    assert not wrong, wrong
    assert sorted(t for t, _ in told) == list(range(1, each * workers + 1))
    assert policy.outstanding == []
    # a dense solve of all that was told
    points = torch.tensor([[x] for _, x in told], dtype=F64)
    values = torch.tensor([outcome(x)[0] for _, x in told], dtype=F64)
    grid = policy.actions.points(torch.arange(40)).double()

    def rbf(a, b):
        return torch.exp(-0.5 * torch.cdist(a, b).square() / 0.04)

    gram = rbf(points, points) + 1e-2 * torch.eye(len(points), dtype=F64)
    wanted = rbf(grid, points) @ torch.linalg.solve(gram, values)
    assert torch.allclose(policy.posterior().reward.mean, wanted, atol=1e-8)


def test_a_choice_is_told_by_its_id_and_after_loading(tmp_path):
    policy = policy_of()
    first, second = policy.ask(), policy.ask()
    assert len({first.id, second.id}) == 2
    policy.save(tmp_path / "state.ckpt")
    loaded = cb.load(tmp_path / "state.ckpt")
    loaded.tell(first.id, reward=1.0, cost=0.0)
    loaded.tell(second, reward=1.0, cost=0.0)
    assert loaded.outstanding == []
    assert [choice.id for choice in policy.outstanding] == [first.id, second.id]
    with pytest.raises(cb.ChoiceError, match="the choice with id"):
        loaded.tell(first.id, reward=2.0)
    with pytest.raises(cb.ChoiceError, match="no choice with id 'nobody'"):
        policy.cancel("nobody")
    policy.cancel(second.id)
    assert [choice.id for choice in policy.outstanding] == [first.id]


@pytest.mark.parametrize("copied", [False, True], ids=["loaded", "deepcopy"])
def test_copies_do_not_take_each_others_choices(copied, tmp_path):
    policy = policy_of()
    policy.save(tmp_path / "state.ckpt")
    one, two = (
        copy.deepcopy(policy) if copied else cb.load(tmp_path / "state.ckpt")
        for _ in range(2)
    )
    for ours, theirs in ((one, two), (two, one), (policy, one)):
        choice, other = ours.ask(), theirs.ask()
        assert choice.id != other.id
        for meant in (choice, choice.id):
            with pytest.raises(cb.ChoiceError):
                theirs.tell(meant, reward=1.0, cost=0.0)
        ours.tell(choice, reward=1.0, cost=0.0)
        theirs.tell(other.id, reward=1.0, cost=0.0)


def test_a_lock_that_an_interrupt_left_locked_is_replaced():
    """It was seen: threads waited for ever after an interrupt amid a round."""
    limit = Limit()
    lost = threading.Thread(target=limit._lock.acquire)
    lost.start()
    lost.join()
    passed = []

    def enter_and_leave():
        limit.enter()
        limit.leave()
        passed.append(limit.holds)

    threads = [threading.Thread(target=enter_and_leave, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert passed == [False] * 3


def _ask(policy, answers) -> None:
    try:
        policy.ask()
        answers.put("asked")
    except cb.CBanditError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_noticed():
    context = multiprocessing.get_context("fork")
    for used, words in ((True, "forked"), (False, "asked")):
        policy, answers = policy_of(), context.Queue()
        if used:
            policy.ask()
        child = context.Process(target=_ask, args=(policy, answers), daemon=True)
        child.start()
        assert words in answers.get(timeout=60)
        child.kill()  # a fork of several threads may not end by itself
        child.join(60)
        policy.ask()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are Unix's")
def test_what_the_error_in_a_fork_advises_works(tmp_path):
    script = str(COMMON / "forked.py")
    command = [sys.executable, "-W", "ignore", script, str(tmp_path / "a.ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    error, forked, spawned, parent = done.stdout.splitlines()
    for words in ("was forked", "get_context('spawn')", "torch.set_num_threads(1)"):
        assert words in error
    assert forked == spawned == parent


def test_all_that_policies_show_waits_for_its_turn():
    """Every public method of every policy is behind the policy's door."""
    hooks = {"decide", "absorb", "score", "acquire", "move"}
    hooks |= {"lighten", "begin", "limits"}
    free = {"t", "name", "thresholds"}  # one look at one value
    public = [
        getattr(home, name) for home in (cb, cb.baselines) for name in home.__all__
    ]
    kinds = [k for k in public if isinstance(k, type) and issubclass(k, cb.Policy)]
    found = set()
    while kinds:
        kind = kinds.pop()
        if kind in found:
            continue
        found.add(kind)
        kinds += kind.__subclasses__()
        if not kind.__module__.startswith("cbandit."):
            continue
        for name, member in vars(kind).items():
            if name.startswith("_") or name in hooks | free:
                continue
            if isinstance(member, property):
                member = member.fget
            if callable(member) and not isinstance(member, type):
                assert hasattr(member, "__wrapped__"), f"{kind.__name__}.{name}"
    assert len(found) > 15
