"""CKB: primal-dual kernelized bandits with soft constraints.

Each round, with multipliers ``phi``, one for each cost:

1. estimates ``f_t``, ``g_t`` from the beliefs (UCB, Thompson, or one random width),
   clipped to ``[-B, B]`` and ``[-G, G]``;
2. ``x_t = argmax f_t(x) - sum_j phi_j g_tj(x)``;
3. ``phi`` moves by the estimated costs ``g_t(x_t)``, not by the observed ones;
4. observe reward and costs, update the beliefs.

Three files hold the rules that move ``phi``: :mod:`cbandit.policies.projected` and
:mod:`cbandit.policies.queue`, which are the paper's, and
:mod:`cbandit.policies.resolved` (ours), which solves for a price instead.

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022. Restarts
every ``H`` rounds: Y. Deng, X. Zhou, A. Ghosh, A. Gupta and N. B. Shroff, Interference
constrained beam alignment for time-varying channels via kernelized bandits, 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.distributed import ALONE, Ranks
from cbandit.actions import Actions, Contextual
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.checks import believed_costs
from cbandit.policies.choices import News
from cbandit.policies.concerns.restarts import epoch_start
from cbandit.policies.dual import Dual, GivenConstants, Scheduled
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import BeliefKeywords, CostBeliefs
from cbandit.policies.projected import Projected
from cbandit.policies.queue import Queue
from cbandit.policies.resolved import Resolved, check_resolved
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best
from cbandit_kernels import Look


class CKB(GPPolicy):
    """Primal-dual exploration under soft constraints.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, :class:`~cbandit.TS` or :class:`~cbandit.Rand`;
            ``cb.UCB(1.0)`` unless given. The paper's rates are for RKHS widths: with
            UCB (Theorem 1), with Rand (Theorem 2), and with TS (Theorem 2) if the best
            distribution is a single action.
        step: ``1 / V``, above 0: how much the multiplier grows in a round whose
            estimated cost is one unit above the limit. A good choice is a small
            fraction of the price at which the limit is kept, divided by the usual
            excess. A number, ``(*trials,)`` or ``(1 or *trials, m)``, one for each
            cost; ``cap``, ``slack`` and ``slater`` have these forms too. With
            ``dual="queue"`` also a callable of the round. Unless given, it is ``rho /
            (G sqrt(T))`` with ``slater``, ``clip`` and ``horizon``, and 0.5 without
            them, if all beliefs are standardised. Gradients reach ``step``, ``slack``
            and ``cap`` through :meth:`move` and :meth:`score`; what ``ask`` stores has
            none. To learn a step over rounds, unroll :mod:`cbandit.multipliers` and
            :mod:`cbandit.scores`.
        cap: ``rho``, the largest multiplier. Unless given, it is ``4 B / (slater -
            slack)`` with ``slater`` and ``clip``, and 20 without them, if all beliefs
            are standardised. The multiplier is the reward given up for a unit of cost,
            in spreads where beliefs are standardised, else in the user's units. If the
            cap is too low a price for the limit, the policy does not keep the limit.
        slack: what is added to every estimated cost in the dual step. With ``0 < slack
            <= slater / 2`` the cumulative violation is bounded, and it is zero from the
            ``T`` on at which ``slack T`` exceeds the bound without slack. May be a
            callable, as ``step``.
        clip: ``(B, G)``, bounds of reward and costs.
        horizon: ``T``, the number of rounds; asking for more is an error.
        slater: Slater's constant ``delta``: some action (or distribution) has every
            cost at least this far below its threshold.
        anytime: no horizon: epochs double in length, and the multiplier restarts at 0
            in each. Data stay, and a callable ``beta`` is given the round of the run.
            The epoch of round ``t`` has ``1 << (t.bit_length() - 1)`` rounds.
        restart: ``H``: the multiplier restarts at 0 every ``H`` rounds, and ``H`` is
            the theorem's ``T`` if ``step`` is left out. ``"adaptive"``: a trial
            restarts when its predictions fail, and ``T`` is the horizon
            (:mod:`cbandit.policies.concerns.restarts`).
        forget: with ``anytime`` or ``restart``, drop the data at every epoch too.
            Feedback that is told later enters the new beliefs, whatever round it is of.
        dual: ``"projected"``, the default except for choices with contexts, where it
            is ``"resolved"``. ``"queue"``: ``Q = [Q + g_t(x_t) + slack]_+`` with the
            score ``f_t - step Q g_t`` (``cap`` is only used to compute the step). Its
            theory is for UCB; zero violation is not proven where costs are seen at
            the action played alone (longer form, E.1).
            ``"resolved"``: the multiplier is the price at which, by this round's
            estimates, the expected cost equals the limit, corrected by the costs told
            so far; with contexts, the price over the last ``price_window`` contexts.
            The choice is a draw from ``choice.distribution``, over actions that are
            equally good at this price. With TS and Rand this is the distribution after
            the round's draw of the estimates, so it is no propensity.
            ``policy.multiplier`` is the price of the latest ``ask``. This needs a
            finite set, and ``step``, ``cap``, ``slater``, ``anytime`` and ``restart``
            are errors with it.
        dual_beta: the width of the costs' estimate in the dual step, a number,
            ``(*trials,)`` or ``(*trials, m)``. 0: the mean. -1: the mean plus one
            deviation, pessimistic. ``"score"``: the estimate in the score, as in the
            paper. Unless given, it is -1.5 if there is no ``slater`` and all beliefs
            are standardised (whatever ``step`` and ``cap`` are); else ``"score"``. With
            ``dual="resolved"`` it is the width in both price and score. Unless given
            there, it is ``"score"``; but 0 in a set with contexts if ``explore`` is
            not given either: in the first 600 requests of five streams lower bounds
            spent 2 to 40 % above the limit, means up to 3 %. Without contexts a mean
            may rule out for ever an action that looked too expensive once.
        price_window: how many of the last contexts the resolved price is solved over;
            fewer if there are many choices, as it looks at 32 768 of them at most.
        common: see below.

    Example:
        >>> import cbandit as cb, gpytorch, torch
        >>> kernel = gpytorch.kernels.RBFKernel().double()
        >>> kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
        >>> gp = cb.GP(kernel, noise=1e-2)
        >>> policy = cb.CKB(
        ...     cb.Finite(torch.linspace(0, 1, 100).double().unsqueeze(-1)),
        ...     reward=gp, costs=gp, explore=cb.UCB(2.0),
        ...     clip=(1.0, 1.0), slater=0.5, horizon=1000,
        ... )
        >>> choice = policy.ask()
        >>> policy.tell(choice, reward=0.3, cost=-0.1)
    """

    #: its multiplier moves by estimated costs alone, not by those told
    abilities = replace(
        BY_SCORE, moves=True, told_costs=False, hallucinates=True, credit=10.0
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        explore: Explore | None = None,
        step: Scheduled | None = None,
        cap: ArrayLike | None = None,
        slack: Scheduled = 0.0,
        clip: Any = None,
        horizon: int | None = None,
        slater: ArrayLike | None = None,
        anytime: bool = False,
        restart: int | str | None = None,
        forget: bool = False,
        dual: str | None = None,
        dual_beta: ArrayLike | None = None,
        price_window: int = 500,
        **common: Unpack[BeliefKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        epochs = restart
        if checks.flag("anytime", anytime):
            if restart is not None:
                raise CBanditError(
                    f"anytime=True goes without restart=; got {restart=}"
                )
            epochs = "doubling"
        if checks.flag("forget", forget) and epochs is None:
            raise CBanditError("forget=True goes with anytime=True or restart=")
        if dual is None:
            choices = isinstance(actions, Contextual) and actions.finite
            dual = "resolved" if choices else "projected"
        checks.one_of("dual", dual, "projected", "queue", "resolved")
        self._solves_price = dual == "resolved"
        super().__init__(
            actions,
            reward=reward,
            costs=believed_costs(costs),
            explore=explore,
            clip=clip,
            horizon=horizon,
            start=0.0,
            restart=epochs,
            forget=forget,
            **common,
        )
        restart_label = "" if restart is None else "Restart"
        self.name = f"CKB-{restart_label}{self.explore.name}"
        self._dual: Dual
        if dual == "resolved":
            step_settings = {"step": step, "cap": cap, "slater": slater}
            step_settings |= {"anytime": anytime, "restart": restart}
            check_resolved(self.actions, self.explore, dual_beta, **step_settings)
            if dual_beta is None:
                # optimism summed over a window is more than one round can correct
                mean = explore is None and isinstance(self.actions, Contextual)
                dual_beta = 0.0 if mean else "score"
            self._dual = Resolved.of(
                slack, dual_beta, price_window, reshape=self._cost_number
            )
        else:
            rule = Queue if dual == "queue" else Projected
            self._dual = rule.of(
                GivenConstants(
                    step,
                    cap,
                    slack,
                    slater,
                    dual_beta,
                    self._cost_parameter,
                    self._bound,
                    self._beliefs.units(),
                    self.restart or self.horizon,
                )
            )
        if self._dual.limit_refusal:
            self.refuse("limit", self._dual.limit_refusal)
        self.begin(self._now.state._replace(own=self._dual.start()))

    def _processes(self) -> Ranks:
        # the price is solved for over the whole set, in one process
        return ALONE if self._solves_price else super()._processes()

    def score(self, t: int, phi: Tensor) -> scores.PrimalDual:
        """Return the score ``f - sum_j phi_j g_j``."""
        return self._dual.score(t, phi, epoch_start(self.restart, t))

    def move(
        self, t: int, phi: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Return the multiplier moved by the estimated costs of the action played."""
        start = epoch_start(self.restart, t)
        return self._dual.move(t, phi, estimate[:, 1:], start)

    # -- what the dual changes in a round ----------------------------------------------

    def _dual_estimate(
        self, beliefs: Beliefs, look: Look, best: Best, turn: Turn
    ) -> Tensor:
        """Return the estimates ``(T, 1 + m)`` that move the multiplier."""
        return self._dual.dual_estimate(beliefs, look, best, turn)

    def _coefficient(self, state: GPState, turn: Turn) -> Tensor:
        return self._dual.coefficient(super()._coefficient(state, turn))

    def _pick(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        return self._dual.pick(self, super()._pick, state, turn)

    def _make_choice(self, turn: Turn, decision: Decision) -> Choice:
        return super()._make_choice(turn, self._dual.complete(decision))

    def _next_multiplier(
        self, state: GPState, t: int, restarted: Tensor | None
    ) -> Tensor:
        return self._dual.next_multiplier(
            super()._next_multiplier(state, t, restarted), state
        )

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state after the beliefs and the dual have absorbed feedback."""
        rule_state, state = state.own, super().absorb(state, news)
        if not news.costs:
            return state
        own = self._dual.hear(rule_state, news.raw)
        return state if own is rule_state else state._replace(own=own)
