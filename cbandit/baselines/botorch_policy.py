"""Any BoTorch acquisition function as a policy, in the same loop and account.

In every round and trial, build the acquisition function from a BoTorch model of the
beliefs, and play its maximiser: over a finite set in chunks of candidates, on a box by
``optimize_acqf`` (with choices ``optimize_acqf_mixed``, which searches once for every
row). Before there are data, actions are drawn uniformly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor
from torch.quasirandom import SobolEngine

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.peaks import CLOSE, best_place
from cbandit.actions import Actions, Box
from cbandit.baselines.random import clear, together
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.abilities import OWN_RULE
from cbandit.policies.balls import RADIUS, Balls
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.model_list_gp_regression import ModelListGP

CHUNK = 1024
DIRECTIONS = 64  # how many directions are tried around a failed point
REFUSES = {
    "Delayed": "tell what is late when it comes",
    "hallucinate": "give the acquisition function X_pending, from policy.outstanding",
    "explore_share": "its search draws numbers, so that no choice has a known chance",
}


class BoTorchPolicy(GPPolicy):
    """Play the ``argmax`` of a BoTorch acquisition function.

    Args:
        actions: a finite set, a product grid or a :class:`~cbandit.Box`.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them, or ``None``.
        make_acquisition: ``(model, policy) -> AcquisitionFunction``, called every round
            and trial. ``model`` is a ``ModelListGP`` for the trial ``policy.trial``
            (counted within the batch), without a batch, reward first and then costs, in
            the user's units (thresholds are not subtracted). Its sign is turned for a
            reward to minimise and for a cost with a lower limit. Its training data are
            means over repeats, and its fantasies have the noise of one observation.
        initial: how many first rounds are drawn uniformly, at least 1.
        chunk: how many candidates are evaluated at a time.
        num_restarts: an argument of ``optimize_acqf``, on a box.
        raw_samples: an argument of ``optimize_acqf``, on a box.
        name: the policy's name in results.
        common: see below. Outstanding choices, if
            any, go to the acquisition function as ``X_pending``: ``torch.stack([c.x for
            c in policy.outstanding])``, of ``c.x[policy.trial]`` with trials.

    Random draws within BoTorch are seeded by the policy's draws, trial by trial.

    Example:
        >>> import cbandit as cb, torch
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> def improvement(model, policy):
        ...     model = model.models[0]
        ...     return LogExpectedImprovement(model, model.train_targets.max())
        >>> actions = cb.Finite(torch.linspace(0, 1, 100).double().unsqueeze(-1))
        >>> policy = cb.baselines.BoTorchPolicy(
        ...     actions, reward=cb.GP.default(actions), make_acquisition=improvement
        ... )
        >>> policy.tell(policy.ask(), reward=0.3)
    """

    abilities = replace(OWN_RULE, categories=False, refuses=REFUSES)

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs | None = None,
        make_acquisition: Callable[[ModelListGP, BoTorchPolicy], AcquisitionFunction],
        initial: int = 1,
        chunk: int = CHUNK,
        num_restarts: int = 8,
        raw_samples: int = 128,
        name: str = "BoTorch",
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        if not callable(make_acquisition):
            raise CBanditError(
                "make_acquisition must be a callable (model, policy) -> acquisition "
                f"function; got {make_acquisition!r}"
            )
        positive = 1, "a positive int"
        self.initial = checks.whole("initial", initial, *positive)
        self.chunk = checks.whole("chunk", chunk, *positive)
        self.num_restarts = checks.whole("num_restarts", num_restarts, *positive)
        self.raw_samples = checks.whole("raw_samples", raw_samples, *positive)
        if not isinstance(name, str):
            raise CBanditError(f"name must be a str; got {name!r}")
        means = UCB(0.0)
        super().__init__(actions, reward=reward, costs=costs, explore=means, **common)
        self._make, self.name = make_acquisition, name
        self.trial = 0

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return the action of greatest acquisition value in every trial."""
        on, mask = turn.actions, turn.mask
        count = on.dim if on.continuous else 1
        draws = turn.streams.uniform(1 + count).reshape(self.size, -1)
        best, known = [], state.beliefs.has_data().all(-1)
        for trial in range(self.size):
            if turn.t <= self.initial or not known[trial]:
                share = draws[trial, 1:].to(self.device)
                best.append(clear(turn, trial, share))
                continue
            allowed = None if mask is None else mask[trial % len(mask)]
            seed = int(draws[trial, 0] * 2**31)
            best.append(self._best(state.beliefs, trial, turn, allowed, seed))
        return together(turn, best, self.dtype), state

    def _best(
        self,
        beliefs: Beliefs,
        trial: int,
        turn: Turn,
        allowed: Tensor | None,
        seed: int,
    ) -> Tensor:
        """Return the point or the number of the greatest value in one trial."""
        from botorch.utils.sampling import manual_seed

        from cbandit.posterior.botorch import model_list

        self.trial = trial
        with manual_seed(seed), warnings.catch_warnings():
            # joint covariances at tried points are singular; BoTorch's jitter handles
            # them
            warnings.simplefilter("ignore", NumericalWarning)
            acquisition = self._make(model_list(beliefs, trial), self)
            if not callable(acquisition):
                raise CBanditError(
                    "make_acquisition must return a BoTorch acquisition function; got "
                    f"{acquisition!r}"
                )
            if turn.actions.continuous:
                return best_on_box(
                    acquisition, turn, trial, self.num_restarts, self.raw_samples
                )
            return self._listed(acquisition, trial, turn.actions, allowed)

    def _listed(
        self,
        acquisition: AcquisitionFunction,
        trial: int,
        actions: Actions,
        allowed: Tensor | None,
    ) -> Tensor:
        values = []
        for start in range(0, actions.size, self.chunk):
            stop = min(start + self.chunk, actions.size)
            x = actions.block(start, stop).double()
            x = x if x.dim() == 2 else x[trial]
            with torch.no_grad():
                value = acquisition(x.unsqueeze(1)).reshape(-1)
            if bool(value.isnan().any()):
                raise CBanditError(
                    "make_acquisition: the acquisition function is NaN at "
                    f"{x[value.isnan()][0].tolist()}"
                )
            if allowed is not None:
                value = value.masked_fill(~allowed[start:stop], -math.inf)
            values.append(value)
        whole = torch.cat(values)
        if bool(whole.isneginf().all()):
            raise CBanditError(
                "make_acquisition: the acquisition function is minus infinity at all "
                "allowed actions"
            )
        return _best(whole)


#: the random walk that starts BoTorch's search within linear limits; by default it
#: takes ten thousand steps, which is most of the time of a round
WALK = {"n_burnin": 500, "n_thinning": 8}


def best_on_box(
    acquisition: AcquisitionFunction,
    turn: Turn,
    trial: int,
    restarts: int,
    samples: int,
) -> Tensor:
    """Return the point ``(d,)`` of greatest acquisition value that BoTorch finds."""
    from botorch.optim.optimize import optimize_acqf, optimize_acqf_mixed

    box: Box = turn.actions
    options: Any = {
        "bounds": box.bounds.double(),
        "q": 1,
        "num_restarts": restarts,
        "raw_samples": samples,
    }
    polytope = box.polytope
    if polytope is not None:
        options["inequality_constraints"] = polytope.in_botorch_form()
        options["options"] = WALK
    if box.playable is None:
        x, _ = optimize_acqf(acquisition, **options)
    else:
        left = box.playable
        if polytope is not None:
            left = left[polytope.have_room(left)]
        rows = [_fixed(box, row) for row in left.tolist()]
        x, _ = optimize_acqf_mixed(acquisition, fixed_features_list=rows, **options)
    point = x[0] if polytope is None else box.nearest(x[0]).double()
    if turn.balls is None:
        return point
    return _outside_balls(acquisition, box, turn.balls.of_trial(trial), point)


def _fixed(box: Box, row: list[float]) -> dict[int, float]:
    """Return the coordinates fixed by one row of a box's choices."""
    return dict(enumerate(row, start=box.dim - len(row)))


def _outside_balls(
    acquisition: AcquisitionFunction, box: Box, balls: Balls, best: Tensor
) -> Tensor:
    """Return ``best (d,)``, or if it has failed the best of some points around it."""
    if not bool(balls.holds(best.unsqueeze(0))):
        return best
    even = SobolEngine(box.dim).draw(DIRECTIONS, dtype=torch.float64).to(best.device)
    away = ((2 * even - 1) * box.free).unsqueeze(1)
    away = away / away.norm(dim=-1, keepdim=True).clamp_min(1e-9)
    far = (1.01 * RADIUS * 2.0 ** torch.arange(10)).to(away).unsqueeze(-1)
    z = (box.unit.of(best) + far * away).clamp(0, 1).reshape(-1, box.dim)
    x = box.nearest(box.unit.point(z))
    x = x[~balls(box.unit.of(x).unsqueeze(0))[0]]
    if not len(x):
        raise CBanditError("nothing is left to ask for: all around has failed")
    with torch.no_grad():
        return x[_best(acquisition(x.unsqueeze(1)).reshape(-1))]


def _best(value: Tensor) -> Tensor:
    """Return the first place of the greatest value in ``(n,)``, up to a tolerance.

    An acquisition function has no known unit, so the tolerance is a share of the
    range of its values.
    """
    finite = value[value.isfinite()]
    spread = finite.amax() - finite.amin() if len(finite) else value.new_zeros(())
    return best_place(value.unsqueeze(0), CLOSE * spread).squeeze(0)
