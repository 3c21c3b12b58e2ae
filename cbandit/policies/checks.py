"""Checks of users' arguments, and of what users' own rules return.

In shapes, ``T`` counts the trials (1 without a trials axis), ``m`` the costs, ``N`` the
actions of a set and ``n`` some of them. ``batch`` and ``batch_shape`` are ``(T,)``, or
``()`` without a trials axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Actions, Finite, Names, ProductGrid, checked_index
from cbandit.beliefs.gp import GP
from cbandit.choice import Distribution
from cbandit.errors import CBanditError
from cbandit.policies.signs import names_of
from cbandit.policies.turn import Decision, Turn
from cbandit.scores import Formed

Costs = TypeVar("Costs")

COSTS_EXPECTED = "the number of costs, an int of at least 1"
TENSOR_VERSION = attrgetter("_version")

_COSTS_BY_NAME_HINT = (
    ". An array has all costs of a choice: where some come later or never, tell the "
    "others by name, cost={'latency': 3.1}"
)
_TELL_FAILED_HINT = ": an action that could not be measured is told with failed=True"


# -- of constructors -------------------------------------------------------------------


def array_type(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    """Return the torch dtype that a user's ``dtype`` stands for.

    ``None`` is float32 on CUDA and float64 elsewhere.
    """
    if dtype is None:
        return torch.float32 if device.type == "cuda" else torch.float64
    if isinstance(dtype, str | torch.dtype):
        for one in (torch.float32, torch.float64):
            if str(dtype).removeprefix("torch.") == str(one).removeprefix("torch."):
                return one
    raise CBanditError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")


def belief_list(costs: Any, kind: type[Any]) -> list[Any]:
    """Return a user's beliefs about costs as a list; their class must be ``kind``.

    The caller checks the class of those in a list or a mapping.
    """
    if isinstance(costs, kind):
        return [costs]
    if isinstance(costs, Mapping):
        return list(costs.values())
    # lists and tuples only: iterating over a gpytorch kernel never ends
    if not isinstance(costs, Sequence) or isinstance(costs, str):
        raise CBanditError(
            f"costs must be a cb.{kind.__name__}, or a list or a dict of them, "
            f"{{'latency': gp}}; got {checks.kind(costs)}"
        )
    if not costs:
        raise CBanditError("costs must hold at least one belief; got none")
    return list(costs)


def read_beliefs(reward: Any, costs: Any) -> tuple[list[GP], int | tuple[str, ...]]:
    """Return the beliefs, the reward's first, and the costs' number or names."""
    names = names_of(costs)
    counted = isinstance(costs, int) and not isinstance(costs, bool)
    unknown = counted or (names is not None and not isinstance(costs, Mapping))
    beliefs = [reward, *([] if costs is None or unknown else belief_list(costs, GP))]
    for j, belief in enumerate(beliefs):
        if not isinstance(belief, GP):
            label = names[j - 1] if names and j else j - 1
            name = "reward" if j == 0 else f"costs[{label!r}]"
            raise CBanditError(f"{name} must be a cb.GP; got {checks.kind(belief)}")
    if names is not None:
        return beliefs, names
    m = checks.whole("costs", costs, 1, COSTS_EXPECTED) if counted else len(beliefs) - 1
    return beliefs, m


def believed_costs(costs: Costs) -> Costs:
    """Return ``costs`` unchanged; raise an error unless they are beliefs."""
    named = isinstance(costs, Mapping)
    if costs is None or isinstance(costs, int) or (names_of(costs) and not named):
        raise CBanditError(
            "costs must be a cb.GP, a list of them, or {'latency': gp, ...}: this "
            f"policy weighs what is believed about each cost; got {costs!r}"
        )
    return costs


# -- of ask ----------------------------------------------------------------------------


def observed_costs_error(name: str, sees_costs: bool) -> CBanditError:
    """Return the error that a policy lacks ``observed_costs``, or does not take them.

    ``sees_costs`` says whether the policy ``name`` takes them.
    """
    if sees_costs:
        return CBanditError(
            f"{name} sees the costs before it chooses: give ask(observed_costs=g_t) of "
            "shape (*trials, m, N); to simulate, a problem whose round(t, generator) "
            "returns cb.Round(observed_costs=g_t)"
        )
    return CBanditError(
        f"{name} learns costs from feedback; observed_costs= goes to cb.SCGPUCB"
    )


def round_actions(actions: Any, base: Actions, batch_shape: tuple[int, ...]) -> Actions:
    """Return a user's set of one round; check it against the policy's set ``base``."""
    on: Actions
    if _are_by_name(actions):
        on = Finite(_names_of_set(base, "actions").points(actions, "actions"))
    elif isinstance(actions, Actions):
        on = actions
    else:
        with checks.about("actions"):
            on = Finite(actions)
    if on.dim != base.dim:
        raise CBanditError(
            f"actions of this round must have d = {base.dim} coordinates; got {on.dim}"
        )
    if on.batch_shape and tuple(on.batch_shape) != batch_shape:
        raise CBanditError(
            f"actions of this round have sets for {on.batch_shape[0]} trials; "
            f"this policy has trials of shape {batch_shape}"
        )
    return on


def round_mask(
    among: Any, base: Actions, batch_shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """Return a user's ``among`` as a mask over the set ``base``, ``(1 or T, N)``."""
    if base.continuous:
        raise CBanditError(f"among picks from numbered actions, and {base!r} has none")
    size, trials = base.size, batch_shape[0] if batch_shape else 1
    if isinstance(among, Mapping):
        among = _mask_by_name(among, base)
    elif _are_by_name(among):
        points = _names_of_set(base, "among").points(among, "among")
        among = base.index(points.to(base.extent())).cpu()
    if isinstance(among, str):
        raise CBanditError(
            "among must be a mask, action numbers, or values by name, "
            f"{{{among!r}: [...]}}; got str"
        )
    # check it where it is, mostly the host, so as not to wait for a device
    rows = checks.tensor("among", among, None)
    if rows.dim() not in (1, 2) or (rows.dim() == 2 and len(rows) not in (1, trials)):
        raise CBanditError(
            f"among must have shape (N,), (k,), (*trials, N) or (*trials, k) with "
            f"N = {size} and trials = {batch_shape}; got {tuple(rows.shape)}"
        )
    rows = rows if rows.dim() == 2 else rows.unsqueeze(0)
    if rows.dtype == torch.bool:
        if rows.shape[-1] != size:
            raise CBanditError(
                f"among, a mask, must cover all {size} actions; got {rows.shape[-1]}"
            )
        some, mask = bool(rows.any(-1).all()), devices.put(rows, device)
    else:
        with checks.about("among"):
            checked_index(rows, size, rows.device)
        if rows.shape[-1] == size > 1 and bool((rows <= 1).all()):
            raise CBanditError(
                f"among holds {size} whole numbers, 0 and 1 only, and there are {size} "
                "actions: is it a mask, or action numbers? Give a mask as booleans, "
                "torch.as_tensor(among).bool(); give action numbers once each, or "
                "leave among out for all actions"
            )
        some = rows.shape[-1] > 0
        mask = torch.zeros(len(rows), size, dtype=torch.bool, device=device)
        mask.scatter_(-1, devices.put(rows.long(), device), True)
    if not some:
        raise CBanditError("among must leave at least one action in every trial")
    return mask


def _mask_by_name(among: Mapping[str, Any], base: Actions) -> Tensor:
    """Return a mask ``(N,)`` of the actions with the values in ``among``."""
    allowed = _names_of_set(base, "among").allowed(among, "among")
    if isinstance(base, ProductGrid):
        axes = [axis.cpu() for axis in base.axes]
    else:
        axes = list(base.block(0, base.size).cpu().unbind(-1))
    flags = [torch.ones(len(axis), dtype=torch.bool) for axis in axes]
    for j, values in allowed.items():
        gaps = (axes[j].unsqueeze(-1) - torch.tensor(values).to(axes[j])).abs().amin(-1)
        flags[j] = gaps <= 1e-6 * (1 + axes[j].abs())
    if not isinstance(base, ProductGrid):
        return torch.stack(flags).all(0)
    mask = flags[0]
    for flag in flags[1:]:
        mask = (mask.unsqueeze(-1) & flag).reshape(-1)
    return mask


def _are_by_name(actions: object) -> bool:
    """Return whether actions are a dict by parameter, or dicts in one or two lists."""
    for _ in range(2):  # at most a list in a list; a list may contain itself
        if isinstance(actions, list | tuple) and actions:
            actions = actions[0]
    return isinstance(actions, Mapping)


def _names_of_set(base: Actions, name: str) -> Names:
    if base.names is None:
        raise CBanditError(
            f"{name} by name needs a set with names: give the policy a cb.Space(...)"
        )
    return base.names


def read_points(base: Actions, x: ArrayLike | None, params: Any) -> Any:
    """Return a user's points, given as coordinates ``x`` or by name as ``params``."""
    if params is None:
        return x
    if x is not None:
        raise CBanditError("give x= or params=, not both")
    return _names_of_set(base, "params").points(params)


# -- of tell and observe ---------------------------------------------------------------


def trial_mask(where: ArrayLike, batch_shape: tuple[int, ...]) -> Tensor:
    """Return a user's ``where`` as a mask of trials, ``(T,)`` bool on the host."""
    mask = checks.tensor("where", where, None, "cpu")
    fits = tuple(mask.shape) in (batch_shape, batch_shape or (1,))
    if mask.dtype != torch.bool or not fits:
        raise CBanditError(
            f"where must be bool of shape (*trials,) = {batch_shape}; got "
            f"{mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask.reshape(-1)


def told_values(
    name: str,
    value: Any,
    count: int,
    mask: Tensor | None,
    batch: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Return a copy of a user's reward, or of ``count`` costs, ``(T, count)``.

    ``mask (T,)`` are the trials with a value; ``None``: all.
    """
    if mask is None and not batch and count == 1 and _is_single_number(value):
        number = float(value)
        if abs(number) <= checks.LARGEST[dtype]:
            return torch.full((1, 1), number, dtype=torch.float64)
    checks.no_flag(name, value)
    # check it where it is, so as not to wait for a device
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        told = checks.plain(name, value)
    else:
        told = checks.tensor(name, value, torch.float64)
    shape, size = tuple(told.shape), batch[0] if batch else 1
    advice = _COSTS_BY_NAME_HINT if count > 1 else ""
    if shape == batch and count == 1:
        out = told.reshape(size, 1)
    elif shape == (*batch, count) and (name != "reward" or not batch):
        out = told.reshape(size, count)
    else:
        wanted = "(*trials,)" if name == "reward" else "(*trials, m)"
        expected = batch if name == "reward" else (*batch, count)
        if (
            count == 1
            and name != "reward"
            and shape[:-1] == batch
            and shape[-1:] > (1,)
        ):
            k = shape[-1]
            advice = (
                f": this policy has one cost, and a choice has one number; for {k} "
                f"costs build it with costs=[gp] * {k}, or by name"
            )
            if name != "cost":
                advice = f": a choice has one number; {k} choices are told one by one"
        raise CBanditError(
            f"{name} must have shape {wanted} = {expected}; got {shape}{advice}"
        )
    # a copy, as the caller may refill the array before the policy reads it
    if mask is None:
        return checks.measured(name, out, dtype, advice or _TELL_FAILED_HINT).clone()
    # values outside of the mask may be anything, NaN included
    came = devices.put(mask, out.device).unsqueeze(-1)
    return checks.measured(name, torch.where(came, out, 0.0), dtype)


def _is_single_number(value: object) -> bool:
    """Return whether a value is one float, or a float64 tensor of one on the host."""
    if type(value) is float:
        return True
    if type(value) is not Tensor or value.dtype != torch.float64 or value.dim():
        return False
    return not (value.is_cuda or value.requires_grad)


# -- of rules --------------------------------------------------------------------------


def check_decision(
    rule: str,
    answer: object,
    turn: Turn,
    size: int,
    m: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Decision:
    """Return the decision of a user's rule as checked tensors that fit the set.

    Args:
        rule: the rule's name in errors.
        answer: what the rule returned.
        turn: the round that the rule was given.
        size: how many trials there are.
        m: how many costs there are.
        device: where the policy's tensors live.
        dtype: the dtype of the policy's actions.
    """
    if not isinstance(answer, Decision):
        raise CBanditError(f"{rule} must return a cb.Decision; got {answer!r}")
    on, mask = turn.actions, turn.mask

    def tensor_of(
        name: str, value: object, *axes: int, kind: torch.dtype | None = None
    ) -> Tensor:
        out = checks.tensor(f"{rule}: {name}", value, kind, device)
        if tuple(out.shape) != (size, *axes):
            raise CBanditError(
                f"{rule}: {name} must lead with the trials, of shape {(size, *axes)}; "
                f"got {tuple(out.shape)}"
            )
        return out

    def numbers(name: str, value: object, *axes: int) -> Tensor:
        try:
            return checked_index(tensor_of(name, value, *axes), on.size, device)
        except CBanditError as error:
            said = str(error).removeprefix("index ")
            raise CBanditError(
                said if said.startswith(rule) else f"{rule}: {name} {said}"
            ) from None

    index, x, infeasible = answer.index, answer.x, answer.infeasible
    box = bool(on.continuous)
    field, noun = ("x", "point") if box else ("index", "number")
    if getattr(answer, field) is None:
        raise CBanditError(f"{rule} must say {field}, one {noun} a trial; got None")
    if index is not None:
        index = numbers("index", index)
        allowed = mask is None or mask.expand(size, -1).gather(1, index.unsqueeze(-1))
        if not torch.as_tensor(allowed).all():
            raise CBanditError(
                f"{rule}: index must be of what among allows; got {index.tolist()}"
            )
    if x is not None:
        x = tensor_of("x", x, on.dim, kind=dtype)
        checks.finite(f"{rule}: x", x)
        x = on.inside(x, f"{rule}: x") if box else x
        if on.linear is not None and not bool(on.linear.holds(x).all()):
            raise CBanditError(
                f"{rule}: x must keep the set's limits, {on.linear.written()}"
            )
        if turn.balls is not None and bool(turn.balls.holds(x).any()):
            raise CBanditError(f"{rule}: x must not lie where an action has failed")
    if infeasible is not None:
        infeasible = tensor_of("infeasible", infeasible).bool()
    drawn, chance = answer.distribution, None
    if drawn is not None:
        if not isinstance(drawn, Distribution):
            raise CBanditError(
                f"{rule}: distribution must be a cb.Distribution; got {drawn!r}"
            )
        k = checks.tensor(f"{rule}: distribution", drawn.index).shape[-1:]
        drawn = Distribution(
            numbers("distribution.index", drawn.index, *k),
            tensor_of("distribution.probability", drawn.probability, *k),
        )
        if index is not None:
            chance = drawn.chance(index)
    score, estimate = answer.score, answer.estimate
    if score is not None:
        score = tensor_of("score", score, kind=torch.float64)
    if estimate is not None:
        estimate = tensor_of("estimate", estimate, 1 + m, kind=torch.float64)
    out = Decision(index, infeasible, drawn, x, answer.keys, score, estimate)
    return replace(out, chance=chance)


def check_probability(name: str, values: Tensor, given: object) -> Tensor:
    """Return ``values``; raise an error unless all lie between 0 and 1.

    Errors show ``given``, the user's argument.
    """
    if not bool(((values > 0) & (values < 1)).all()):
        cent, hint = float(values.max()), ""
        if 1 < cent < 100 and values.min() > 0:
            hint = f": {cent:g} % is {name}={cent / 100:g}"
        raise CBanditError(f"{name} must lie between 0 and 1; got {given!r}{hint}")
    return values


def check_score(name: str, score: Any, weight_shape: tuple[int, int], hint: str) -> Any:
    """Return a rule's score; wrap a user's function so that its results are checked.

    The weight of a score is detached from its autograd graph.

    Args:
        name: the rule's name in errors.
        score: what the rule returned.
        weight_shape: the shape that weights of costs must have, ``(T, m)``.
        hint: a text to append to errors; may be empty.
    """
    weight = score.weight if isinstance(score, Formed) else None
    if weight is not None:
        if floating_shape(weight) == weight_shape:
            plain = not weight.requires_grad
            return score if plain else replace(score, weight=weight.detach())
        raise CBanditError(
            f"{name} must weigh costs by a tensor of shape (T, m) = {weight_shape}; "
            f"got {floating_shape(weight)}{hint}"
        )
    if isinstance(score, type) or not callable(score):
        raise CBanditError(
            f"{name} must return one of cb.scores, with its weight, or a function of "
            f"estimates f and g; got {checks.kind(score)}"
        )
    if isinstance(score, Formed):
        return score

    def form(f: Tensor, g: Tensor) -> Tensor:
        with unchanged(f"the function that {name} returned", f, g):
            try:
                values = score(f, g)
            except Exception as error:
                if not hint:
                    raise
                raise CBanditError(f"{name}: {error}{hint}") from error
        if isinstance(values, Tensor) and values.shape == f.shape:
            if values.is_floating_point():
                return values.to(f)
        raise CBanditError(
            f"the function that {name} returned must return a score for each action, "
            f"of shape (T, n) = {tuple(f.shape)}; got {floating_shape(values)}"
        )

    return form


def check_multiplier(name: str, moved: object, like: Tensor) -> Tensor:
    """Return a rule's multiplier ``moved``, detached; raise an error if it is invalid.

    ``like`` is a multiplier of the right shape.
    """
    if isinstance(moved, Tensor) and moved.shape == like.shape:
        if moved.is_floating_point():
            # a graph would grow with every round
            return moved.detach() if moved.requires_grad else moved
    raise CBanditError(
        f"{name} must return the multiplier, a tensor of shape (T, m) = "
        f"{tuple(like.shape)} of floating numbers; got {floating_shape(moved)}"
    )


class unchanged:
    """A context that raises an error if the block inside changes a tensor in place.

    Args:
        name: the name of the rule that the block calls, for the error.
        given: the tensors that the rule gets.
    """

    __slots__ = ("_given", "_name", "_versions")

    def __init__(self, name: str, *given: Tensor) -> None:
        self._name, self._given = name, given
        self._versions = list(map(TENSOR_VERSION, given))

    def __enter__(self) -> None:
        """Do nothing: the versions were read already."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and list(map(TENSOR_VERSION, self._given)) != self._versions:
            raise CBanditError(
                f"{self._name} must not change what it is given in place: "
                "x.clamp(min=0) returns a new tensor, x.clamp_(min=0) and x += 1 do not"
            )


def floating_shape(value: object) -> tuple[int, ...] | str:
    """Return the shape of a floating tensor, or words for anything else."""
    if not isinstance(value, Tensor):
        return checks.kind(value)
    floating = value.is_floating_point()
    return tuple(value.shape) if floating else f"{tuple(value.shape)} of {value.dtype}"
