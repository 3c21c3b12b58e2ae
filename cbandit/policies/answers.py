"""Checks of what a policy's ``score`` and ``move`` answer: they may be anybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.policies.pricing import measured
from cbandit.policies.state import GPState
from cbandit.posterior.look import Score
from cbandit.scores import Formed

__all__ = ["moved", "scored"]

START = "; without start= there is no multiplier"


def scored(policy: Any, t: int, multiplier: Tensor) -> Any:
    """Return the score of round ``t``, one of the library's or a checked function."""
    name, before = f"{type(policy).__name__}.score", _versions([multiplier])
    score = policy.score(t, multiplier)
    _untouched(name, [multiplier], before)
    hint = "" if multiplier.shape[-1] or not policy.m else START
    weight = score.weight if isinstance(score, Formed) else None
    if weight is not None:
        shape, wanted = _shape(weight), (policy._size, policy.m)
        if shape == wanted:
            return score
        raise CBanditError(
            f"{name} must weigh costs by a tensor of shape (T, m) = {wanted}; got "
            f"{shape}{hint}"
        )
    if isinstance(score, type) or not callable(score):
        raise CBanditError(
            f"{name} must return one of cb.scores, with its weight, or a function of "
            f"estimates f and g; got {checks.kind(score)}"
        )
    return score if isinstance(score, Formed) else _checked(name, score, hint)


def moved(policy: Any, state: GPState, t: int) -> Tensor:
    """Return the multiplier after round ``t``, an error if ``move`` gave none."""
    old, name = state.multiplier, f"{type(policy).__name__}.move"
    arrived, _ = measured(state.beliefs, state.arrived, state.waiting)
    given = [old, state.estimate, *arrived]
    before = _versions(given)
    new = policy.move(t, old, state.estimate, arrived)
    _untouched(name, given, before)
    if isinstance(new, Tensor) and new.shape == old.shape and new.is_floating_point():
        return new
    raise CBanditError(
        f"{name} must return the multiplier, a tensor of shape (T, m) = "
        f"{tuple(old.shape)} of floating numbers; got {_shape(new)}"
    )


def _checked(name: str, score: Score, hint: str) -> Score:
    """Return a function of estimates whose answers are checked."""

    def form(f: Tensor, g: Tensor) -> Tensor:
        before = _versions([f, g])
        try:
            values = score(f, g)
        except Exception as error:
            if not hint:
                raise
            raise CBanditError(f"{name}: {error}{hint}") from error
        _untouched(f"the function that {name} returned", [f, g], before)
        floating = isinstance(values, Tensor) and values.is_floating_point()
        if floating and values.shape == f.shape:
            return values.to(f)
        raise CBanditError(
            f"the function that {name} returned must return a score for each action, "
            f"of shape (T, n) = {tuple(f.shape)}; got {_shape(values)}"
        )

    return form


def _shape(value: Any) -> Any:
    """Return a tensor's shape, and of anything else what it is."""
    if not isinstance(value, Tensor):
        return checks.kind(value)
    floating = value.is_floating_point()
    return tuple(value.shape) if floating else f"{tuple(value.shape)} of {value.dtype}"


def _versions(given: Sequence[Any]) -> list[int]:
    return [each._version for each in given]


def _untouched(name: str, given: Sequence[Any], before: list[int]) -> None:
    """Raise an error where something was changed in place since ``before``."""
    if _versions(given) != before:
        raise CBanditError(
            f"{name} must not change what it is given in place: x.clamp(min=0) returns "
            "a new tensor, x.clamp_(min=0) and x += 1 do not"
        )
