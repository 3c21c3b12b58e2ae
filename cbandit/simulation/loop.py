"""The loop: ask the policy, ask the world, tell the policy, keep the account.

It is the only one in the library. A policy never sees the problem, nor the problem the
policy.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import warnings
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from cbandit import account
from cbandit._core import checkpoint as files
from cbandit._core import checks, distributed
from cbandit._core.arguments import differences, settings_of
from cbandit._core.distributed import Ranks
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.choice import Choice
from cbandit.errors import CBanditError, CheckpointError, HorizonError
from cbandit.problems.protocol import Blockwise, Problem, Round, delays_of
from cbandit.simulation.run import Run

__all__ = ["Played", "Policy", "simulate"]

BLOCK = 256
SMALL = 1 << 15  # actions x trials: torch itself splits nothing smaller


class Policy(Protocol):
    """What the loop needs of a policy. It can be pickled, and goes on bit for bit."""

    name: str
    seed: int
    m: int

    @property
    def trials(self) -> Trials:
        """The numbers of its trials, or ``None`` without a trials axis."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """``()`` or ``(n,)``."""

    @property
    def multiplier(self) -> Tensor:
        """What the next ``ask`` will use, ``(*trials, m)``."""

    def ask(
        self, *, among: Any = None, actions: Any = None, observed_costs: Any = None
    ) -> Choice:
        """The action of a new round."""

    def tell(
        self, choice: Choice, *, reward: Any = None, cost: Any = None, where: Any = None
    ) -> None:
        """What came of a choice."""

    def lighten(self) -> None:
        """Before a checkpoint: drops what it rather computes anew than saves."""


@dataclass(frozen=True, eq=False)
class Played:
    """One round, as a callback sees it.

    Args:
        t: the round, counted from 1.
        choice: of the policy.
        reward: as observed, ``(*trials,)``, whether or not it has arrived yet.
        cost: as observed, ``(*trials, m)``.
    """

    t: int
    choice: Choice
    reward: Tensor
    cost: Tensor


def simulate(
    policy: Policy,
    problem: Problem,
    horizon: int,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    callback: Callable[[Played], Any] | None = None,
    *,
    checkpoint_every: float = 30.0,
) -> Run:
    """Plays ``horizon`` rounds and returns all that happened.

    The world's draws come from the policy's seed and trials, so policies of one seed
    meet the same noise, and trial ``i`` the same whatever batch it runs in.

    The account is the problem's: its ``thresholds`` (0 where it has none) are what
    violations are counted against, whatever the policy was given. Give a policy the
    same, or lower ones for a margin of safety; higher ones, or none where the problem
    has some, are warned of.

    Args:
        policy: of any kind; it is changed by what it learns.
        problem: of :mod:`cbandit.problems`, or of your own with the methods of
            :class:`~cbandit.problems.Problem`. For the same trials as the policy, or
            for none in particular (``problem.trials is None``).
        horizon: the number of rounds.
        checkpoint: a file, written whole or not at all: now and then, at the end, on
            Ctrl-C and on SIGTERM. If it exists the run goes on from it, for a longer
            horizon too (if the policy was built without one of its own), and ``policy``
            is brought to the state it had there. Another run, by what policy and
            problem were built with (functions by their names), needs a file of its own:
            else it is an error. Load only files you trust:
            they are pickles. A problem's own state is not kept; what it draws in
            ``round`` and ``observe`` from the generator is.
        progress: a bar, if it takes longer than a second and on a terminal only.
        callback: called after every round with a :class:`Played`; ends the run by
            returning true.
        checkpoint_every: seconds between two writes of the file; where writing takes
            long, nine times what the last one took. 0: after every round.

    Example:
        >>> import cbandit as cb
        >>> problem = cb.problems.zhou_synthetic(trials=50)
        >>> run = cb.simulate(policy, problem, 10_000)              # doctest: +SKIP
        >>> run.regret[:, -1].mean()                                # doctest: +SKIP
    """
    horizon = checks.whole("horizon", horizon, 1, "a whole number above 0")
    _complete("policy", policy, _POLICY)
    _complete("problem", problem, _PROBLEM)
    show = getattr(problem, "round", _nothing)
    learns = not getattr(policy, "sees_costs", True)
    _same_trials(policy, problem)
    _same_actions(policy, problem)
    _same_costs(policy, problem)
    _same_thresholds(policy, problem)
    if callback is not None and not callable(callback):
        raise CBanditError(
            f"callback must be a callable of a round, or None; got {callback!r}"
        )
    progress = checks.flag("progress", progress)
    every = checks.number("checkpoint_every", checkpoint_every, minimum=0.0)
    ranks = distributed.current()
    path = None if checkpoint is None else checks.path("checkpoint", checkpoint)
    mark = {} if path is None else _mark(policy, problem)
    if path is not None and ranks.first(path.exists):
        state = _load(path, mark, policy, horizon)
    else:
        if path is not None and not ranks.first(path.parent.is_dir):
            raise CheckpointError(f"checkpoint: no folder {path.parent}")
        world = Streams(policy.seed, policy.trials, "world")
        state = _State(world, _Tape(tuple(policy.batch_shape)), _Post())
    _fits(horizon, policy, problem)
    world, tape, post = state.world, state.tape, state.post
    if callback is None:
        _within_horizon(policy, horizon - tape.rounds)
    tape.reserve(horizon)
    batch, blockwise = tape.batch, isinstance(problem, Blockwise)
    saved, pause = monotonic(), every

    with (
        _threads(problem, tape.batch),
        _until_interrupted(path is not None) as interrupted,
        _bar(progress and ranks.rank == 0, policy.name, tape.rounds, horizon) as bar,
    ):
        stop = False
        while tape.rounds < horizon and not stop:
            t = tape.rounds + 1
            begun = perf_counter()
            shown = _shown(show(t, world))
            multiplier = policy.multiplier
            tape.put("multipliers", multiplier)  # copied before ask may change it
            question = shown.question()
            if learns:
                question.pop("observed_costs", None)
            choice = policy.ask(**question)
            reward, cost = _seen(problem.observe(choice, world), batch, policy.m)
            if shown.delays is None:
                if policy.m:
                    policy.tell(choice, reward=reward, cost=cost)
                else:
                    policy.tell(choice, reward=reward)
            else:
                post.send(t, choice, reward, cost, delays_of(shown.delays, batch))
            if post:
                post.deliver(t, policy)
            seconds = perf_counter() - begun

            tape.put("actions", choice.x)
            if choice.index is not None:
                tape.put("index", choice.index)
            tape.put("rewards", reward)
            tape.put("costs", cost)
            tape.put("infeasible", choice.infeasible)
            if choice.distribution is not None or tape.has("expected_rewards"):
                mean_reward, mean_cost = _expected(problem, choice, shown, t, batch)
                tape.put("expected_rewards", mean_reward)
                tape.put("expected_costs", mean_cost)
            if not blockwise:
                _write_truth(tape, problem, choice.x, t, cost.shape[-1])
            tape.turn(seconds, problem)
            bar.update(1)

            stop = bool(interrupted)
            if callback is not None and callback(Played(t, choice, reward, cost)):
                stop = True
            due = path is not None and monotonic() - saved > pause
            stop, due = ranks.either(stop, due)
            if path is not None and due and not stop:
                begun = monotonic()
                tape.flush(problem)
                _save(path, mark, policy, state, ranks)
                saved = monotonic()
                if every:
                    pause = max(every, 9 * (saved - begun))
        tape.flush(problem)
        if path is not None:
            _save(path, mark, policy, state, ranks)
        if ranks.either(bool(interrupted))[0]:
            # another rank's signal was Ctrl-C as far as this one knows
            _stop(interrupted[0][1] if interrupted else signal.SIGINT)
    return tape.run(policy, problem, horizon)


@contextmanager
def _threads(problem: Problem, batch: tuple[int, ...]) -> Iterator[None]:
    """One thread while tensors are small.

    More gain nothing then, and where other work shares the machine they wait for each
    other: rounds become ten times slower.
    """
    size = getattr(problem.actions, "size", float("inf"))
    before = torch.get_num_threads()
    if size * (batch[0] if batch else 1) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -------------------------------------------------------------------- one round's parts


_POLICY = "name seed m trials batch_shape multiplier ask() tell() lighten()"
_PROBLEM = "actions trials reward() costs() observe() optimum() stochastic_optimum()"


def _complete(what: str, given: Any, parts: str) -> None:
    """An error that names what a policy or a problem of the user's own lacks."""
    missing = [p for p in parts.split() if not hasattr(given, p.removesuffix("()"))]
    if missing:
        raise CBanditError(
            f"{what} must have all that the loop asks of it; {checks.kind(given)} "
            f"lacks {', '.join(missing)}"
        )


def _nothing(t: int, generator: Streams) -> Round:
    return Round()


def _shown(shown: Any) -> Round:
    if not isinstance(shown, Round):
        raise CBanditError(
            "problem.round must return a cb.Round, cb.Round() where nothing is shown; "
            f"got {shown!r}"
        )
    return shown


def _same_trials(policy: Policy, problem: Problem) -> None:
    ours, theirs = trial_range(policy.trials), trial_range(problem.trials)
    if theirs is not None and ours != theirs:
        raise CBanditError(
            f"policy and problem must be for the same trials; the policy has {ours}, "
            f"the problem {theirs}"
        )


def _same_actions(policy: Policy, problem: Problem) -> None:
    ours, theirs = getattr(policy, "actions", None), problem.actions
    finite = (Finite, ProductGrid)
    same = True  # a policy of one's own may know actions of another kind
    if isinstance(ours, Actions) and isinstance(theirs, Actions):
        same = ours.dim == theirs.dim
    if isinstance(ours, finite) and isinstance(theirs, finite):
        same = same and ours.size == theirs.size
    if not same:
        raise CBanditError(
            "policy and problem must be over the same actions: build the policy on "
            f"problem.actions; the policy has {ours!r}, the problem {theirs!r}"
        )


def _same_costs(policy: Policy, problem: Problem) -> None:
    # a problem of the user's own may mean something else by m: its answers will tell
    ours = policy.m
    theirs = getattr(problem, "m", ours) if hasattr(problem, "settings") else ours
    if ours and ours != theirs:
        raise CBanditError(
            f"policy and problem must have the same costs; the policy has {ours}, the "
            f"problem {theirs}"
        )


def _same_thresholds(policy: Policy, problem: Problem) -> None:
    """A warning where a policy keeps to limits that nobody may have meant."""
    given, batch = getattr(problem, "thresholds", 0.0), tuple(policy.batch_shape)
    if callable(given) or not policy.m:
        return
    name, shape = "problem.thresholds", (*batch, policy.m)
    theirs = checks.shaped(name, checks.tensor(name, given), shape, "(*trials, m)")
    ours = getattr(policy, "_thresholds", None)
    if not isinstance(ours, Tensor):
        return  # a callable, or a policy of one's own
    ours, theirs = ours.cpu(), theirs.reshape(-1, policy.m)
    above = bool((ours > theirs + 1e-6 * (1 + theirs.abs())).any())
    if above or (not bool(ours.any()) and bool(theirs.any())):
        told = [v[0].tolist() for v in (ours, theirs)]
        warnings.warn(
            f"{policy.name} keeps costs under thresholds {told[0]}, and the account is "
            f"by the problem's, {told[1]}: build the policy with "
            "thresholds=problem.thresholds, or lower ones for a margin",
            stacklevel=3,
        )


def _fits(horizon: int, policy: Policy, problem: Problem) -> None:
    """An error now if the account of so many rounds will not fit in memory."""
    numbers = 8 + 4 * policy.m + int(problem.actions.dim)
    try:
        torch.empty(horizon, *policy.batch_shape, numbers, dtype=torch.float64)
    except (RuntimeError, TypeError):
        size = 8e-9 * horizon * math.prod(policy.batch_shape) * numbers
        raise CBanditError(
            f"horizon = {horizon} rounds need {size:.3g} GB for their account, more "
            "than there is"
        ) from None


def _within_horizon(policy: Any, rounds: int) -> None:
    """An error now rather than in the round in which the policy's horizon passes."""
    last, t = getattr(policy, "horizon", None), getattr(policy, "t", 0)
    if isinstance(last, int) and t + rounds > last:
        after = f" after its {t} so far" if t else ""
        raise HorizonError(
            f"horizon: the policy's own is {last} rounds; got {rounds} to play"
            f"{after}. Build the policy with a larger horizon="
        )


def _seen(seen: Any, batch: tuple[int, ...], m: int) -> tuple[Tensor, Tensor]:
    """Feedback as tensors of shapes ``(*trials,)`` and ``(*trials, costs)``."""
    if not isinstance(seen, tuple | list) or len(seen) != 2:
        raise CBanditError(
            f"problem.observe must return a pair, reward and costs; got {seen!r}"
        )
    reward, cost = seen
    if not isinstance(reward, Tensor):
        reward = checks.tensor("the reward of problem.observe", reward)
    if not isinstance(cost, Tensor):
        cost = checks.tensor("the costs of problem.observe", cost)
    if reward.requires_grad or cost.requires_grad:
        reward, cost = reward.detach(), cost.detach()
    if reward.shape != batch:
        raise CBanditError(
            f"problem.observe must return a reward of shape (*trials,) = {batch}; got "
            f"{tuple(reward.shape)}"
        )
    if cost.shape == batch:
        cost = cost.unsqueeze(-1)
    if cost.shape[:-1] != batch or (m and cost.shape[-1] != m):
        shape = f"{(*batch, m)}" if m else f"{batch} and the costs"
        raise CBanditError(
            f"problem.observe must return costs of shape (*trials, m) = {shape}, one "
            f"for each cost of the policy; got {tuple(cost.shape)}"
        )
    return reward, cost


def _reward(problem: Problem, x: Tensor, t: int, batch: tuple[int, ...]) -> Tensor:
    """``(*trials,)``."""
    reward = checks.tensor("problem.reward", problem.reward(x, t))
    return checks.shaped("problem.reward", reward, batch, "(*trials,)")


def _costs(
    problem: Problem, x: Tensor, t: int, batch: tuple[int, ...], m: int | None = None
) -> Tensor:
    """``(*trials, m)``, also of a problem that leaves out the axis of its one cost."""
    costs = checks.tensor("problem.costs", problem.costs(x, t))
    costs = costs.unsqueeze(-1) if costs.shape == batch else costs
    count = costs.shape[-1] if m is None and costs.dim() else m or 0
    return checks.shaped("problem.costs", costs, (*batch, count), "(*trials, m)")


def _write_truth(tape: _Tape, problem: Problem, x: Tensor, t: int, m: int) -> None:
    """The truth about a round of a problem that is not blockwise."""
    tape.put("true_rewards", _reward(problem, x, t, tape.batch))
    tape.put("true_costs", _costs(problem, x, t, tape.batch, m))
    for name, value in (
        ("optimum", problem.optimum(t)),
        ("stochastic_optimum", problem.stochastic_optimum(t)),
    ):
        # a problem may not know: None
        number = checks.tensor(f"problem.{name}", torch.nan if value is None else value)
        shape, words = tape.batch, "(*trials,)"
        tape.put(name, checks.shaped(f"problem.{name}", number, shape, words))


def _expected(
    problem: Problem, choice: Choice, shown: Round, t: int, batch: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Expected reward ``(*trials,)`` and costs ``(*trials, m)`` of what was drawn."""
    if choice.distribution is None:
        return _reward(problem, choice.x, t, batch), _costs(problem, choice.x, t, batch)
    index, probability = choice.distribution.index, choice.distribution.probability
    points = (shown.actions or problem.actions).points(index)  # *trials x k x d
    if isinstance(problem, Blockwise):
        rounds = torch.full((index.shape[-1],), t)
        truth = problem.evaluate(rounds, index, points)
        rewards, costs = truth.reward, truth.costs
    else:
        each = points.unbind(-2)
        values = [_reward(problem, x, t, batch) for x in each]
        rewards = torch.stack(values, -1)
        costs = torch.stack([_costs(problem, x, t, batch) for x in each], -2)
    weight = probability.to(rewards)
    return account.expected(weight, rewards), account.stage_cost(weight, costs)


class _Post:
    """Feedback on its way: letters by the round in which they arrive."""

    def __init__(self) -> None:
        # arrival -> round sent -> trials whose reward, and whose cost, arrive
        self.calendar: dict[int, dict[int, dict[str, Tensor]]] = {}
        self.letters: dict[int, tuple[Choice, Tensor, Tensor]] = {}
        self.last: dict[int, int] = {}  # round sent -> its last arrival

    def __bool__(self) -> bool:
        return bool(self.calendar)

    def send(
        self,
        t: int,
        choice: Choice,
        reward: Tensor,
        cost: Tensor,
        delays: tuple[Tensor, Tensor],
    ) -> None:
        self.letters[t] = (choice, reward, cost)
        arrivals = []
        for kind, delay in zip(("reward", "cost"), delays, strict=True):
            for wait in sorted(set(delay.flatten().tolist())):
                if wait == float("inf"):
                    continue
                due = t + int(wait)
                arrivals.append(due)
                today = self.calendar.setdefault(due, {})
                today.setdefault(t, {})[kind] = delay == wait
        if arrivals:
            self.last[t] = max(arrivals)
        else:
            del self.letters[t]

    def deliver(self, t: int, policy: Policy) -> None:
        for s, due in sorted(self.calendar.pop(t, {}).items()):
            choice, reward, cost = self.letters[s]
            nobody = torch.zeros(tuple(reward.shape), dtype=torch.bool)
            rewarded = due.get("reward", nobody)
            charged = due.get("cost", nobody) if policy.m else nobody
            both = rewarded & charged
            _tell(policy, choice, both, reward=reward, cost=cost)
            _tell(policy, choice, rewarded & ~both, reward=reward)
            _tell(policy, choice, charged & ~both, cost=cost)
            if self.last[s] == t:
                del self.letters[s], self.last[s]


def _tell(policy: Policy, choice: Choice, where: Tensor, **feedback: Tensor) -> None:
    if bool(where.all()):
        policy.tell(choice, **feedback)
    elif bool(where.any()):
        policy.tell(choice, **feedback, where=where)


# ----------------------------------------------------------------------------- the tape


class _Column:
    """One quantity over the rounds: a block being filled, and the rounds before it.

    The block lies where its values are made, so that a policy on a GPU is waited for
    once a block rather than once a round.
    """

    def __init__(self, like: Tensor) -> None:
        self.block = like.new_empty(BLOCK, *like.shape)
        self.rows = self.block.unbind(0)
        self.kept = torch.empty(0, *like.shape, dtype=like.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept, "device": self.block.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["kept"]
        self.kept = kept
        self.block = torch.empty(
            BLOCK, *kept.shape[1:], dtype=kept.dtype, device=state["device"]
        )
        self.rows = self.block.unbind(0)


class _Tape:
    """What happened so far; rounds come first here, trials second."""

    def __init__(self, batch: tuple[int, ...]) -> None:
        self.batch = batch
        self.rounds = self.flushed = self.horizon = 0
        self.columns: dict[str, _Column] = {}
        self.truth: dict[str, Tensor] = {}
        self.seconds = array("d")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        columns = {}
        for name, column in self.columns.items():
            columns[name] = short = object.__new__(_Column)
            short.block = column.block
            short.kept = column.kept[: self.rounds].clone()
        state["columns"] = columns
        state["truth"] = {k: v[: self.rounds].clone() for k, v in self.truth.items()}
        return state

    def reserve(self, horizon: int) -> None:
        """Makes room for ``horizon`` rounds."""
        self.horizon = horizon
        for column in self.columns.values():
            column.kept = _longer(column.kept, horizon)
        self.truth = {k: _longer(v, horizon) for k, v in self.truth.items()}

    def has(self, name: str) -> bool:
        return name in self.columns

    def put(self, name: str, value: Tensor) -> None:
        """Notes a quantity of the round being played."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = _Column(value)
            column.kept = _longer(column.kept, self.horizon)
        column.rows[self.rounds % BLOCK].copy_(value)

    def turn(self, seconds: float, problem: Problem) -> None:
        """Ends the round."""
        self.seconds.append(seconds)
        self.rounds += 1
        if self.rounds % BLOCK == 0:
            self.flush(problem)

    def flush(self, problem: Problem) -> None:
        """Puts the block away, and asks a blockwise problem for the truth about it."""
        start, stop = self.flushed, self.rounds
        if start == stop:
            return
        first = start % BLOCK
        for column in self.columns.values():
            column.kept[start:stop] = column.block[first : first + stop - start]
        if isinstance(problem, Blockwise):
            self._evaluate(problem, start, stop)
        self.flushed = stop

    def _evaluate(self, problem: Blockwise, start: int, stop: int) -> None:
        index = None
        if self.has("index"):
            index = self._part("index", start, stop)
        x = self._part("actions", start, stop)
        truth = problem.evaluate(torch.arange(start + 1, stop + 1), index, x)
        shape = (*self.batch, stop - start)
        for name, value in (
            ("true_rewards", truth.reward),
            ("true_costs", truth.costs),
            ("optimum", truth.optimum.expand(shape)),
            ("stochastic_optimum", truth.stochastic_optimum.expand(shape)),
        ):
            rounds_first = value.movedim(len(self.batch), 0)
            if name not in self.truth:
                empty = torch.empty(0, *rounds_first.shape[1:], dtype=value.dtype)
                self.truth[name] = _longer(empty, self.horizon)
            self.truth[name][start:stop] = rounds_first

    def _part(self, name: str, start: int, stop: int) -> Tensor:
        return self.columns[name].kept[start:stop].movedim(0, len(self.batch))

    def run(self, policy: Policy, problem: Problem, horizon: int) -> Run:
        """The run so far; the tape must be flushed."""
        stop = self.rounds
        out = {}
        for name in list(self.columns):
            out[name] = self._part(name, 0, stop).contiguous()
            del self.columns[name]  # never all of it twice
        for name in list(self.truth):
            value = self.truth.pop(name)[:stop]
            out[name] = value.movedim(0, len(self.batch)).contiguous()
        index = out.pop("index", None)
        tau = _thresholds(getattr(problem, "thresholds", 0.0), out["true_costs"])
        for name in ("true_costs", "expected_costs"):
            if name in out:
                out[name] = out[name] - tau
        return Run(
            policy=policy.name,
            seed=policy.seed,
            trials=trial_range(policy.trials),
            horizon=horizon,
            seconds=torch.tensor(self.seconds, dtype=torch.float64),
            thresholds=tau,
            index=index,
            **out,
        )


def _longer(kept: Tensor, rounds: int) -> Tensor:
    if len(kept) >= rounds:
        return kept
    out = torch.empty(rounds, *kept.shape[1:], dtype=kept.dtype)
    out[: len(kept)] = kept
    return out


def _thresholds(given: Any, costs: Tensor) -> Tensor:
    """``(*trials, T, m)``, or ``(*trials, 1, m)`` where they do not change."""
    shape = (*costs.shape[:-2], costs.shape[-1])

    def one(value: Any) -> Tensor:
        tau = checks.tensor("problem.thresholds", value)
        return checks.shaped("problem.thresholds", tau, shape, "(*trials, m)")

    if callable(given):
        return torch.stack([one(given(t + 1)) for t in range(costs.shape[-2])], -2)
    return one(given).unsqueeze(-2).contiguous()


# -------------------------------------------------------------------------- checkpoints


@dataclass
class _State:
    world: Streams
    tape: _Tape
    post: _Post


def _mark(policy: Policy, problem: Problem) -> dict[str, Any]:
    """What tells a run from others; a file of another mark is not ours to go on."""
    return {
        "policy": f"{type(policy).__module__}.{type(policy).__qualname__}",
        "name": policy.name,
        "seed": policy.seed,
        "trials": str(trial_range(policy.trials)),
        "costs": policy.m,
        "problem": type(problem).__qualname__,
        "actions": repr(problem.actions),
        "settings": {"policy": settings_of(policy), "problem": settings_of(problem)},
    }


def _save(
    path: Path, mark: dict[str, Any], policy: Policy, state: _State, ranks: Ranks
) -> None:
    policy.lighten()
    # in one piece: choices under way stay the very objects that the policy knows
    content: dict[str, Any] = {"kind": "simulation", "mark": mark}
    content |= {"state": state, "policy": policy}
    ranks.first(lambda: files.write(path, content))


def _load(path: Path, mark: dict[str, Any], policy: Policy, horizon: int) -> _State:
    """The state in the file; brings ``policy`` to the one it had there."""
    found = files.read(path)
    kept = "; it was kept"
    if not isinstance(found, dict) or found.get("kind") != "simulation":
        raise CheckpointError(f"{path} is not a checkpoint of a simulation{kept}")
    _same_run(path, found["mark"], mark)
    state: _State = found["state"]
    if state.tape.rounds > horizon:
        raise CheckpointError(
            f"{path} holds {state.tape.rounds} rounds, more than horizon = "
            f"{horizon}{kept}"
        )
    vars(policy).clear()
    vars(policy).update(vars(found["policy"]))
    return state


SHOWN = 3  # differences that an error names


def _same_run(path: Path, found: dict[str, Any], mark: dict[str, Any]) -> None:
    """An error if a file is of a run with another mark."""
    advice = (
        "give what it was begun with, or delete the file (or name another) to begin "
        "anew; it was kept"
    )
    for key, value in mark.items():
        if key != "settings" and found[key] != value:
            raise CheckpointError(
                f"{path} belongs to another run: its {key} is {found[key]!r}, expected "
                f"{value!r}; {advice}"
            )
    if "settings" not in found:
        warnings.warn(
            f"{path} was written before checkpoints kept the settings: they are taken "
            "to be those given now",
            stacklevel=4,
        )
        return
    differing = list(differences(found["settings"], mark["settings"]))
    if differing:
        words = ", its ".join(_difference(*each) for each in differing[:SHOWN])
        if len(differing) > SHOWN:
            words += f", and {len(differing) - SHOWN} more differ"
        raise CheckpointError(f"{path} belongs to another run: its {words}; {advice}")


def _difference(name: str, before: Any, now: Any) -> str:
    if str(before) == str(now):
        return f"{name} holds other {before}"
    return f"{name} is {before}, expected {now}"


# ----------------------------------------------------------------- terminal and signals


@contextmanager
def _until_interrupted(active: bool) -> Iterator[list[tuple[float, int]]]:
    """A list that Ctrl-C or SIGTERM fills: the round under way is finished first.

    A second one stops at once. (Launchers pass on the one that the terminal has sent to
    all their processes: what comes within a second is the same.)
    """
    heard: list[tuple[float, int]] = []  # when, and which
    before: dict[int, Any] = {}
    if active and threading.current_thread() is threading.main_thread():
        usual = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
        }
        # whoever has handlers of his own keeps them
        found = {number: signal.getsignal(number) for number in usual}
        before = {n: handler for n, handler in found.items() if handler is usual[n]}

    def hear(number: int, frame: Any) -> None:
        if not heard:
            heard.append((monotonic(), number))
        elif monotonic() > heard[0][0] + 1:
            _stop(number)

    for number in before:
        signal.signal(number, hear)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int) -> None:
    """As the signal would have, had nobody listened."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _bar(progress: bool, name: str, done: int, horizon: int) -> Any:
    from tqdm import tqdm

    return tqdm(
        total=horizon,
        initial=done,
        desc=name,
        delay=1.0,
        leave=False,
        mininterval=0.2,
        disable=not (progress and sys.stderr.isatty()),
    )
