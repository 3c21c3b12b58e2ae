"""A round of CKB-UCB beside a round of what others use on the same finite set.

    cbandit bench peers [--quick]

Every contender knows the same prior, noise and observations, and chooses one action of
the set: from nothing, as its users do each round. BoTorch's acquisition functions are
not CKB's score and may choose otherwise; what is compared with a dense float64 solve is
the posterior that each of them chooses by. Where the score is CKB's, so is the choice.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbandit.bench.case import (
    BETA,
    BOUND,
    LIMIT,
    NOISE,
    Case,
    actions_of,
    case_of,
    score_of,
)
from cbandit.bench.report import check_of, result_of, row_of, say, table
from cbandit.bench.rivals import (
    Effort,
    argmax_of,
    botorch_look,
    botorch_model,
    fastest,
    hand_written,
)

__all__ = ["bench_peers", "table"]

DIM, CHUNK = 6, 2048
SAMPLES = 512  # BoTorch's own default


def bench_peers(quick: bool = False) -> dict[str, Any]:
    """Time a round beside those of other libraries; see ``cbandit bench peers``.

    Args:
        quick: fewer observations and repetitions.
    """
    rounds, distinct = (9, 50) if quick else (25, 200)
    rows = [row for size in (10**3, 10**4) for row in _section(size, distinct, rounds)]
    return result_of("peers", quick, rows)


def _section(size: int, distinct: int, rounds: int) -> list[dict[str, Any]]:
    section = (
        f"one round, {size:,} points in {DIM} dimensions, reward and cost, RBF, "
        f"u = {distinct}, float64"
    )
    say(section)
    case = case_of(actions_of("factor", size, DIM), "auto", torch.float64, distinct)
    ours = case.rounds(rounds, 5)
    compared = case.compare(torch.float64)
    name = case.policy.engine.partition(": ")[2].partition(" ")[0]
    rows = [
        row_of(section, f"cbandit, CKB-UCB, {name}", ours, checks=compared["checks"])
    ]
    for what, play, look in _peers(case, compared["phi"]):
        say(f"  {what}")
        try:
            seconds, chosen = _timed(play, rounds)
        except ImportError as error:
            rows.append(row_of(section, what, note=f"left out: no {error.name} here"))
            continue
        checks = _checked(case, look)
        if not what.startswith("BoTorch, q"):  # those score otherwise
            other = float(chosen != compared["chosen"])
            checks.append(check_of("other choice", other, 0.0))
        rows.append(row_of(section, what, seconds, ratio=seconds / ours, checks=checks))
    return rows


Look = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Means ``(2, n)`` and standard deviations ``(n,)`` or ``(2, n)`` at points."""


def _peers(
    case: Case, phi: float
) -> list[tuple[str, Callable[[], int], Callable[[], Look]]]:
    """Names, rounds (the choice), and what each would see at points."""
    points = case.actions.block(0, case.actions.size)
    effort = Effort(subset=min(2000, len(points)), chunks=(2000, 10_000), whole=False)
    hand = fastest(hand_written(case, torch.float64, effort), points, phi, effort)[0]

    def by_hand() -> int:
        return argmax_of(hand.build(), points, hand.chunk, phi)

    def botorch() -> Look:
        return botorch_look(case, torch.float64, 1, True, False)

    def by_botorch(make: Callable[[Any], Any]) -> Callable[[], int]:
        def choose() -> int:
            from botorch.optim.optimize import optimize_acqf_discrete

            acquisition = make(botorch_model(case, torch.float64, False))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                x, _ = optimize_acqf_discrete(
                    acquisition, 1, points, max_batch_size=CHUNK
                )
            return int(case.actions.index(x)[0])

        return choose

    def by_sklearn() -> int:
        return int(score_of(*_sklearn(case)(points), phi).argmax())

    return [
        (f"the same by hand: {hand.name}", by_hand, hand.build),
        ("scikit-learn, the same score", by_sklearn, lambda: _sklearn(case)),
        (
            "our PrimalDual in BoTorch's optimize_acqf_discrete",
            by_botorch(lambda model: _primal_dual(model, phi)),
            botorch,
        ),
        (
            "BoTorch, qUpperConfidenceBound of f - phi g",
            by_botorch(lambda model: _upper_bound(model, phi)),
            botorch,
        ),
        (
            "BoTorch, qLogExpectedImprovement under the constraint",
            by_botorch(lambda model: _improvement(model, case)),
            botorch,
        ),
    ]


def _primal_dual(model: Any, phi: float) -> Any:
    from cbandit.acquisition import PrimalDual

    return PrimalDual(model, BETA, phi, clip=(BOUND, BOUND))


def _upper_bound(model: Any, phi: float) -> Any:
    from botorch.acquisition.monte_carlo import qUpperConfidenceBound
    from botorch.acquisition.objective import LinearMCObjective

    weights = torch.tensor([1.0, -phi], dtype=torch.float64)
    return qUpperConfidenceBound(
        model, BETA**2, _sampler(), objective=LinearMCObjective(weights)
    )


def _improvement(model: Any, case: Case) -> Any:
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.acquisition.objective import LinearMCObjective

    _, _, mean = case.data.merged()
    feasible = mean[mean[:, 1] <= 0, 0]
    best = feasible.max() if len(feasible) else mean[:, 0].min()
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return qLogExpectedImprovement(
        model,
        best,
        _sampler(),
        objective=LinearMCObjective(weights),
        constraints=[lambda values: values[..., 1]],
    )


def _sampler() -> Any:
    from botorch.sampling.normal import SobolQMCNormalSampler

    return SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=1)


def _sklearn(case: Case) -> Look:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    index, count, mean = case.data.merged()
    x = case.actions.points(index)
    fitted = GaussianProcessRegressor(
        RBF(case.length), alpha=(NOISE / count).numpy(), optimizer=None
    ).fit(x.numpy(), mean.numpy())

    def look(points: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = fitted.predict(points.numpy(), return_std=True)
        return torch.from_numpy(mean).mT, torch.from_numpy(std).mT

    return look


def _timed(play: Callable[[], int], rounds: int) -> tuple[float, int]:
    """The median round after a first one, and its choice."""
    chosen, seconds = play(), []
    for _ in range(rounds):
        start = time.perf_counter()
        chosen = play()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), chosen


def _checked(case: Case, build: Callable[[], Look]) -> list[dict[str, Any]]:
    """What a peer sees at some actions, against the dense float64 solve."""
    points = case.actions.block(0, case.actions.size)[
        :: max(1, case.actions.size // 500)
    ]
    mean, var = case.dense().posterior(points, "triangular")
    std = var.clamp_min(0).sqrt()
    seen_mean, seen_std = build()(points)
    limit = LIMIT[torch.float64]
    return [
        check_of(f"largest difference of the {name}", float(gap.abs().max()), limit)
        for name, gap in (("mean", seen_mean - mean), ("std", seen_std - std))
    ]
