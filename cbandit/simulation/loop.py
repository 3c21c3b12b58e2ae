"""The loop: ask the policy, ask the problem, tell the policy, keep the account.

It is the only loop in the library. The policy never sees the problem, and the problem
never sees the policy.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, distributed
from cbandit._core.hints import hinted
from cbandit._core.log import LOG
from cbandit._core.threads import threads_for
from cbandit.choice import Choice
from cbandit.errors import BudgetError, CBanditError
from cbandit.problems.protocol import Problem, Round, delays_of
from cbandit.simulation import process
from cbandit.simulation.delivery import tell
from cbandit.simulation.parts import Policy, check_memory, check_parts, check_rounds
from cbandit.simulation.resume import Checkpoint, State
from cbandit.simulation.run import Run
from cbandit.simulation.tape import Tape
from cbandit.simulation.world import World


@dataclass(frozen=True, eq=False)
class Played:
    """One round, as a callback sees it.

    Args:
        t: the round, counted from 1.
        choice: the policy's choice.
        reward: the observed reward, ``(*trials,)``, even if it has not arrived yet.
        cost: the observed costs, ``(*trials, m)``; NaN where the action failed.
    """

    t: int
    choice: Choice
    reward: Tensor
    cost: Tensor


@hinted
def simulate(
    policy: Policy,
    problem: Problem,
    horizon: int,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    callback: Callable[[Played], Any] | None = None,
    *,
    checkpoint_every: float = 30.0,
    trust: Iterable[object] = (),
) -> Run:
    """Play ``horizon`` rounds of a policy on a problem and return all that happened.

    The world's draws come from the policy's seed and trials, so policies with the same
    seed meet the same noise, whatever batch a trial runs in.

    The problem keeps the account: violations are counted against its ``thresholds`` (0
    if it has none), whatever limits the policy has. Give a policy the same limits, or
    lower ones for a margin of safety. A warning comes if its limits are higher, or if
    it has none and the problem has some.

    If the problem says that an action failed, the policy is told this and nothing else;
    the observed reward and costs are NaN. The account still uses the problem's
    ``reward(x, t)`` and ``costs(x, t)``, which say what a round with a failed action
    was worth.

    With a :class:`~cbandit.Budget`, a run ends once no trial can afford an action. A
    trial that cannot, while others can, plays nothing: its observations are NaN, and
    its reward and costs are 0 in the account.

    Args:
        policy: a policy of any kind; it changes as it learns.
        problem: one of :mod:`cbandit.problems`, or your own with the methods of
            :class:`~cbandit.problems.Problem`. For the same trials as the policy, or
            for none in particular (``problem.trials is None``).
        horizon: the number of rounds.
        checkpoint: a file to save the run in, atomically: now and then, at the end, on
            Ctrl-C and on SIGTERM. ``None``: none. If the file exists, ``policy`` gets
            its saved state and the run goes on from there, to a longer horizon too
            (unless the policy was built with one of its own). A file of another policy
            or problem, or of the same ones built with other arguments (functions are
            compared by name), is an error. The state of the generator that ``round``
            and ``observe`` draw from is saved; state that the problem keeps is not.
            Loading runs no code from the file, see :func:`cbandit.load`: it may only
            name what ``policy`` is made of, and what is in ``trust``.
        progress: whether to show a bar, after a second and on a terminal only.
        callback: called after every round with a :class:`Played`; ends the run by
            returning true.
        checkpoint_every: seconds between two writes of the file, or nine times what the
            last write took, with the ``ask`` after it, if that is longer: large arrays
            are not saved, and computed anew then. 0: after every round.
        trust: classes, functions or modules that the checkpoint may name although the
            policy holds none of them when it is passed; for example the class of a
            state that your own policy keeps only after its first round.

    Example:
        >>> import cbandit as cb
        >>> problem = cb.problems.zhou_synthetic(trials=50)
        >>> run = cb.simulate(policy, problem, 10_000)              # doctest: +SKIP
        >>> run.regret[:, -1].mean()                                # doctest: +SKIP
    """
    horizon = checks.whole("horizon", horizon, 1, "a whole number above 0")
    check_parts(policy, problem)
    if callback is not None and not callable(callback):
        raise CBanditError(
            f"callback must be a callable of a round, or None; got {callback!r}"
        )
    progress = checks.flag("progress", progress)
    every = checks.number("checkpoint_every", checkpoint_every, minimum=0.0)
    ranks, file = distributed.current(), None
    if checkpoint is not None:
        path = checks.path("checkpoint", checkpoint)
        file = Checkpoint(path, policy, problem, ranks, trust)
    resumed = file is not None and file.exists()
    state = file.read(horizon) if file and resumed else State.fresh(policy)
    tape, post = state.tape, state.post
    check_memory(horizon, policy, problem)
    if callback is None:
        check_rounds(policy, horizon - tape.rounds)
    world = World(problem, policy, state.streams)
    size = getattr(problem.actions, "size", float("inf"))
    trials = tape.batch[0] if tape.batch else 1
    shown_bar = progress and ranks.rank == 0
    priced: Any = policy if getattr(policy, "standardized", False) else None

    with (
        process.until_interrupted(file is not None) as interrupted,
        process.bar(shown_bar, policy.name, tape.rounds, horizon) as bar,
    ):
        saved, pause, ended = monotonic(), every, False
        wrote: float | None = None  # seconds, until the next ask
        while tape.rounds < horizon and not ended:
            t = tape.rounds + 1
            begun = perf_counter()
            with threads_for(size * trials):
                shown, question = world.show(t)
                tape.put(
                    "multipliers", policy.multiplier
                )  # copied before ask changes it
                if priced is not None:
                    tape.put("priced", priced.price)
                try:
                    choice = policy.ask(**question)
                except BudgetError:
                    if not tape.rounds:
                        raise
                    LOG.info(
                        "%s has spent its budget after %d rounds", policy.name, t - 1
                    )
                    break
                if wrote is not None and every:
                    pause = max(every, 9 * (wrote + perf_counter() - begun))
                wrote = None
                reward, cost, failed = world.observe(choice)
                played = Played(t, choice, reward, cost)
                if failed is not None:
                    policy.tell(choice, failed=True, where=failed)
                if shown.delays is not None:
                    delays = delays_of(shown.delays, world.batch)
                    post.send(t, choice, reward, cost, delays, failed)
                else:
                    feedback = {"reward": reward} | ({"cost": cost} if policy.m else {})
                    tell(
                        policy, choice, None if failed is None else ~failed, **feedback
                    )
                if post:
                    post.deliver(t, policy)
                seconds = perf_counter() - begun

                _record(tape, world, shown, played, failed)
                tape.turn(seconds, world)
            bar.update(1)

            ended = bool(interrupted)
            if callback is not None and callback(played):
                ended = True
            due = file is not None and monotonic() - saved > pause
            ended, due = ranks.either(ended, due)
            if file is not None and due and not ended:
                begun = monotonic()
                tape.flush(world)
                file.write(state)
                saved = monotonic()
                wrote = saved - begun
        tape.flush(world)
        if file is not None:
            file.write(state)
        if ranks.either(bool(interrupted))[0]:
            # this rank was not told which signal another one got: take Ctrl-C
            process.stop(interrupted[0] if interrupted else signal.SIGINT)
    return tape.run(policy, world.objective, horizon)


def _record(
    tape: Tape, world: World, shown: Round, played: Played, failed: Tensor | None
) -> None:
    """Write one round on the tape: choice, feedback and the truth."""
    t, choice = played.t, played.choice
    tape.put("actions", choice.x)
    if choice.index is not None:
        tape.put("index", choice.index)
    tape.put("rewards", played.reward)
    tape.put("costs", played.cost)
    tape.put("infeasible", choice.infeasible)
    if choice.distribution is not None or tape.has("expected_rewards"):
        mean_reward, mean_cost = world.expected(choice, shown, t)
        tape.put("expected_rewards", mean_reward)
        tape.put("expected_costs", mean_cost)
    if shown.partial and world.in_blocks:
        tape.flush(world)  # from here on the account is kept round by round
        world.in_blocks = False
    for name, value in world.truth(choice.x, shown, t, played.cost.shape[-1]).items():
        tape.put(name, value)
    if failed is not None or tape.has("failed"):
        nowhere = torch.zeros(world.batch, dtype=torch.bool)
        tape.put("failed", nowhere if failed is None else failed)
    if choice.idle is not None or tape.has("idle"):
        tape.put(
            "idle", choice.infeasible & False if choice.idle is None else choice.idle
        )
