"""A log: what was chosen, with which probabilities, and what came of it.

Another policy can be judged from a log if every choice that it would make had some
chance in the rounds logged (``evaluation``). Shapes: ``n`` rounds, ``K`` choices.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cbandit._core import checks
from cbandit._core.files import atomic
from cbandit._core.hints import hinted, near
from cbandit.actions import Actions
from cbandit.errors import CBanditError, CheckpointError, MissingExtraError
from cbandit.receipt.bets import Array

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-6  # by which the probabilities of a round may miss 1
ABOUT, DIGEST = b"cbandit.log", b"cbandit.digest"  # keys in a file's metadata
PARQUET_HINT = "a log's file takes pyarrow: pip install 'cbandit[experiments]'"


@dataclass(frozen=True, eq=False)
class Log:
    """Rounds of a policy or of another system, a row each.

    ``policy.log()`` returns one, :meth:`from_frame` reads one from a table.

    Args:
        actions: the ``K`` choices in the order of their numbers: labels, or dicts of
            parameters.
        action: the number of the choice played, ``(n,)``.
        contexts: what the world showed before each choice, a column a number or
            category; ``None``: nothing.
        distribution: the probability of every choice in that round, ``(n, K)``. A row
            of NaN: the rule was deterministic. NaN but for the choice played: the other
            probabilities are not known.
        outcomes: the reward, then the costs, in the user's names, units and senses; NaN
            where they were not told.
        limits: of the costs, by name: ``{"latency": "<= 20"}``.
        ranges: what outcomes cannot leave, by name: ``{"latency": (0, 200)}``.
        maximise: whether the reward is to be large.

    Example:
        >>> import cbandit as cb, numpy as np, pandas as pd
        >>> log = cb.Log(
        ...     actions=("small", "large"), action=np.array([0, 1, 0]), contexts=None,
        ...     distribution=np.array([[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]]),
        ...     outcomes=pd.DataFrame({"right": [1, 1, 0], "ms": [8.0, 31.0, 7.0]}),
        ...     limits={"ms": "<= 20"}, ranges={"right": (0, 1), "ms": (0, 100)},
        ... )
        >>> log.propensity
        array([0.9, 0.1, 0.5])
        >>> len(log[1:])
        2
    """

    actions: tuple[Any, ...]
    action: NDArray[np.int64]
    contexts: pd.DataFrame | None
    distribution: Array
    outcomes: pd.DataFrame
    limits: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]
    maximise: bool = True

    def __post_init__(self) -> None:
        actions, outcomes = _read_actions(self.actions), _read_outcomes(self.outcomes)
        columns: list[Any] = list(outcomes)
        n, size = len(outcomes), len(actions)
        action = _read_numbers(self.action, n, size)
        check_names("limits", self.limits, columns)
        vars(self).update(
            actions=actions,
            action=action,
            contexts=_read_contexts(self.contexts, n),
            distribution=_read_distribution(self.distribution, action, size),
            outcomes=outcomes,
            limits=dict(self.limits),
            ranges=read_ranges(self.ranges, columns),
            maximise=checks.flag("maximise", self.maximise),
        )

    @property
    def propensity(self) -> Array:
        """The probability of the choice played, ``(n,)``; NaN: deterministic."""
        return np.asarray(self.distribution[np.arange(len(self)), self.action])

    @property
    def choices(self) -> list[Any]:
        """The choices played, one a round, as they stand in ``actions``."""
        return [self.actions[i] for i in self.action]

    @property
    def names(self) -> list[str]:
        """The names of the outcomes, the reward first."""
        return list(self.outcomes.columns)

    @property
    def reward(self) -> str:
        """The name of the reward."""
        return self.names[0]

    @property
    def costs(self) -> tuple[str, ...]:
        """The names of the costs."""
        return tuple(self.names[1:])

    def number(self, choice: object) -> int | None:
        """Return the number of a choice; ``None``: it is not one of ``actions``."""
        return self._numbers.get(key_of(choice))

    @cached_property
    def _numbers(self) -> dict[Hashable, int]:
        return {key_of(each): i for i, each in enumerate(self.actions)}

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Log:
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.ndim != 1:
                raise CBanditError(
                    "a log is indexed by a slice, log[:100], a mask (n,) or numbers of "
                    f"rounds; got {rows.ndim} axes"
                )
        return replace(
            self,
            action=self.action[rows],
            contexts=None if self.contexts is None else self.contexts.iloc[rows],
            distribution=self.distribution[rows],
            outcomes=self.outcomes.iloc[rows],
        )

    # -- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to ``path`` as parquet, whole or not at all.

        It takes pyarrow. :meth:`load` reads it back.
        """
        pyarrow, parquet = _parquet()
        contexts: dict[str, Any] = {}
        as_text = []
        if self.contexts is not None:
            for name, column in self.contexts.items():
                # a category may mix texts, numbers and None
                contexts[f"context {name}"] = column
                if column.dtype == object:
                    as_text.append(name)
                    texts = [json.dumps(value) for value in column]
                    contexts[f"context {name}"] = texts
        columns = {
            "action": self.action,
            **{f"p{k}": p for k, p in enumerate(self.distribution.T)},
            **contexts,
            **{f"outcome {name}": column for name, column in self.outcomes.items()},
        }
        about = {
            "actions": self.actions,
            "contexts": None if self.contexts is None else list(self.contexts),
            "as_text": as_text,
            "outcomes": list(self.outcomes),
            "limits": self.limits,
            "ranges": self.ranges,
            "maximise": self.maximise,
        }
        try:
            text = json.dumps(about).encode()
        except TypeError as error:
            raise CBanditError(
                "a log is saved if its actions are texts, numbers, truth values and "
                f"dicts of these: {error}"
            ) from None
        table = pyarrow.table({k: pyarrow.array(v) for k, v in columns.items()})
        digest = hashlib.sha256(text).hexdigest().encode()
        table = table.replace_schema_metadata({ABOUT: text, DIGEST: digest})
        with atomic(checks.path("path", path)) as file:
            parquet.write_table(table, file, write_page_checksum=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Log:
        """Read a log that :meth:`save` wrote; a broken file is an error."""
        import pandas as pd

        pyarrow, parquet = _parquet()
        path = checks.path("path", path)
        try:
            table = parquet.read_table(path, page_checksum_verification=True)
        except FileNotFoundError:
            raise CBanditError(f"there is no log {path}") from None
        except (OSError, pyarrow.ArrowException) as error:
            raise CheckpointError(f"{path} is no log, or broken: {error}") from None
        meta = table.schema.metadata or {}
        text = meta.get(ABOUT, b"")
        if meta.get(DIGEST, b"").decode() != hashlib.sha256(text).hexdigest():
            raise CheckpointError(f"{path} was not written by cb.Log.save, or broken")
        about = json.loads(text)
        frame = table.to_pandas()
        contexts = about["contexts"]
        if contexts is not None:
            shown = {name: frame[f"context {name}"] for name in contexts}
            for name in about["as_text"]:
                values = np.empty(len(frame), dtype=object)
                values[:] = [json.loads(value) for value in shown[name]]
                shown[name] = pd.Series(values)
            contexts = pd.DataFrame(shown, index=frame.index)
        outcomes = {name: frame[f"outcome {name}"] for name in about["outcomes"]}
        shares = [frame[f"p{k}"] for k in range(len(about["actions"]))]
        return cls(
            actions=tuple(about["actions"]),
            action=frame["action"].to_numpy(),
            contexts=contexts,
            distribution=np.stack(shares, -1),
            outcomes=pd.DataFrame(outcomes, index=frame.index),
            limits=about["limits"],
            ranges={name: (low, high) for name, (low, high) in about["ranges"].items()},
            maximise=about["maximise"],
        )

    @classmethod
    @hinted
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        action: str | Sequence[str],
        propensity: str | Mapping[Any, str] | Sequence[str] | None,
        reward: str,
        costs: Sequence[str] = (),
        contexts: Sequence[str] = (),
        actions: Sequence[Any] | None = None,
        limits: Mapping[str, str] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        maximise: bool = True,
    ) -> Log:
        """Return the log of another system, from a table with a row for each round.

        Where the probabilities of all choices were stored, name all their columns:
        bounds are then narrower. Many systems store that of the choice played alone.
        The data of Open Bandit are of this form: ``action="item_id"``,
        ``propensity="propensity_score"``, ``reward="click"``, ``contexts=["position",
        "user_feature_0", ...]``, ``actions=range(80)``, ``ranges={"click": (0, 1)}``.

        Args:
            frame: a pandas frame.
            action: the column of the choice played; several columns are its parameters.
            propensity: the column of the probability with which it was drawn, NaN where
                nothing was drawn; or the columns of the probabilities of all choices,
                in the order of ``actions`` or by choice. ``None``: nothing was drawn.
            reward: the column of the reward.
            costs: the columns of the costs.
            contexts: the columns that were known before the choice.
            actions: all choices; ``None``: those that were played, sorted.
            limits: of the costs, ``{"latency": "<= 20"}``.
            ranges: what outcomes cannot leave, ``{"latency": (0, 200)}``.
            maximise: whether the reward is to be large.

        Example:
            >>> import cbandit as cb, pandas as pd
            >>> frame = pd.DataFrame({
            ...     "page": ["a", "b", "a"], "p": [0.7, 0.3, 0.7], "click": [0, 1, 0],
            ... })
            >>> log = cb.Log.from_frame(
            ...     frame, action="page", propensity="p", reward="click",
            ...     ranges={"click": (0, 1)},
            ... )
            >>> log.actions
            ('a', 'b')
        """
        single = isinstance(action, str)
        knobs, costs = [action] if single else list(action), list(costs)
        columns = [*knobs, reward, *costs, *contexts]
        if isinstance(propensity, Mapping):
            columns += propensity.values()
        elif propensity is not None:
            columns += [propensity] if isinstance(propensity, str) else propensity
        if missing := [name for name in columns if name not in frame]:
            meant = near(str(missing[0]), map(str, frame))
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise CBanditError(f"frame has no column {missing[0]!r}{hint}")
        played = frame[knobs].to_dict("records")
        if single:
            played = [row[action] for row in played]
        if actions is None:
            seen = {key_of(each): each for each in played}
            actions = [seen[key] for key in sorted(seen, key=_order)]
        numbers = {key_of(each): i for i, each in enumerate(actions)}
        for each in played:
            if key_of(each) not in numbers:
                raise CBanditError(
                    f"actions must hold every choice played; not {each!r}"
                )
        index = np.array([numbers[key_of(each)] for each in played], dtype=np.int64)
        shares = np.full((len(frame), len(numbers)), np.nan)
        if isinstance(propensity, str):
            shares[np.arange(len(frame)), index] = frame[propensity]
        elif propensity is not None:
            if isinstance(propensity, Mapping):
                by_key = {key_of(each): name for each, name in propensity.items()}
                if by_key.keys() != numbers.keys():
                    raise CBanditError(
                        "propensity must name a column for each of "
                        f"{list(actions)}; got {list(propensity)}"
                    )
                propensity = [by_key[key] for key in numbers]
            if len(propensity) != len(numbers):
                raise CBanditError(
                    f"propensity must name {len(numbers)} columns, one a choice; got "
                    f"{len(propensity)}"
                )
            shares = frame[list(propensity)].to_numpy(dtype=np.float64)
        return cls(
            actions=tuple(actions),
            action=index,
            contexts=frame[list(contexts)] if len(contexts) else None,
            distribution=shares,
            outcomes=frame[[reward, *costs]],
            limits=limits or {},
            ranges=ranges or {},
            maximise=maximise,
        )

    def __str__(self) -> str:
        drawn = int(np.isfinite(self.propensity).sum())
        parts = []
        for name in self.names:
            limit = f" {self.limits[name]}" if name in self.limits else ""
            ends = ""
            if name in self.ranges:
                ends = " in [{:g}, {:g}]".format(*self.ranges[name])
            told = int(self.outcomes[name].notna().sum())
            parts.append(f"  {name}{limit}{ends}: told in {told} rounds")
        head = (
            f"{len(self)} rounds, {len(self.actions)} choices, drawn with known "
            f"probabilities in {drawn}"
        )
        return "\n".join([head, *parts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def choices_of(
    actions: Actions, numbers: NDArray[np.int64] | None = None
) -> tuple[Any, ...]:
    """Return the choices of a finite set, in order: dicts of parameters, or numbers.

    ``numbers`` are those of the choices to return; ``None``: all of them.
    """
    menu = actions.menu
    if numbers is None:
        numbers = np.arange(int(menu.size))
    if menu.names is None:
        return tuple(numbers.tolist())
    return tuple(menu.names.params(menu.points(numbers)))


def key_of(choice: object) -> Hashable:
    """Return a key that is equal for equal choices, whatever the order of a dict.

    A dict of a single parameter equals that parameter's value.
    """
    if isinstance(choice, Mapping) and len(choice) == 1:
        return key_of(*choice.values())
    if isinstance(choice, Mapping):
        return frozenset((name, key_of(value)) for name, value in choice.items())
    if isinstance(choice, np.generic):
        choice = choice.item()
    # True is not the number 1
    return (isinstance(choice, bool), choice) if isinstance(choice, Hashable) else None


def check_names(
    argument: str, named: Mapping[str, Any], columns: Sequence[str]
) -> None:
    """Raise unless every name of an argument is that of an outcome."""
    for name in named:
        if name not in columns:
            meant = near(str(name), map(str, columns))
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise CBanditError(
                f"{argument} must be of the outcomes {columns}; got {name!r}{hint}"
            )


def read_ranges(ranges: Any, columns: Sequence[Any]) -> dict[str, tuple[float, float]]:
    """Return ranges by the name of an outcome, checked."""
    if not isinstance(ranges, Mapping):
        raise CBanditError(
            f"ranges must be a dict, {{'latency': (0, 200)}}; got {checks.kind(ranges)}"
        )
    check_names("ranges", ranges, columns)
    read = {}
    for name, ends in ranges.items():
        label = f"ranges[{name!r}]"
        if not isinstance(ends, Sequence | np.ndarray) or len(ends) != 2:
            raise CBanditError(f"{label} must be a pair (low, high); got {ends!r}")
        low, high = (checks.number(label, end) for end in ends)
        if low >= high:
            raise CBanditError(f"{label}: low must be below high; got {ends!r}")
        read[name] = low, high
    return read


def _read_actions(actions: Any) -> tuple[Any, ...]:
    if isinstance(actions, str) or not isinstance(actions, Sequence):
        raise CBanditError(
            f"actions must be the choices, a tuple; got {checks.kind(actions)}"
        )
    keys = [key_of(each) for each in actions]
    if not keys or None in keys or len(set(keys)) < len(keys):
        raise CBanditError(
            "actions must be different texts, numbers, or dicts of parameters; got "
            f"{list(actions)}"
        )
    return tuple(actions)


def _read_numbers(action: Any, n: int, size: int) -> NDArray[np.int64]:
    numbers = np.array(action)
    if numbers.shape != (n,) or numbers.dtype.kind not in "iu":
        raise CBanditError(
            f"action must be whole numbers of shape (n,) = ({n},); got "
            f"{numbers.dtype} of shape {numbers.shape}"
        )
    if n and (numbers.min() < 0 or numbers.max() >= size):
        raise CBanditError(
            f"action must be from 0 to {size - 1}; got {numbers.min()} to "
            f"{numbers.max()}"
        )
    return numbers.astype(np.int64)


def _read_contexts(contexts: Any, n: int) -> pd.DataFrame | None:
    import pandas as pd

    if contexts is None:
        return None
    if not isinstance(contexts, pd.DataFrame) or len(contexts) != n:
        got = getattr(contexts, "shape", checks.kind(contexts))
        raise CBanditError(
            f"contexts must be a pandas frame of {n} rows, as outcomes are; got {got}"
        )
    return contexts.reset_index(drop=True)


def _read_distribution(
    distribution: Any, action: NDArray[np.int64], size: int
) -> Array:
    shares, n = np.array(distribution, dtype=np.float64), len(action)
    if shares.shape != (n, size):
        raise CBanditError(
            f"distribution must have shape (n, K) = {(n, size)}; got {shares.shape}"
        )
    unknown = np.isnan(shares)
    bad = ~unknown & ~((shares >= 0) & (shares <= 1 + ROUNDING))
    if bad.any():
        raise CBanditError(
            f"distribution must be of probabilities; got {shares[bad][0]}"
        )
    whole = ~unknown.any(1)
    off = whole & (np.abs(shares.sum(1) - 1) > ROUNDING)
    if off.any():
        i = int(off.argmax())
        raise CBanditError(
            f"distribution must add up to 1 in each round; it is {shares[i].sum():g} "
            f"in row {i}"
        )
    played = shares[np.arange(n), action]
    others = (~unknown).sum(1) - ~np.isnan(played)
    odd = ~whole & (others > 0)
    if odd.any():
        raise CBanditError(
            "a row of distribution must be known whole, of the choice played alone, or "
            f"not at all; row {int(odd.argmax())} is known in part"
        )
    if (played == 0).any():
        i = int((played == 0).argmax())
        raise CBanditError(
            f"distribution says 0 for the choice played in row {i}: it was played"
        )
    return shares


def _read_outcomes(outcomes: Any) -> pd.DataFrame:
    import pandas as pd

    if not isinstance(outcomes, pd.DataFrame) or not outcomes.shape[1]:
        raise CBanditError(
            "outcomes must be a pandas frame, the reward first, then costs; got "
            f"{checks.kind(outcomes)}"
        )
    if not outcomes.columns.map(str).is_unique:
        raise CBanditError(f"outcomes must have different names: {list(outcomes)}")
    try:
        numbers = outcomes.astype(np.float64).reset_index(drop=True)
        numbers.columns = numbers.columns.map(str)
    except (TypeError, ValueError) as error:
        raise CBanditError(f"outcomes must be numbers: {error}") from None
    if np.isinf(numbers.to_numpy()).any():
        raise CBanditError("outcomes must be finite, or NaN where not told; got inf")
    return numbers


def _order(key: Any) -> tuple[str, Any]:
    """Return what sorts keys of choices: numbers by size, all others as text."""
    if isinstance(key, tuple) and isinstance(key[1], int | float):
        return "", key[1]
    return "text", str(sorted(map(str, key)) if isinstance(key, frozenset) else key)


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(PARQUET_HINT) from None
    return pyarrow, parquet
