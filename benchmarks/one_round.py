"""A round of CKB-UCB beside a round of what others use on the same finite set.

    python benchmarks/one_round.py [--quick] [--json FILE]

Goal: over 10^3 and 10^4 points a round takes a small part of the time of the same
round by hand, in scikit-learn or in BoTorch. Every contender knows the same prior,
noise and observations, and chooses one action of the set: from nothing, as its users do
each round.

Each timing is the median of interleaved rounds. BoTorch's acquisition functions are not
CKB's score and may choose otherwise, so the posterior that each contender chooses by is
compared with a dense float64 solve. Where the score is CKB's, so is the choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cbandit as cb
from case import BETA, BOUND, LIMIT, NOISE, Case, case_of, points_of, score_of
from report import Row, check_of, row_of, say
from report import main as report_main
from rivals import (
    Effort,
    Looked,
    botorch_look,
    botorch_model,
    fastest,
    hand_written,
)
from timing import clocked, in_a_row, medians

DIM, CHUNK = 6, 2048
IN_A_ROW = 3  # rounds of one contender before the next one's turn
SAMPLES = 512  # BoTorch's own default


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    sets: tuple[int, ...] = (10**3, 10**4)
    distinct: int = 200
    turns: int = 9


QUICK = Sizes(distinct=50, turns=3)


class Peer(NamedTuple):
    """A way to play a round: its choice, and what it sees at points."""

    name: str
    play: Callable[[], int]
    build: Callable[[], Looked]
    alike: bool = True  # scores as CKB does


def section(size: int, sizes: Sizes) -> list[Row]:
    """All contenders over one set."""
    title = (
        f"one round, {size:,} points in {DIM} dimensions, reward and cost, RBF, "
        f"u = {sizes.distinct}, float64"
    )
    say(title)
    case = case_of(points_of(size, DIM), "auto", torch.float64, sizes.distinct)
    case.rounds(1, 5)
    compared = case.compare()
    name = case.policy.engine.partition(": ")[2].partition(" ")[0]
    rivals, absent, checks = [], [], {}
    for peer in peers(case, compared.phi):
        say(f"  {peer.name}")
        try:
            chosen = peer.play()
        except ImportError as error:
            note = f"left out: no {error.name} here"
            absent.append(row_of(title, peer.name, note=note))
            continue
        rivals.append(peer)
        checks[peer.name] = checked(case, peer.build)
        if peer.alike:
            other = float(chosen != compared.chosen)
            checks[peer.name].append(check_of("other choice", other, 0.0))
    plays = {"ours": case.round} | {each.name: clocked(each.play) for each in rivals}
    took = medians(
        {name: in_a_row(play, IN_A_ROW) for name, play in plays.items()}, sizes.turns
    )
    rows = [
        row_of(
            title,
            f"cbandit, CKB-UCB, {name}",
            took["ours"],
            ours=True,
            checks=compared.checks,
        )
    ]
    rows += [
        row_of(
            title,
            each.name,
            took[each.name],
            ratio=took[each.name] / took["ours"],
            checks=checks[each.name],
        )
        for each in rivals
    ]
    return rows + absent


def peers(case: Case, phi: float) -> list[Peer]:
    """All of them, on the observations that the case has when they play."""
    points = case.every(torch.float64)
    effort = Effort(subset=min(2000, len(points)), chunks=(2000, 10_000))
    forms = hand_written(case, torch.float64, effort)
    hand, _ = fastest(forms, points, phi, effort)

    def botorch() -> Looked:
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
            return int((points == x).all(-1).nonzero()[0])

        return choose

    def by_sklearn() -> int:
        return int(score_of(*sklearn_look(case)(points), phi).argmax())

    return [
        Peer(
            f"the same by hand: {hand.name}",
            lambda: hand.play(points, phi),
            hand.build,
        ),
        Peer("scikit-learn, the same score", by_sklearn, lambda: sklearn_look(case)),
        Peer(
            "our PrimalDual in BoTorch's optimize_acqf_discrete",
            by_botorch(lambda model: _primal_dual(model, phi)),
            botorch,
        ),
        Peer(
            "BoTorch, qUpperConfidenceBound of f - phi g",
            by_botorch(lambda model: _upper_bound(model, phi)),
            botorch,
            alike=False,
        ),
        Peer(
            "BoTorch, qLogExpectedImprovement under the constraint",
            by_botorch(lambda model: _improvement(model, case)),
            botorch,
            alike=False,
        ),
    ]


def _primal_dual(model: Any, phi: float) -> Any:
    return cb.acquisition.PrimalDual(model, BETA, phi, clip=(BOUND, BOUND))


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


def sklearn_look(case: Case) -> Looked:
    """scikit-learn's posterior, its hyperparameters known."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    index, count, mean = case.data.merged()
    x = case.points(index)
    fitted = GaussianProcessRegressor(
        RBF(case.length), alpha=(NOISE / count).numpy(), optimizer=None
    ).fit(x.numpy(), mean.numpy())

    def look(points: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = fitted.predict(points.numpy(), return_std=True)
        return torch.from_numpy(mean).mT, torch.from_numpy(std).mT

    return look


def checked(case: Case, build: Callable[[], Looked]) -> list[dict[str, Any]]:
    """Compare what a peer sees at some actions with the dense float64 solve."""
    points = case.every(torch.float64)[:: max(1, case.actions.size // 500)]
    mean, var = case.dense().posterior(points, "triangular")
    std = var.clamp_min(0).sqrt()
    seen_mean, seen_std = build()(points)
    limit = LIMIT[torch.float64]
    return [
        check_of(f"largest difference of the {name}", float(gap.abs().max()), limit)
        for name, gap in (("mean", seen_mean - mean), ("std", seen_std - std))
    ]


def measure(sizes: Sizes) -> list[Row]:
    """All rows."""
    return [row for size in sizes.sets for row in section(size, sizes)]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
