"""Ctrl-C at any line of a round leaves the policy before that call, or after it."""

import copy
import itertools
import signal
import sys
import threading
from pathlib import Path

import gpytorch
import pytest
import torch
from inside import files

import cbandit as cb

HOME = Path(cb.__file__).parent
ROUNDS = 6
STEP = 19  # every which line is interrupted
FEW = 6  # so many are in a search over a box, or a refit, which run thousands
NEAR = 1e-6  # on a box; climbs magnify what rounds otherwise in a posterior made again


@pytest.fixture(autouse=True)
def python_hears():
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Python tells signals to its main thread alone")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class InterruptAt:
    """Ctrl-C before the ``number``-th line that cbandit runs."""

    home = str(HOME)

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, argument):
        return self.line if frame.f_code.co_filename.startswith(self.home) else None

    def line(self, frame, event, argument):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.strike()
        return self.line

    def strike(self):
        signal.raise_signal(signal.SIGINT)

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *error):
        sys.settrace(None)


class FailAt(InterruptAt):
    """No memory before the ``number``-th line that engines and their like run."""

    home = str(HOME / "posterior")

    def strike(self):
        raise MemoryError("no room")


def belief(**more):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return cb.GP(kernel, **{"noise": 0.01, **more})


def ckb(**more):
    gp = belief()
    both = {"reward": gp, "costs": [gp, gp], "thresholds": 0.1}
    both |= {"step": 0.1, "cap": 5.0, "explore": cb.UCB(1.0)}
    return cb.CKB(more.pop("actions", GRID), **both | more)


def rpol(reward=None, **more):
    gp = belief()
    both = {"reward": reward or gp, "costs": [gp, gp], "thresholds": 0.1}
    both |= {"explore": cb.UCB(1.0)}
    return cb.RPOL(more.pop("actions", GRID), **both | more)


def epochs(actions=None, **more):
    """An epoch begins in the round that is struck, or with ``epoch=3`` before it."""
    both = {"reward": belief(), "costs": 2, "thresholds": 0.1, "epoch": ROUNDS - 2}
    return cb.EpochPenalty(actions or GRID, **both | more)


def learned():
    """A refit is due in the round that is struck."""
    return belief(noise=None, refit_every=4, standardize=True)


def linear():
    ball = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    safe = cb.Safe(index=0, reward=0.0, cost=0.0)
    both = {"reward": ball, "costs": [ball, ball], "thresholds": 0.5}
    return cb.LCLUCB(GRID, **both, safe=safe, delta=0.1)


def arms():
    counts, safe = cb.Counts(0.1), cb.Safe(index=0, reward=0.0, cost=0.0)
    both = {"reward": counts, "costs": [counts, counts], "thresholds": 2.0}
    return cb.OPB(GRID, **both, safe=safe, largest=3.0, horizon=100)


class Fragile(gpytorch.kernels.RBFKernel):
    left = 1_000

    def forward(self, *arguments, **named):
        Fragile.left -= 1
        if Fragile.left == 0:
            raise MemoryError("no room")
        return super().forward(*arguments, **named)


AXIS = torch.linspace(0, 1, 5, dtype=torch.float64)
GRID = cb.ProductGrid([AXIS, AXIS])
BOX = cb.Box([0.0, 0.0], [1.0, 1.0])
PLACES = GRID.points(torch.arange(25))
POLICIES = {
    "joint": ckb,
    "draws": lambda: ckb(explore=cb.TS(1.0)),
    "factor": lambda: ckb(engine="factor"),
    "product": lambda: ckb(engine="product"),
    "window": lambda: rpol(feedback=cb.Sliding(3)),
    "delay": lambda: rpol(feedback=cb.Delayed(3)),
    "scaled": lambda: rpol(belief(standardize=True)),
    "epochs": lambda: epochs(epoch=3),
    "epoch begins": epochs,
    "epoch afresh": lambda: epochs(reuse=False),
    "epoch drawn": lambda: epochs(inner="ts"),
    "epoch learned": lambda: epochs(reward=[belief(), learned()]),
    "linear": linear,
    "arms": arms,
    "box": lambda: ckb(actions=BOX),
    "box drawn": lambda: ckb(actions=BOX, explore=cb.TS(1.0)),
    "box learned": lambda: rpol(learned(), actions=BOX, explore=cb.TS(1.0)),
    "box ahead": lambda: rpol(actions=BOX, pending="hallucinate"),
    "box epoch": lambda: epochs(BOX),
    "box epoch afresh": lambda: epochs(BOX, reuse=False),
    "box epoch learned": lambda: epochs(BOX, reward=[belief(), learned()]),
}


def world(choice):
    a, b = choice.x.tolist()
    return a + b * b, [a - b, b - a / 2]


def ask(policy, interrupt):
    """A choice, asked for again where Ctrl-C came before it stood."""
    try:
        with interrupt:
            return policy.ask()
    except (KeyboardInterrupt, MemoryError):
        stood = [c for c in policy.outstanding if c.t == ROUNDS - 1]
        return stood[0] if stood else policy.ask()


def tell(policy, choice, interrupt):
    reward, cost = world(choice)
    try:
        with interrupt:
            policy.tell(choice, reward=reward, cost=cost)
    except (KeyboardInterrupt, MemoryError):
        if policy.outstanding:
            policy.tell(choice, reward=reward, cost=cost)


def look(policy, interrupt):
    try:
        with interrupt:
            believed(policy)
    except (KeyboardInterrupt, MemoryError):
        pass


def believed(policy):
    box = policy.actions.continuous
    return (policy.posterior(PLACES) if box else policy.posterior()).reward


def begun(make):
    """A policy before the round that is struck, and its actions so far."""
    policy, actions = make(), []
    for _ in range(ROUNDS - 2):
        choice = policy.ask()
        actions.append(choice.x)
        tell(policy, choice, InterruptAt(0))
    return policy, actions


def played(begun, interrupt, call="ask"):
    """What came of two more rounds, one call of which was interrupted at a line."""
    policy, actions = begun[0], [*begun[1]]
    for t in (ROUNDS - 1, ROUNDS):
        here = t == ROUNDS - 1
        struck = here and call == "ask"
        choice = ask(policy, interrupt) if struck else policy.ask()
        actions.append(choice.x)
        tell(policy, choice, interrupt if here and call == "tell" else InterruptAt(0))
        if here and call == "look":
            look(policy, interrupt)
    actions.append(policy.ask().x)
    reward = believed(policy)
    known = [reward.mean, reward.std, policy.multiplier.flatten()]
    return torch.stack(actions), torch.cat(known), interrupt.left


def judged(name, call, kind):
    """Strike a call at many of its lines, each time in a copy of its own."""
    before, box = begun(POLICIES[name]), name.startswith("box")
    actions, known, left = played(copy.deepcopy(before), kind(0), call)
    step = max(STEP, -left // FEW) if box or "learned" in name else STEP
    for number in range(1, -left + 1, step):
        found, after, left_over = played(copy.deepcopy(before), kind(number), call)
        assert left_over == 0
        near = {"rtol": 0, "msg": lambda said, n=number: f"struck at {n}: {said}"}
        torch.testing.assert_close(found, actions, atol=NEAR if box else 0, **near)
        torch.testing.assert_close(after, known, atol=NEAR if box else 1e-9, **near)
    return -left


@pytest.mark.parametrize("call", ["ask", "tell", "look"])
@pytest.mark.parametrize("name", POLICIES)
def test_an_interrupt_neither_loses_nor_doubles_anything(name, call):
    assert judged(name, call, InterruptAt) > (8 if call == "look" else 15)


@pytest.mark.parametrize("name", [n for n in POLICIES if "box" in n or "epoch" in n])
def test_an_engine_that_fails_neither_loses_nor_doubles_anything(name):
    assert judged(name, "ask", FailAt) > STEP


def test_what_is_observed_is_observed_whole_or_not_at_all():
    points, wholes = GRID.points(torch.arange(9)), 0
    rewards, costs = points.sum(-1), points - 0.5
    with_all, without = ckb(engine="factor"), ckb(engine="factor")
    with_all.observe(x=points, reward=rewards, cost=costs)
    want = with_all.posterior().reward.mean, without.posterior().reward.mean
    for number in itertools.count(1, STEP):
        policy, interrupt = ckb(engine="factor"), InterruptAt(number)
        try:
            with interrupt:
                policy.observe(x=points, reward=rewards, cost=costs)
        except KeyboardInterrupt:
            pass
        mean = policy.posterior().reward.mean
        near = [torch.allclose(mean, each, rtol=0, atol=1e-9) for each in want]
        assert sum(near) == 1, number
        wholes += near[0]
        if interrupt.left > 0:
            break  # it was done before that line
    assert wholes
    assert number > 400


# struck while a folder is closed by the collector, which can only print it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_unlocks_a_folder(tmp_path):
    for number in itertools.count(1):
        interrupt = InterruptAt(number)
        try:
            with interrupt, files.locked(tmp_path, 0.0, "it is locked"):
                pass
        except KeyboardInterrupt:
            pass
        with files.locked(tmp_path, 0.0, f"it is locked, struck at {number}"):
            pass
        if interrupt.left > 0:
            break
    assert number > 15


def test_ctrl_c_does_not_wait():
    class Slow(cb.GPUCB):
        def score(self, t, multiplier):
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("nobody stopped it")

    policy = Slow(GRID, reward=belief(), explore=cb.UCB(1.0))
    with pytest.raises(KeyboardInterrupt):
        policy.ask()
    assert policy.t == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_ones_own_stay():
    heard = []

    def hear(number, frame):
        heard.append(signal.getsignal(signal.SIGINT) is hear)

    class Interrupted(cb.GPUCB):
        def score(self, t, multiplier):
            signal.raise_signal(signal.SIGINT)
            return super().score(t, multiplier)

    signal.signal(signal.SIGINT, hear)
    choice = Interrupted(GRID, reward=belief(), explore=cb.UCB(1.0)).ask()
    assert heard == [True]
    assert choice.t == 1


def test_a_failure_in_the_middle_of_feedback_changes_nothing(tmp_path):
    Fragile.left, gp = 1_000_000, cb.GP(Fragile().double(), noise=0.01)
    policy, calm = (
        cb.GPUCB(GRID, reward=gp, explore=cb.UCB(1.0), engine="factor")
        for _ in range(2)
    )
    for each in (policy, calm):
        each.tell(each.ask(), reward=1.0)
        each.tell(each.ask(), reward=-1.0)
    Fragile.left = 1
    with pytest.raises(MemoryError):
        policy.ask()
    assert torch.equal(policy.ask().index, calm.ask().index)
    found, known = (each.posterior().reward for each in (policy, calm))
    torch.testing.assert_close(found.mean, known.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.std, known.std, rtol=0, atol=1e-10)
    policy.save(tmp_path / "good.ckpt")
