"""The checkpoint of a run: its content, and checks that it fits the run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from cbandit._core import checkpoint as files
from cbandit._core.arguments import differences, settings_of
from cbandit._core.distributed import Ranks
from cbandit._core.graph import names_in
from cbandit._core.names import trusted
from cbandit._core.randomness import Streams, trial_range
from cbandit.errors import CheckpointError
from cbandit.problems.protocol import Problem
from cbandit.simulation.delivery import Post
from cbandit.simulation.parts import Policy
from cbandit.simulation.tape import Tape

SHOWN = 3  # differences that an error names


@dataclass
class State:
    """The loop's own state between two rounds.

    Args:
        streams: the world's random streams.
        tape: the rounds so far.
        post: feedback on its way.
    """

    streams: Streams
    tape: Tape
    post: Post

    @classmethod
    def fresh(cls, policy: Policy) -> State:
        """Return the state before the first round."""
        streams = Streams(policy.seed, policy.trials, "world")
        return cls(streams, Tape(tuple(policy.batch_shape)), Post())


class Checkpoint:
    """The file of one run of one policy on one problem.

    Args:
        path: the file, which need not exist yet.
        policy: the policy as it was built.
        problem: the problem as it was built.
        ranks: the processes that share the run; the first of them reads and writes.
        trust: classes, functions or modules that the file may name, beside those of
            the library and those that ``policy`` is made of.
    """

    def __init__(
        self,
        path: Path,
        policy: Policy,
        problem: Problem,
        ranks: Ranks,
        trust: Iterable[object],
    ) -> None:
        if not ranks.first(path.parent.is_dir):
            raise CheckpointError(f"checkpoint: no folder {path.parent}")
        self.path, self._policy, self._ranks = path, policy, ranks
        self._trust = trusted(trust)
        self._digests: files.Digests = {}
        self._mark = {
            "policy": f"{type(policy).__module__}.{type(policy).__qualname__}",
            "name": policy.name,
            "seed": policy.seed,
            "trials": str(trial_range(policy.trials)),
            "costs": policy.m,
            "problem": type(problem).__qualname__,
            "actions": repr(problem.actions),
        }
        self._settings = {
            "policy": settings_of(policy),
            "problem": settings_of(problem),
        }

    def exists(self) -> bool:
        """Return whether there is a file to go on from."""
        there: bool = self._ranks.first(self.path.exists)
        if not there:
            self._digests[os.path.realpath(self.path)] = ()  # nobody else may write it
        return there

    def write(self, state: State) -> None:
        """Write the run as it is now, whole or not at all.

        It is an error if another process has written the file meanwhile, and so plays
        the run too.
        """
        self._policy.lighten()
        # saved as one, so that outstanding choices stay the very objects of the policy
        content = {
            "mark": self._mark,
            "settings": self._settings,
            "policy": self._policy,
            **vars(state),
        }
        rounds = state.tape.rounds
        self._ranks.first(
            lambda: files.write(
                self.path, "simulation", content, self._digests, False, rounds
            )
        )

    def read(self, horizon: int) -> State:
        """Return the state in the file, and restore the policy from it.

        A file of another run, or of more rounds than ``horizon``, is an error that
        leaves the policy as it is.
        """
        trust = self._trust | names_in(self._policy)
        content = files.read(
            self.path, "simulation", dict, trust, self._ranks, self._digests
        )
        kinds = get_type_hints(State) | {"policy": type(self._policy)}
        kinds |= {"mark": dict, "settings": dict}
        whole = all(isinstance(content.get(name), kind) for name, kind in kinds.items())
        if not whole or content["mark"].keys() != self._mark.keys():
            raise CheckpointError(
                f"{self.path} was not read: it is not all of a simulation; {files.KEPT}"
            )
        self._check(content["mark"], content["settings"])
        state = State(content["streams"], content["tape"], content["post"])
        if state.tape.rounds > horizon:
            raise CheckpointError(
                f"{self.path} holds {state.tape.rounds} rounds, more than horizon = "
                f"{horizon}; it was kept"
            )
        vars(self._policy).clear()
        vars(self._policy).update(vars(content["policy"]))
        return state

    def _check(self, mark: dict[str, Any], settings: dict[str, Any]) -> None:
        """Raise if the file is of another run, or of one built with other arguments."""
        words = [
            f"{key} is {mark[key]!r}, expected {value!r}"
            for key, value in self._mark.items()
            if mark[key] != value
        ][:1]
        if not words:
            words = [
                f"{name} holds other {before}"
                if str(before) == str(now)
                else f"{name} is {before}, expected {now}"
                for name, before, now in differences(settings, self._settings)
            ]
        if not words:
            return
        more = len(words) - SHOWN
        said = ", its ".join(words[:SHOWN]) + (f", and {more} more differ" * (more > 0))
        raise CheckpointError(
            f"{self.path} belongs to another run: its {said}; give what it was begun "
            "with, or delete the file (or name another) to begin anew; it was kept"
        )
