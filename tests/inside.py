"""The only file of the tests that knows where private names live."""

from cbandit._core import checkpoint, randomness
from cbandit._core.arguments import differences, settings_of
from cbandit._core.checkpoint import read, write
from cbandit._core.randomness import BLOCK, Streams, _seed, trial_range
from cbandit.actions import Box, Finite, ProductGrid, Star
from cbandit.actions.partition import grid_split, partition, shares
from cbandit.baselines.admmbo import feasible_improvement, improvement
from cbandit.beliefs.feedback import drift_allowance
from cbandit.beliefs.linear import Ridge
from cbandit.bench import box, case, feedback, gpu, linear, peers, report, round, trials
from cbandit.choice import Choice, Distribution
from cbandit.cli import main
from cbandit.experiments import catalogue, results
from cbandit.experiments import runner as experiments
from cbandit.experiments.catalogue import EXPERIMENTS, Task
from cbandit.experiments.results import _over, versions
from cbandit.experiments.runner import carry_out
from cbandit.experiments.settings import Settings, settings_from_toml
from cbandit.explore import TS, estimates
from cbandit.posterior.beliefs import Surrogates
from cbandit.posterior.covariance import Covariance
from cbandit.posterior.draws.paths import Root
from cbandit.posterior.engines.choice import make_engine
from cbandit.posterior.engines.joint import Joint
from cbandit.posterior.engines.swept import Rows
from cbandit.posterior.history import SPARE
from cbandit.posterior.refit import negative_log_likelihood
from cbandit.posterior.rows.operators import FactorRows, _Finishing
from cbandit.posterior.stacked import Stacked
from cbandit.posterior.system import ROOM, System
from cbandit.problems.gridded import poisson
from cbandit.problems.protocol import delays_of
from cbandit.search.box import Climbs, best_feasible_point, maximise_box
from cbandit.search.climb import climb
from cbandit.search.finite import SHORT, maximise
from cbandit.search.peaks import argmax
from cbandit.search.simplex import lp
from cbandit.search.simplex.lp import (
    best_policy,
    solve_policy,
    solve_policy_by_pricing,
)
from cbandit.simulation.loop import simulate
from cbandit.simulation.run import Curve, Run, exponent, join


def native_power(double):
    """The compiled power of two."""
    from cbandit_kernels._native.values import power

    return power(double)


def native_share(work, pieces, threads):
    """The compiled loops' way to share work."""
    from cbandit_kernels._native.threads import share

    share(work, pieces, threads)
