"""The only file of the tests that knows where private names live."""

import json
import os
from contextlib import contextmanager
from importlib.util import find_spec
from unittest import mock

import torch

from cbandit import policies
from cbandit._core import checkpoint, files, randomness
from cbandit._core.arguments import differences, settings_of
from cbandit._core.checkpoint import read, write
from cbandit._core.files import file_digest
from cbandit._core.names import CLASSES, FUNCTIONS
from cbandit._core.packed import packed, unpacked
from cbandit._core.peaks import SHORT, argmax, best_place, ranked
from cbandit._core.randomness import BLOCK, Streams, _seed, trial_range
from cbandit._core.threads import on_one_thread, threads_for
from cbandit.actions import (
    Actions,
    Box,
    Finite,
    ProductGrid,
    Star,
    middle,
    spread_points,
)
from cbandit.baselines import safe_set
from cbandit.baselines.admmbo import feasible_improvement, improvement
from cbandit.choice import Choice, Distribution
from cbandit.cli import main
from cbandit.confidence.drift import change_detected
from cbandit.experiments import results
from cbandit.experiments.catalogue import EXPERIMENTS, find, jobs_in, jobs_of, kept_in
from cbandit.experiments.compare import Comparison, in_latex
from cbandit.experiments.doubts import doubts
from cbandit.experiments.experiment import Task
from cbandit.experiments.figures import Outcome, draw_together
from cbandit.experiments.figures import comparison_title as compared_title
from cbandit.experiments.intervals import holm, interval
from cbandit.experiments.named import Home
from cbandit.experiments.papers.routing import PRICES, ParetoRouter
from cbandit.experiments.report import lines, number
from cbandit.experiments.results import (
    read_boxes,
    read_curves,
    read_rounds,
    read_summary,
    soft_violation_over,
    write_rounds,
)
from cbandit.experiments.runner import carry_out
from cbandit.experiments.settings import SEAL, Settings, read_toml, versions
from cbandit.experiments.study import expanded
from cbandit.experiments.study_beliefs import belief
from cbandit.experiments.tables import read_table
from cbandit.explore import TS, clip, estimates
from cbandit.policies import gp as gp_policy
from cbandit.policies import keywords, opb
from cbandit.policies.concerns import kept_limits as status_rules
from cbandit.policies.concerns.contradiction import Contradictions
from cbandit.policies.concerns.failure_belief import FailureBelief
from cbandit.policies.concerns.failure_list import FailedActions, FailureList
from cbandit.policies.concerns.share import Share
from cbandit.policies.safe import classes
from cbandit.policies.safe.mixtures import best_mixture
from cbandit.policies.turn import Turn
from cbandit.posterior import digits, pending
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.covariance import (
    Covariance,
    Prior,
    load_trial,
    one_a_trial,
    trial_of,
)
from cbandit.posterior.draws import lots
from cbandit.posterior.draws.roots import Root, pivoted_root, prior_root
from cbandit.posterior.engines import choice as engine_choice
from cbandit.posterior.engines.joint import Joint
from cbandit.posterior.engines.protocol import Dictionary, Engine, Plan
from cbandit.posterior.engines.swept import Swept
from cbandit.posterior.gradients import Closed
from cbandit.posterior.group import Group
from cbandit.posterior.history import SPARE
from cbandit.posterior.likelihood import (
    VAGUE,
    Learning,
    Merged,
    average,
    merged,
    negative_log_likelihood,
    spread,
)
from cbandit.posterior.links import Link, posterior_moments
from cbandit.posterior.log import Log, Observation, Step, Update
from cbandit.posterior.look import (
    Best,
    Block,
    Running,
    among,
    estimated,
    maximise,
    scan,
    scorer,
)
from cbandit.posterior.pending import Ahead, Coming
from cbandit.posterior.refit import General, fit_hyperparameters, shortest_scales
from cbandit.posterior.ridge import Ridge
from cbandit.posterior.rows.kronecker import Kronecker
from cbandit.posterior.rows.protocol import Rows
from cbandit.posterior.rows.recomputed import Recomputed
from cbandit.posterior.rows.stored import Stored
from cbandit.posterior.stacked import Stacked
from cbandit.posterior.system import ROOM, System
from cbandit.posterior.tally import Tally
from cbandit.posterior.units import (
    all_outcomes,
    level,
    no_outcomes,
    spreads_of,
    told,
)
from cbandit.posterior.units import told as in_users_units
from cbandit.problems import data
from cbandit.problems.classifiers import pictures
from cbandit.problems.gridded import poisson
from cbandit.problems.language_models import requests
from cbandit.problems.protocol import delays_of
from cbandit.search import box as box_search
from cbandit.search.box import (
    CANDIDATES,
    Climbs,
    apart,
    around,
    best_feasible_point,
    candidates,
    maximise_box,
    rows_to_try,
    zoomed,
)
from cbandit.search.climb import again, climb
from cbandit.search.conic import SafePolicies
from cbandit.search.segments import furthest
from cbandit.search.simplex import hull, lp
from cbandit.search.simplex.lp import solve_policy, solve_policy_by_pricing
from cbandit.search.simplex.window import resolve, resolve_row
from cbandit.simulation.curves import Curve, exponent
from cbandit.simulation.loop import simulate
from cbandit.simulation.run import Run, join
from cbandit.simulation.tape import Tape
from cbandit_kernels import Look
from cbandit_kernels.scores import score_ref


def forge(path, kind, body):
    """Write a file with the header of a checkpoint, and whatever body."""
    name = b"%s 0" % kind.encode()
    first = (checkpoint._NAME, checkpoint.FORMAT, name, files.digest(name, body))
    path.write_bytes(b"%s%d %s %s\n" % first + body)


def write_config(settings, folder):
    """Write the settings of a results folder."""
    (folder / "config.toml").write_bytes(files.sealed(settings.toml(), *SEAL))


def seal_config(text, path):
    """Write any text as the settings of a results folder."""
    path.write_bytes(files.sealed(text, *SEAL))


def seal_summary(summary, path):
    """Write anything as the summary of a results folder."""
    text = json.dumps(summary, indent=1).removesuffix("\n}")
    path.write_bytes(files.sealed(text, *results.SEAL))


partition, shares = Actions.stretches, Actions.shares


def grid_split(grid):
    return grid.cut


def spied_passes(monkeypatch):
    """The number of arms in each pass for the best one, as passes are made."""
    seen, best = [], hull.best

    def spy(r, *rest):
        seen.append(r.shape[1])
        return best(r, *rest)

    monkeypatch.setattr(hull, "best", spy)
    return seen


def beliefs_of(policy):
    """The beliefs of a GP policy that has taken in all that it was told."""
    return settled(policy).beliefs


def settled(policy):
    """Let a policy absorb what it was told."""
    return policy._catch_up().state


def streams_of(policy):
    """The streams that the next ``ask`` draws from, where that starts."""
    policy._streams.go(policy._now.position)
    return policy._streams


def limits_of(policy, t):
    return policy.limits(t)


def step_of(ckb):
    return ckb._dual.step(1)


def slack_of(ckb):
    return ckb._dual.slack(1)


def cap_of(ckb):
    return ckb._dual.cap


def width_of(ckb):
    return ckb._dual.beta


def bound_of(policy):
    return policy._bound


def cost_noises(epochs):
    return epochs._noises[-1]


def rounds_told(epochs):
    """The rounds of which all has come, in the order of the beliefs' log."""
    (group,) = settled(epochs).beliefs.groups
    return [row.t for row in group.log]


def take_for(policy, other):
    """Let ``policy`` take the choices of ``other`` for its own."""
    policy._ledger._prefixes += other._ledger._prefixes


def missing(policy, choice):
    """Which functions a choice waits for, the reward first; a row a trial."""
    return (~policy._ledger.find(choice, policy.t).came).tolist()


def set_failures(policy, points):
    """Let all of these points of a box have failed, and nothing else."""
    (slot, _), failed = policy._concerns.find(FailureList), list(policy._now.concerns)
    failed[slot] = FailedActions(policy.actions, policy.device, ((),), (points,))
    policy._now = policy._now._replace(concerns=tuple(failed))


def failures_of(policy):
    """What a policy without a belief about failures will not ask for again."""
    return concern_of(policy, FailureList)


def now_of(policy, kind):
    """The state of a concern as the latest round left it."""
    return policy._now.concerns[policy._concerns.find(kind)[0]]


def concern_of(policy, kind):
    """The state of a concern once a policy has absorbed what it was told."""
    return policy._catch_up().concerns[policy._concerns.find(kind)[0]]


def set_multiplier(policy, multiplier):
    policy._set_state(settled(policy)._replace(moved=multiplier))


def settings_of_experiment(name, **given):
    """The settings of an experiment of the catalogue."""
    return find(name).settings(**given)


def reproduced(folder, name, resume=False, figures=False, **given):
    """Carry out an experiment of the catalogue; its summary."""
    settings = settings_of_experiment(name, **given)
    how = {"resume": resume, "figures": figures, "progress": False}
    return carry_out(find(name), settings, folder, **how)


def settings_from_toml(path, **over):
    """The settings of a file that is no sweep."""
    (job,) = jobs_in(path, **over)
    return job.settings


def belief_of(table, actions):
    """The belief that a table of a study describes."""
    return belief("file:", table, actions, Home(os.getcwd()))


def draw_panels(folders, panels=None):
    """The figure of several folders, as it is drawn together."""
    drawn = []
    for folder in folders:
        job, curves = kept_in(folder), read_curves(folder)
        drawn.append(Outcome(job.experiment, job.settings, curves, folder.name))
    kept = []
    with mock.patch(
        "cbandit.simulation.plots.save", lambda figure, _: kept.append(figure)
    ):
        draw_together(drawn, None, panels)
    return kept[0]


def after_round(t, function):
    """Call ``function`` at the end of round ``t`` of every run of this process."""
    turn = Tape.turn

    def turned(tape, *given):
        turn(tape, *given)
        if tape.rounds == t:
            function()

    Tape.turn = turned


def make_engine(name, actions, covariance, trials, functions, dtype, device):
    """An engine by its name, with the prior alone."""
    prior = Prior(actions, covariance, (trials,), dtype, device)
    return engine_choice.make_engine(Plan(name, "asked for"), prior, functions)


def make_rows(kind, actions, covariance, trials, dtype, device):
    """Kernel rows of a kind, none written."""
    return kind(Prior(actions, covariance, (trials,), dtype, device))


def passed_over(engine, stretches=None, streams=None, ahead=None):
    """The blocks of one whole pass, with what was told applied on the way."""
    actions = engine.prior.actions
    if stretches is None:
        step = engine.step or actions.size
        stretches = partition(actions, step)
    return list(engine.blocks(stretches, streams, ahead))


def only_equals_tie(monkeypatch):
    """Let no score tie with another that is close to it."""
    monkeypatch.setattr(Look, "reach", lambda look, value: value)
    monkeypatch.setattr(Running, "reach", lambda running, top: top)


def forget_oldest(policy):
    """Take the oldest observation of each group of functions out again."""
    beliefs = beliefs_of(policy)
    groups = [group.forget_oldest() for group in beliefs.groups]
    hold(policy, beliefs._with(groups))


def split(policy, functions):
    """Let some functions have an engine of their own."""
    beliefs = beliefs_of(policy)
    (group,) = beliefs.groups
    hold(policy, beliefs._with(group.split(functions)))


def epochs(policy):
    """The first round of each trial's epoch, where restarts are adaptive."""
    epoch = policy._now.state.epoch
    return [epoch] * policy.size if isinstance(epoch, int) else epoch[:, 0].tolist()


def torn(policy):
    """Make every engine stand for no log, as a call that broke off leaves it."""
    tear(beliefs_of(policy))


def tear(beliefs):
    """Make the engines of some beliefs stand for no log: they are rebuilt."""
    for group in beliefs.groups:
        group.held.version = None


@contextmanager
def counted_refits():
    """A list that holds one entry for each fit of hyperparameters within it."""
    fits, real = [], Group.refit
    with mock.patch.object(
        Group, "refit", lambda group: fits.append(group) or real(group)
    ):
        yield fits


def hold(policy, beliefs):
    """Let a policy hold other beliefs."""
    policy._set_state(settled(policy)._replace(beliefs=beliefs))


def kernels():
    """The modules in which a round's passes lie, and their names there."""
    from cbandit_kernels import rounds as single
    from cbandit_kernels import whole

    yield single, ["finish_round_ref"]
    yield whole, ["finish_round_ref"]
    if find_spec("numba"):
        from cbandit_kernels._native import rounds as native

        yield native, ["finish", "product", "stored", "stream", "joint"]
    if find_spec("triton"):
        from cbandit_kernels._triton import rounds as triton

        yield triton, ["finish", "stream"]


@contextmanager
def plain_torch():
    """Rounds on the CPU without compiled loops, as where numba is not installed."""
    from cbandit_kernels import backends

    with mock.patch.object(backends, "_obstacle", return_value="a test says so"):
        yield


def pretended_device(there=True):
    """Triton's kernels are what rounds use, in its interpreter where no GPU is."""
    from cbandit_kernels import rounds

    real = rounds.on_device

    def on_device(values):
        return there and (real(values) or values.is_cpu)

    return mock.patch.object(rounds, "on_device", on_device)


def kernel_verdicts():
    """No kernel has been checked on any device; what was known returns after it."""
    from cbandit_kernels import checked

    return mock.patch.dict(checked._verdicts, clear=True)


def native_power(double):
    """The compiled power of two."""
    from cbandit_kernels._native.values import power

    return power(double)


def native_share(work, pieces, threads):
    """The compiled loops' way to share work."""
    from cbandit_kernels._native.threads import share

    share(work, pieces, threads)


def next_look(policy):
    """The look of a GP policy's next round, which is not begun."""
    now, streams = policy._catch_up(), policy._streams
    turn = Turn(now.t + 1, policy.actions, None, None, streams, policy._ledger)
    turn = turn._replace(limits=policy.limits(turn.t))
    state = policy._open_round(now.state, turn)
    turn = turn._replace(beliefs=state.beliefs)
    return policy._make_look(state, policy._concerns.open_turn(now.concerns, turn)[1])


def linear_scales(policy, t):
    """A linear policy's widths in round ``t``, and scales of ``V_r`` and ``V_c``."""
    state, linear = settled(policy), policy._linear
    ratio = state.safe.gap_ratio(policy.limits(t))
    return linear.width(t, state), linear.scale(t, state, policy._factors, ratio)


def solutions_of(module, monkeypatch):
    """A list that takes every solution of a rule's linear programme from now on."""
    solved = []
    for name in ("solve_policy", "solve_policy_in_blocks"):
        if solve := getattr(module, name, None):
            monkeypatch.setattr(
                module, name, lambda *a, s=solve: solved.append(s(*a)) or solved[-1]
            )
    return solved


def safe_of(policy):
    """The safe action of a policy, as far as its user knows it."""
    return policy._safe


def count_singly(monkeypatch):
    """Let no open choices be joined, however many and alike they are."""
    monkeypatch.setattr(pending, "CROWD", 10**9)


def check_every(monkeypatch, changes):
    """Let engines in float64 compare their arrays with a solve so often."""
    limits = digits.LIMITS[torch.float64]._replace(first=changes, every=changes)
    monkeypatch.setitem(digits.LIMITS, torch.float64, limits)


def hold_no_arms(monkeypatch):
    """Let no programme over blocks keep its bounds: all are priced."""
    monkeypatch.setattr(lp, "HELD", 0)


def chunk_distances(monkeypatch, chunk, kept):
    """Set how many distances between actions are made at once, and kept."""
    monkeypatch.setattr(safe_set, "CHUNK", chunk)
    monkeypatch.setattr(safe_set, "KEPT", kept)


def set_light(monkeypatch, size):
    """Let checkpoints leave out arrays above ``size`` bytes."""
    monkeypatch.setattr(gp_policy, "MAX_SAVED_BYTES", size)


def renumbered(choice, t):
    """A choice of the same policy that claims to be of round ``t``."""
    name = f"{choice.id.rpartition('-')[0]}-{t}"
    return Choice(t, choice.index, choice.x, choice.infeasible, id=name)
