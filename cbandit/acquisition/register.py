"""Input constructors, by which BoTorch and Ax build these acquisition functions."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
)
from botorch.acquisition.objective import (
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.models.model import Model
from torch import Tensor

from cbandit.acquisition.models import Outputs
from cbandit.errors import CBanditError


def register(kind: type[AcquisitionFunction]) -> None:
    """Give an acquisition function its input constructor.

    The constructor takes the arguments of ``kind``. In place of ``outputs`` and
    ``thresholds`` it takes an optimisation's ``posterior_transform`` and
    ``constraints_tuple``.
    """
    if kind in ACQF_INPUT_CONSTRUCTOR_REGISTRY:  # to register it again is an error
        return

    def inputs(
        model: Model,
        outputs: Outputs | None = None,
        thresholds: object = None,
        posterior_transform: PosteriorTransform | None = None,
        constraints_tuple: tuple[Tensor, Tensor] | None = None,
        **arguments: object,
    ) -> dict[str, Any]:
        stated = _stated(outputs, thresholds, posterior_transform, constraints_tuple)
        return {"model": model, **arguments, **stated}

    # BoTorch looks up here which arguments are allowed
    taken, more = (inspect.signature(f).parameters for f in (kind, inputs))
    named = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in {**taken, **more, **taken}.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    inputs.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    inputs.__name__ = kind.__name__  # errors show it
    acqf_input_constructor(kind)(inputs)


def _stated(
    outputs: Outputs | None,
    thresholds: object,
    posterior_transform: PosteriorTransform | None,
    limits: tuple[Tensor, Tensor] | None,
) -> dict[str, Any]:
    """Return ``outputs`` and ``thresholds``, from the objective and the constraints.

    ``limits`` is ``(A, b)``: feasible means ``A y <= b``, and the costs are the rows of
    ``A``. Without it, outputs and thresholds are as given.
    """
    if limits is None or outputs is not None:
        if outputs is None and posterior_transform is not None:
            raise CBanditError(
                "posterior_transform does not say which outputs are the costs: give "
                "constraints_tuple, or outputs= in its place"
            )
        tau = 0.0 if thresholds is None else thresholds
        return {"outputs": outputs, "thresholds": tau}
    if thresholds is not None:
        raise CBanditError(
            "thresholds come with the optimisation's constraints here; got thresholds "
            f"= {thresholds!r} too"
        )
    if not isinstance(posterior_transform, ScalarizedPosteriorTransform):
        raise CBanditError(
            "posterior_transform must say which output is the reward, by a "
            f"ScalarizedPosteriorTransform; got {posterior_transform!r}"
        )
    weights: Any = posterior_transform.weights
    rows = torch.cat([weights.unsqueeze(0), limits[0]])
    if bool(((rows != 0).sum(-1) != 1).any()):
        raise CBanditError(
            "objective and constraints must each be on one output; got weights "
            f"{rows.tolist()}"
        )
    place = rows.abs().argmax(-1)
    factor = rows.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    pairs = list(zip(place.tolist(), factor.tolist(), strict=True))
    return {"outputs": pairs, "thresholds": limits[1].squeeze(-1)}
