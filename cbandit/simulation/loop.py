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
        reward: as observed, ``(*trials,)``, whether or not it has arrived yet.
        cost: as observed, ``(*trials, m)``; NaN where the action has failed.
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

    The world's draws come from the policy's seed and trials, so policies of one seed
    meet the same noise, and trial ``i`` the same whatever batch it runs in.

    The account is the problem's: violations are counted against its ``thresholds`` (0
    where it has none), whatever the policy was given. Give a policy the same, or lower
    ones for a margin of safety. A warning says so where the policy's are higher, or
    where it has none and the problem has some.

    Where the problem says that an action has failed, the policy is told so, and is told
    nothing else of it; reward and costs as observed are NaN. The account goes on by the
    problem's noiseless functions: it is for the problem to say, by ``reward(x, t)`` and
    ``costs(x, t)``, what a round with a failed action was worth.

    A run ends where no trial can afford an action of a policy with a
    :class:`~cbandit.Budget`. A trial that alone can afford none plays nothing: what is
    observed is NaN, and reward and costs are 0 in the account.

    Args:
        policy: of any kind; it is changed by what it learns.
        problem: of :mod:`cbandit.problems`, or of your own with the methods of
            :class:`~cbandit.problems.Problem`. For the same trials as the policy, or
            for none in particular (``problem.trials is None``).
        horizon: the number of rounds.
        checkpoint: a file, written whole or not at all: now and then, at the end, on
            Ctrl-C and on SIGTERM. If it exists the run goes on from it, for a longer
            horizon too (if the policy was built without one of its own), and ``policy``
            is brought to the state it had there. A run of another policy or problem, or
            of the same built with other arguments (functions count by their names),
            needs a file of its own: it is an error otherwise. The problem's own state
            is not kept; what it draws in ``round`` and ``observe`` from the generator
            is. Reading the file runs no code of its own, see :func:`cbandit.load`: it
            may name what ``policy`` is made of, and what is in ``trust``.
        progress: a bar, if it takes longer than a second and on a terminal only.
        callback: called after every round with a :class:`Played`; ends the run by
            returning true.
        checkpoint_every: seconds between two writes of the file; where writing takes
            long, nine times what the last one took. 0: after every round.
        trust: classes, functions or modules that the checkpoint may name although the
            policy, as it was given, holds none of them; for example the class of a
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
        process.few_threads(size * trials),
        process.until_interrupted(file is not None) as interrupted,
        process.bar(shown_bar, policy.name, tape.rounds, horizon) as bar,
    ):
        saved, pause, ended = monotonic(), every, False
        while tape.rounds < horizon and not ended:
            t = tape.rounds + 1
            begun = perf_counter()
            shown, question = world.show(t)
            tape.put("multipliers", policy.multiplier)  # copied before ask changes it
            if priced is not None:
                tape.put("priced", priced.price)
            try:
                choice = policy.ask(**question)
            except BudgetError:
                if not tape.rounds:
                    raise
                LOG.info("%s has spent its budget after %d rounds", policy.name, t - 1)
                break
            reward, cost, failed = world.observe(choice)
            played = Played(t, choice, reward, cost)
            if failed is not None:
                policy.tell(choice, failed=True, where=failed)
            if shown.delays is not None:
                delays = delays_of(shown.delays, world.batch)
                post.send(t, choice, reward, cost, delays, failed)
            else:
                feedback = {"reward": reward} | ({"cost": cost} if policy.m else {})
                tell(policy, choice, None if failed is None else ~failed, **feedback)
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
                if every:
                    pause = max(every, 9 * (saved - begun))
        tape.flush(world)
        if file is not None:
            file.write(state)
        if ranks.either(bool(interrupted))[0]:
            # another rank's signal was Ctrl-C as far as this one knows
            process.stop(interrupted[0] if interrupted else signal.SIGINT)
    return tape.run(policy, world.senses, horizon)


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
    for name, value in world.truth(choice.x, t, played.cost.shape[-1]).items():
        tape.put(name, value)
    if failed is not None or tape.has("failed"):
        nowhere = torch.zeros(world.batch, dtype=torch.bool)
        tape.put("failed", nowhere if failed is None else failed)
    if choice.idle is not None or tape.has("idle"):
        tape.put(
            "idle", choice.infeasible & False if choice.idle is None else choice.idle
        )
