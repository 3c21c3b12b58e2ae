"""The problem as the loop sees it: its answers are checked and made tensors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from cbandit import account
from cbandit._core import checks
from cbandit._core.randomness import Streams
from cbandit.actions import in_context_of
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.problems import optima
from cbandit.problems.protocol import NOTHING, Blockwise, Problem, Round
from cbandit.simulation.parts import Policy, objective_of


class World:
    """The problem that one policy plays, with random streams of its own for noise.

    Args:
        problem: a problem of any kind.
        policy: it says how many trials and costs there are, and whether it may see the
            costs of every action before it chooses.
        streams: the random streams of the noise.
    """

    def __init__(self, problem: Problem, policy: Policy, streams: Streams) -> None:
        self.problem, self.streams = problem, streams
        self.batch, self.m = tuple(policy.batch_shape), policy.m
        self._blocks = problem if isinstance(problem, Blockwise) else None
        #: whether the truth is asked for block by block; not once a round shows a set
        self.in_blocks = self._blocks is not None
        self._show = getattr(problem, "round", None)
        self._hides = not getattr(policy, "sees_costs", True)
        #: the problem's names, directions and limits
        self.objective = objective_of(problem, policy)

    def show(self, t: int) -> tuple[Round, dict[str, Any]]:
        """Return the round that the problem shows, and its keywords for ``ask``."""
        if self._show is None:
            return NOTHING, {}
        shown = self._show(t, self.streams)
        if not isinstance(shown, Round):
            raise CBanditError(
                "problem.round must return a cb.Round, cb.Round() where nothing is "
                f"shown; got {shown!r}"
            )
        question = shown.question()
        if self._hides:
            question.pop("observed_costs", None)
        return shown, question

    def observe(self, choice: Choice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return noisy reward ``(*trials,)`` and costs ``(*trials, m)`` of a choice.

        The third value marks the trials in which the action failed; ``None``: none.
        """
        outcome = self.problem.observe(choice, self.streams)
        if not isinstance(outcome, tuple | list) or len(outcome) not in (2, 3):
            raise CBanditError(
                "problem.observe must return a pair, reward and costs, or beside them "
                f"the trials that have failed; got {outcome!r}"
            )
        reward, cost = outcome[:2]
        failed = _failures(outcome[2], self.batch) if len(outcome) == 3 else None
        if not isinstance(reward, Tensor):
            reward = checks.tensor("the reward of problem.observe", reward)
        if not isinstance(cost, Tensor):
            cost = checks.tensor("the costs of problem.observe", cost)
        if reward.requires_grad or cost.requires_grad:
            reward, cost = reward.detach(), cost.detach()
        batch, m = self.batch, self.m
        if reward.shape != batch:
            raise CBanditError(
                f"problem.observe must return a reward of shape (*trials,) = {batch}; "
                f"got {tuple(reward.shape)}"
            )
        if cost.shape == batch:
            cost = cost.unsqueeze(-1)
        if cost.shape[:-1] != batch or (m and cost.shape[-1] != m):
            shape = f"{(*batch, m)}" if m else f"{batch} and the costs"
            raise CBanditError(
                f"problem.observe must return costs of shape (*trials, m) = {shape}, "
                f"one for each cost of the policy; got {tuple(cost.shape)}"
            )
        if choice.idle is not None:  # idle trials played nothing
            reward = reward.masked_fill(choice.idle.to(reward.device), torch.nan)
            cost = cost.masked_fill(
                choice.idle.unsqueeze(-1).to(cost.device), torch.nan
            )
            failed = None if failed is None else failed & ~choice.idle.cpu()
        if failed is not None:
            reward = reward.masked_fill(failed.to(reward.device), torch.nan)
            cost = cost.masked_fill(failed.unsqueeze(-1).to(cost.device), torch.nan)
        return reward, cost, failed

    # -- the noiseless truth ---------------------------------------------------------

    def truth(self, x: Tensor, shown: Round, t: int, m: int) -> dict[str, Tensor]:
        """Return the truth about round ``t`` at ``x``; empty :attr:`in_blocks`."""
        if self.in_blocks:
            return {}
        truth = {
            "true_rewards": self._reward(x, t),
            "true_costs": self._costs(x, t, m),
        }
        within = None
        for k, name in enumerate(optima.NAMES):
            if shown.partial and optima.of_whole_set(getattr(self.problem, name)):
                within = within or cast(Any, self.problem).within(t, shown)
                truth[name] = within[k].expand(self.batch)
            else:
                truth[name] = optima.told(self.problem, name, t, self.batch)
        return truth

    def truths(self, t: Tensor, index: Tensor | None, x: Tensor) -> dict[str, Tensor]:
        """Return the truth about rounds ``t (n,)``; empty unless :attr:`in_blocks`.

        Names as in :meth:`truth`; each value ``(*trials, n)`` or ``(*trials, n, m)``.
        """
        if self._blocks is None or not self.in_blocks:
            return {}
        truth = self._blocks.evaluate(t, index, x)
        shape = (*self.batch, len(t))
        return {
            "true_rewards": truth.reward,
            "true_costs": truth.costs,
            "optimum": truth.optimum.expand(shape),
            "stochastic_optimum": truth.stochastic_optimum.expand(shape),
        }

    def expected(self, choice: Choice, shown: Round, t: int) -> tuple[Tensor, Tensor]:
        """Return a choice's expected reward ``(*trials,)``, costs ``(*trials, m)``."""
        if choice.distribution is None:
            return self._reward(choice.x, t), self._costs(choice.x, t)
        index, probability = choice.distribution.index, choice.distribution.probability
        actions = shown.actions or self.problem.actions
        points = in_context_of(actions, index, choice.x)  # *trials x k x d
        own = all(optima.of_whole_set(getattr(self.problem, n)) for n in optima.NAMES)
        if self._blocks is not None and own:  # its optima are cheap
            truth = self._blocks.evaluate(
                torch.full(index.shape[-1:], t),
                index if shown.actions is None else None,
                points,
            )
            rewards, costs = truth.reward, truth.costs
        else:
            arms = points.unbind(-2)
            rewards = torch.stack([self._reward(x, t) for x in arms], -1)
            costs = torch.stack([self._costs(x, t) for x in arms], -2)
        weight = probability.to(rewards)
        return account.expected(weight, rewards), account.stage_cost(weight, costs)

    def _reward(self, x: Tensor, t: int) -> Tensor:
        reward = checks.tensor("problem.reward", self.problem.reward(x, t))
        return checks.shaped("problem.reward", reward, self.batch, "(*trials,)")

    def _costs(self, x: Tensor, t: int, m: int | None = None) -> Tensor:
        """Return costs ``(*trials, m)``; the axis of a single cost may be missing."""
        batch = self.batch
        costs = checks.tensor("problem.costs", self.problem.costs(x, t))
        costs = costs.unsqueeze(-1) if costs.shape == batch else costs
        count = costs.shape[-1] if m is None and costs.dim() else m or 0
        return checks.shaped("problem.costs", costs, (*batch, count), "(*trials, m)")


def _failures(marks: object, batch: tuple[int, ...]) -> Tensor | None:
    """Return a mask ``(*trials,)``, on the host, of trials whose action failed."""
    failed = checks.tensor("the failures of problem.observe", marks, None, "cpu")
    if failed.dtype != torch.bool:
        raise CBanditError(
            "problem.observe must mark trials that have failed by booleans; got "
            f"{failed.dtype}"
        )
    failed = checks.shaped("problem.observe: failed", failed, batch, "(*trials,)")
    return failed if bool(failed.any()) else None
