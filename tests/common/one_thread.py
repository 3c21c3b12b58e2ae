"""What is small runs on one thread, and nobody's settings stay changed.

The suite sets one thread (conftest.py). Here are a user's settings: the machine's own,
in processes without a variable, and three threads in every pool.
"""

from __future__ import annotations

import re
import threading

import pytest
import torch
from inside import on_one_thread, threads_for
from terminal import printed
from threadpoolctl import ThreadpoolController, threadpool_limits

import cbandit as cb

F64 = torch.float64
WAIT = 60  # seconds, until a test that hangs fails


def pools() -> list[int]:
    """The threads of every library, of torch, and of the MKL inside torch."""
    found = [each["num_threads"] for each in ThreadpoolController().info()]
    mkl = re.findall(r"mkl_get_max_threads.. : (.+)", torch.__config__.parallel_info())
    found += [int(number) for number in mkl if number.isdigit()]
    return [*found, torch.get_num_threads()]


@pytest.fixture
def three():
    """A user who wants three threads everywhere."""
    before = torch.get_num_threads()
    with threadpool_limits(3):
        torch.set_num_threads(3)
        yield
        torch.set_num_threads(before)


class Watched(cb.GPPolicy):
    """A rule whose score calls a function first."""

    name = "Watched"

    def __init__(self, actions, seen, **common):
        super().__init__(actions, start=1.0, **common)
        self.seen = seen

    def score(self, t, phi):
        self.seen()
        return cb.scores.PrimalDual(phi)


def watched(seen, size=60, **common):
    axis = torch.linspace(0, 1, size, dtype=F64)
    line = cb.ProductGrid([axis, torch.tensor([0.0, 1.0], dtype=F64)])
    belief = common.pop("belief", None) or cb.GP.default(line)
    return Watched(line, seen, reward=belief, costs=belief, seed=3, **common)


def play(policy, rounds):
    for _ in range(rounds):
        choice = policy.ask()
        x = choice.x[0].item()
        policy.tell(choice, reward=1 - (x - 0.7) ** 2, cost=x - 0.5)


@pytest.mark.usefixtures("three")
def test_rounds_of_small_sets_run_on_one_thread():
    before, seen = pools(), []
    play(watched(lambda: seen.append(pools())), 6)
    assert set(before) == {3}
    assert len(seen) == 6
    assert {each for row in seen for each in row} == {1}
    assert pools() == before


@pytest.mark.usefixtures("three")
def test_passes_over_large_sets_have_all_threads():
    seen = []
    play(watched(lambda: seen.append(pools()), size=60_000), 2)
    assert {each for row in seen for each in row} == {3}
    assert set(pools()) == {3}


@pytest.mark.usefixtures("three")
def test_large_work_within_small_work_has_all_threads():
    with threads_for(10):
        with threads_for(10_000_000):
            assert set(pools()) == {3}
            with threads_for(10):
                assert set(pools()) == {1}
        assert set(pools()) == {1}
        with threads_for(float("inf")):
            assert set(pools()) == {1}
    with threads_for(float("inf")):
        assert set(pools()) == {3}
    assert set(pools()) == {3}


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_round_that_fails_leaves_the_settings(error):
    def fails():
        raise error

    policy = watched(fails)
    for _ in range(3):
        with pytest.raises(error):
            policy.ask()
        assert set(pools()) == {3}
    with pytest.raises(error):
        on_one_thread(fails)()
    assert set(pools()) == {3}


@pytest.mark.usefixtures("three")
def test_the_last_python_thread_that_leaves_ends_the_limit():
    """The first to enter leaves first; who is outside keeps torch's threads."""
    inside = [threading.Event(), threading.Event()]
    go_on = [threading.Event(), threading.Event()]
    late = []

    def pause(number):
        def seen():
            inside[number].set()
            assert go_on[number].wait(WAIT)
            late.append(set(pools()))

        return seen

    players = []
    for number in range(2):
        policy = watched(pause(number))
        players.append(threading.Thread(target=policy.ask))
        players[-1].start()
        assert inside[number].wait(WAIT)
    assert torch.get_num_threads() == 3
    born = []
    meanwhile = threading.Thread(target=lambda: born.append(torch.get_num_threads()))
    meanwhile.start()
    meanwhile.join()
    for number in range(2):
        go_on[number].set()
        players[number].join(WAIT)
    assert late == [{1}, {1}]
    assert born == [3]
    assert set(pools()) == {3}


@pytest.mark.usefixtures("three")
def test_fits_in_many_python_threads_leave_the_settings():
    seen = []
    policies = [watched(lambda: seen.append(set(pools()))) for _ in range(4)]
    players = [threading.Thread(target=play, args=(each, 8)) for each in policies]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert seen == [{1}] * 32
    assert set(pools()) == {3}


PROCESS = """
import os
import scipy.optimize, torch
from threadpoolctl import threadpool_info, threadpool_limits

seen, minimize = [], scipy.optimize.minimize

def noted(*given, **more):
    seen.append(pools())
    return minimize(*given, **more)

scipy.optimize.minimize = noted  # before cbandit takes it
from one_thread import cb, play, pools, watched

axis = torch.linspace(0, 1, 21, dtype=torch.float64)
grid = cb.ProductGrid([axis, axis])
learned = cb.GP.default(grid)
for own in (False, True):
    if own:
        threadpool_limits(3)
        torch.set_num_threads(3)
    seen.clear()
    before = pools()
    policy = cb.CKB(grid, reward=learned, costs=learned)
    play(policy, 8)
    after = pools()
    policy.refit()
    print(len(seen) > 4, {n for row in seen for n in row}, before == after == pools())

def blas():
    found = threadpool_info()
    return {each["num_threads"] for each in found if each["user_api"] == "blas"}

def fork():
    global child
    child = os.fork()
    if child == 0:
        os._exit(0 if blas() == {3} else 1)

watched(fork if hasattr(os, "fork") else list).ask()
print(os.waitpid(child, 0)[1] if hasattr(os, "fork") else 0, set(pools()))
"""


@pytest.fixture(scope="module")
def process():
    """What a process without a variable prints: the machine's settings, then three."""
    return printed(PROCESS, OMP_NUM_THREADS=None).splitlines()


def test_fits_run_on_one_thread_with_the_machines_own_settings(process):
    assert process[0] == "True {1} True"


def test_fits_run_on_one_thread_with_a_users_settings(process):
    assert process[1] == "True {1} True"


def test_a_fork_has_the_settings_of_its_user(process):
    assert process[2] == "0 {3}"
