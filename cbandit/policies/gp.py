"""Policies whose beliefs are Gaussian processes over a finite set."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import checks, devices, distributed
from cbandit._core.interrupts import Held
from cbandit._core.randomness import Streams
from cbandit.actions import Box, Finite, Star
from cbandit.beliefs.feedback import Delayed, Sliding, delayed_width
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore, Rand, clip, estimates
from cbandit.policies.policy import Policy, Told, listed
from cbandit.posterior.beliefs import Ahead, Part, Surrogates, joined
from cbandit.posterior.look import Look, Scan
from cbandit.recommend import Recommendation, recommend
from cbandit.scores import Formed
from cbandit.search.box import Climbs, best_feasible_point, maximise_box
from cbandit.search.finite import Best

if TYPE_CHECKING:
    from botorch.models.model_list_gp_regression import ModelListGP

__all__ = ["GPPolicy", "Marginal", "Posterior"]

INCUMBENTS = 16  # points tried last, which a continuous search starts around too
LIGHT = 256 * 1024**2  # bytes of arrays above which a checkpoint holds history only


@dataclass(frozen=True)
class Marginal:
    """Means and standard deviations over the actions, in the user's units."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Posterior:
    """What is believed: reward ``(*trials, N)``, costs ``(*trials, m, N)``."""

    reward: Marginal
    costs: Marginal | None


@dataclass
class _Packed:
    """One observation whose trials may be at different rounds."""

    functions: list[int]
    keys: list[Any]
    source: list[int]  # which of what waits each trial's is from
    wanted: list[bool]
    noise: Tensor | None
    t: int


class GPPolicy(Policy):
    """Beliefs, exploration and search; a policy adds its score and its multiplier.

    Args:
        actions: a :class:`~cbandit.Finite` set or a :class:`~cbandit.ProductGrid`.
        reward: the belief about the reward.
        costs: the belief about the cost, or one a cost; ``[gp] * m`` for ``m`` alike.
        explore: how estimates come from beliefs: :class:`~cbandit.UCB`,
            :class:`~cbandit.TS` or :class:`~cbandit.Rand`.
        clip: ``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
            subtracted, ``[-G, G]``.
        engine: ``"auto"``, ``"joint"``, ``"factor"``, ``"product"`` or ``"stream"``.
        feedback: ``None``, :class:`~cbandit.Delayed` or :class:`~cbandit.Sliding`.
        pending: ``"ignore"`` outstanding choices, or ``"hallucinate"``: count their
            variance and keep their mean.
        m: how many costs, where that is not the number of beliefs.
        common: see :class:`~cbandit.policies.policy.Policy`.
    """

    explores: tuple[type, ...] = (UCB, TS, Rand)
    continuous = True  # whether it can choose from a Box
    splits = False  # whether ranks may share the set; else each keeps all of it

    def __init__(
        self,
        actions: Any,
        reward: GP,
        costs: GP | Sequence[GP] | None,
        explore: Explore,
        *,
        clip: Any = None,
        engine: str = "auto",
        feedback: Delayed | Sliding | None = None,
        pending: str = "ignore",
        m: int | None = None,
        **common: Any,
    ) -> None:
        beliefs = [reward, *([] if costs is None else listed(costs, GP))]
        for j, belief in enumerate(beliefs):
            if not isinstance(belief, GP):
                name = "reward" if j == 0 else f"costs[{j - 1}]"
                raise CBanditError(f"{name} must be a cb.GP; got {checks.kind(belief)}")
        if not isinstance(explore, self.explores):
            kinds = " or ".join(f"cb.{each.__name__}(...)" for each in self.explores)
            raise CBanditError(f"explore must be {kinds}; got {checks.kind(explore)}")
        if isinstance(actions, Star) or (
            isinstance(actions, Box) and not self.continuous
        ):
            kinds = "a Finite set or a ProductGrid" + ", or a Box" * self.continuous
            raise CBanditError(
                f"{type(self).__name__} chooses from {kinds}; got {actions!r}"
            )
        checks.one_of("pending", pending, "ignore", "hallucinate")
        if pending == "hallucinate" and not isinstance(explore, UCB):
            raise CBanditError(
                "pending='hallucinate' goes with explore=cb.UCB(...): draws already "
                f"spread choices apart; got cb.{explore.name}"
            )
        if not isinstance(feedback, Delayed | Sliding | None):
            raise CBanditError(
                "feedback must be None, cb.Delayed(window) or cb.Sliding(window); got "
                f"{feedback!r}"
            )
        if isinstance(feedback, Delayed) and (
            pending == "hallucinate" or not isinstance(explore, UCB)
        ):
            raise CBanditError(
                "feedback=cb.Delayed(...) counts outstanding rounds itself: it goes "
                f"with explore=cb.UCB(...) and pending='ignore'; got cb.{explore.name} "
                f"and pending={pending!r}"
            )
        super().__init__(actions, len(beliefs) - 1 if m is None else m, **common)
        for j, belief in enumerate(beliefs):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            belief.suit(name, self.actions, self.batch_shape)
        self.feedback = feedback
        if isinstance(feedback, Delayed):
            self.no_noise = (
                "noise= cannot go with feedback=cb.Delayed(...): a choice weighs in "
                "when it is made, before its own variance is known"
            )
        self.patient = isinstance(feedback, Delayed) or pending == "hallucinate"
        self._late = torch.zeros(self._size, dtype=torch.long, device=self.device)
        self.explore, self.pending = explore, pending
        self._widths = explore.widths.bind(
            self.batch_shape, len(beliefs) - 1, self.device
        )
        self._clip_at = None if clip is None else self._clip(clip)
        self._bound: Tensor | None = None
        if self._clip_at is not None:
            self._bound = self._clip_at.to(self.dtype).unsqueeze(-1)
        self._engine = engine
        self._ranks = distributed.current() if self.splits else distributed.ALONE
        # feedback of some trials only, that waits for the rest of the inbox
        self._loose: list[tuple[list[Any], Tensor, Part, int]] = []
        self._beliefs = self._fresh_beliefs(beliefs)
        window = feedback.window if isinstance(feedback, Delayed) else 1
        self._recent: deque[Tensor] = deque(maxlen=window)
        #: on a Box: how many climbs the searches made, and how many failed
        self.climbs = Climbs()

    def _fresh_beliefs(self, beliefs: list[GP]) -> Surrogates:
        apart = isinstance(self.feedback, Delayed) and beliefs[0].standardize
        fresh = Surrogates(
            beliefs,
            self.actions,
            self.batch_shape,
            self.dtype,
            self.device,
            self._engine,
            self.explore.samples,
            apart,
            self._ranks,
        )
        if self.explore.samples:
            fresh.check_samples()
        return fresh

    def _clip(self, clip: Any) -> Tensor:
        """``(B, G_1, ...)``, ``(T, F)``."""
        if self._widths.functions == 1 and not isinstance(clip, tuple | list):
            return self._per_trial("clip B", checks.positive("clip B", clip)).unsqueeze(
                -1
            )
        try:
            bound, cost_bound = clip
        except (TypeError, ValueError):
            raise CBanditError(f"clip must be a pair (B, G); got {clip!r}") from None
        b = self._per_trial("clip B", checks.positive("clip B", bound))
        if self._widths.functions == 1:
            return b.unsqueeze(-1)
        g = self._number("clip G", checks.positive("clip G", cost_bound))
        return torch.cat([b.unsqueeze(-1), g], -1)

    # -- one round -------------------------------------------------------------------

    def _coefficient(self, t: int) -> Tensor:
        """What this round's spread is multiplied by, ``(T, F)``."""
        beliefs = self._beliefs
        width = self._widths.fixed
        if width is None:
            width = self._widths(t, beliefs.gains(), beliefs.noises, self._chances())
        if isinstance(self.feedback, Delayed):
            width = self._widened(t, width)
        return self.explore.coefficient(width, self._streams)

    def _chances(self) -> int:
        """``c`` of the RKHS widths: functions, or with a window rounds too."""
        functions = self._beliefs.functions
        if isinstance(self.feedback, Sliding) and self.horizon is not None:
            return functions * self.horizon
        return functions

    def _widened(self, t: int, width: Tensor) -> Tensor:
        """Widths under delay: outstanding rounds count with their deviations."""
        assert isinstance(self.feedback, Delayed)
        gains = self._beliefs.gains()
        given, horizon = self.feedback.weight, self.horizon
        weight, counts = torch.zeros_like(width), True
        if given is not None:
            batch, m = self.batch_shape, width.shape[-1]
            shaped = checks.per_cost("weight", given, batch, m)
            weight = devices.put(shaped, self.device)
            counts = bool(shaped.any())
        for part, columns in self._widths.rkhs_parts():
            norm, r = part.scale()
            if given is None:
                if horizon is None:
                    raise CBanditError(
                        "Delayed's weight is B + R sqrt(2 ln T) by the theory: give "
                        "the policy horizon=, or Delayed(window, weight=)"
                    )
                weight[:, columns] = norm + r * math.sqrt(2 * math.log(max(horizon, 2)))
            width = width.clone()
            width[:, columns] = delayed_width(
                part.schedule(), norm, r, gains[:, columns], weight[:, columns]
            )
        if not counts or not self._recent:
            return width
        std = self._beliefs.deviations(torch.stack(list(self._recent), 1))
        return width + weight * std.sum(-1)

    def _estimates(
        self, coefficient: Tensor, limits: Tensor, asked: Any
    ) -> Iterator[tuple[int, Tensor]]:
        """``(start, (T, F, n))``: estimates, thresholds subtracted, clipped."""
        finish = self._finish(limits)
        for start, mean, spread in self._looks(asked):
            yield start, finish(estimates(mean, spread, coefficient))

    def _finish(self, limits: Tensor) -> Callable[[Tensor], Tensor]:
        """Estimates of this round, allowance added, thresholds subtracted, clipped.

        It changes fresh estimates in place, unless they carry gradients.
        """
        tau = self._tau(limits)
        if tau is not None:
            tau = tau.to(self.dtype).unsqueeze(-1)
        allowance, bound = self._allowance(), self._bound

        def finish(estimate: Tensor) -> Tensor:
            if allowance is not None:
                estimate += allowance
            if tau is not None:
                estimate -= tau
            return estimate if bound is None else clip(estimate, bound)

        return finish

    def _tau(self, limits: Tensor) -> Tensor | None:
        """What is taken off estimates, ``(T, F)``; ``None``: nothing."""
        if not self._limited or self._beliefs.functions == 1:
            return None
        return torch.cat([torch.zeros_like(limits[:, :1]), limits], -1)

    def _estimate(
        self,
        coefficient: Tensor,
        limits: Tensor,
        beside: Tensor | Callable[[Tensor], Tensor] | None = None,
    ) -> Callable[[Tensor], Tensor]:
        """This round's estimates as a function of ``x``, on a Box."""
        finish, beliefs = self._finish(limits), self._beliefs
        draw = beliefs.draws(self._streams) if self.explore.samples else None
        scale, look = coefficient.unsqueeze(-1), beliefs.looking(self._waiting())

        def estimate(x: Tensor) -> Tensor:
            mean, spread = look(x)
            if draw is not None:
                spread = draw(x)
            found = finish(mean + scale * spread)
            return torch.cat([found, beside(x)], 1) if callable(beside) else found

        return estimate

    def _allowance(self) -> Tensor | None:
        """What a drifting world adds to the reward's estimate and takes off costs'."""
        drift = getattr(self.feedback, "drift", None)
        if drift is None:
            return None
        value = drift(self.t + 1) if callable(drift) else drift
        size = self._per_trial("drift", checks.nonnegative("drift", value))
        signs = torch.ones(1, self._beliefs.functions, dtype=self.dtype)
        signs[:, 1:] = -1
        return (size.to(self.dtype).unsqueeze(-1) * signs.to(size.device)).unsqueeze(-1)

    def _looks(self, asked: Any) -> Iterator[tuple[int, Tensor, Tensor]]:
        samples = self.explore.samples
        if asked is not self.actions:
            yield 0, *self._afresh(asked)
            return
        streams = self._streams if samples else None
        for block in self._beliefs.sweep(streams, self._waiting()):
            spread = block.draw if samples else block.std
            assert spread is not None
            yield block.start, block.mean, spread

    def _round_actions(self, actions: Any) -> Any:
        if self.explore.samples:
            raise CBanditError(
                "ask(actions=...) needs explore=cb.UCB or cb.Rand on a GP policy; "
                "joint draws are kept over the policy's own set"
            )
        asked = super()._round_actions(actions)
        if isinstance(asked, Box | Star):
            raise CBanditError(
                "actions of this round must be points, a cb.Finite or a "
                f"cb.ProductGrid; got {asked!r}"
            )
        for each in (self.actions, asked):
            if isinstance(each, Finite) and each.covariance is not None:
                raise CBanditError(
                    "ask(actions=...) needs coordinates; arms given by their "
                    "covariance alone have none: use ask(among=...)"
                )
        if isinstance(self.actions, Box):
            self.actions.inside(asked.block(0, asked.size), "actions of this round")
        return asked

    def _afresh(self, asked: Any) -> tuple[Tensor, Tensor]:
        x = asked.block(0, asked.size)
        mean, std = self._beliefs.anywhere(x, self._waiting())
        return mean.to(self.dtype), std.to(self.dtype)

    def _maximise(
        self,
        t: int,
        asked: Any,
        mask: Tensor | None,
        score: Formed,
        beside: Tensor | Callable[[Tensor], Tensor] | None = None,
        first: Callable[[], None] | None = None,
    ) -> Best:
        """The action of greatest ``score(f, g)``, and the estimates there.

        ``beside``, ``(T, m, N)``, is known of every action and follows the estimates;
        on a Box it is a function of ``x (T, n, d)``. ``first`` changes the beliefs,
        their variances apart, once a user's callables have not failed.
        """
        limits = self._limits(t)
        coefficient = self._coefficient(t)
        if first is not None:
            first()
        if isinstance(asked, Box):
            best = maximise_box(
                asked,
                self._estimate(coefficient, limits, beside),
                score,
                self._streams,
                self._beliefs.incumbents(INCUMBENTS),
                self.climbs,
            )
        else:
            known = beside if isinstance(beside, Tensor) else None
            best = self._best_of(asked, mask, score, coefficient, limits, known)
        if not all(map(math.isfinite, best.look())):
            raise CBanditError(
                "the score is not a finite number at any allowed action; look at "
                "policy.posterior() and policy.multiplier"
            )
        return best

    def _best_of(
        self,
        asked: Any,
        mask: Tensor | None,
        score: Formed,
        coefficient: Tensor,
        limits: Tensor,
        beside: Tensor | None = None,
    ) -> Best:
        """The best action of a set, in one fused pass where the engine has one."""
        look = self._in_numbers(mask, score, coefficient, limits)
        if beside is not None:
            look = replace(look, beside=beside)
        if asked is not self.actions:
            scan = Scan(look)
            scan.add(0, *self._afresh(asked))
            return scan.best(self._ranks)
        streams = self._streams if self.explore.samples else None
        return self._beliefs.choose(look, streams, self._waiting())

    def _in_numbers(
        self,
        mask: Tensor | None,
        score: Formed,
        coefficient: Tensor,
        limits: Tensor,
    ) -> Look:
        """:meth:`_finish` and the score, in numbers."""
        offset, allowance, tau = None, self._allowance(), self._tau(limits)
        if allowance is not None:
            offset = allowance.squeeze(-1)
        if tau is not None:
            offset = -tau if offset is None else offset - tau
        return Look(coefficient, offset, self._clip_at, score.kind, score.weight, mask)

    def _waiting(self) -> list[Ahead]:
        """Outstanding choices, and in which trials what is waited for."""
        if self.pending == "ignore":
            return []
        out = []
        for _, entry in sorted(self._open.items()):
            keys, x = self._named(entry.own)
            flags = [self._missing(s) for s in (entry.reward_seen, entry.cost_seen)]
            out.append(Ahead(keys, x, *flags))
        return out

    def _missing(self, seen: Tensor | bool) -> list[bool]:
        if isinstance(seen, Tensor):
            return (~seen).tolist()
        return [not seen] * self._size

    # -- feedback ----------------------------------------------------------------------

    @property
    def late(self) -> Tensor:
        """How many values came too late to count, ``(*trials,)``."""
        self._catch_up()
        return self._outside(self._late.clone())

    def _deliver(self) -> None:
        if self._beliefs.torn:
            raise CBanditError(
                "feedback was taken in by half when this broke it off: "
                f"{self._beliefs.torn}; go on from the last checkpoint (cb.load), or "
                "build the policy anew and observe() its data"
            )
        super()._deliver()
        if self._loose:
            self._gather()
        if isinstance(self.feedback, Sliding):
            window = self.feedback.window
            self._beliefs.expire(self.t + 1 - window, window)
        elif isinstance(self.feedback, Delayed):
            self._beliefs.stop_waiting(self.t - self.feedback.window)
        self._beliefs.refit(due_only=True)

    def _parts(self) -> list[Any]:
        return [self, *self._beliefs.parts()]

    def _started(self, choice: Choice) -> None:
        if isinstance(self.feedback, Delayed):
            keys, x = self._named(choice)
            self._beliefs.await_feedback(keys, x, choice.t, self._limits(choice.t))
            self._recent.append(x.double())

    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        sources = ([0], list(range(1, self.m + 1)))
        if isinstance(self.feedback, Delayed):
            self._arrive(choice, list(zip(sources, (rewards, costs), strict=True)))
            return
        every = [True] * self._size
        parts: list[Part] = []
        for functions, news in zip(sources, (rewards, costs), strict=True):
            for told in _pieced(news):
                wanted = every if told.where is None else told.where.tolist()
                parts.append((functions, told.values, wanted, told.noise))
        if isinstance(self.feedback, Sliding):
            if choice.t < self.t + 1 - self.feedback.window:
                came = sum(torch.tensor(part[2]) for part in parts)
                self._late += devices.put(came, self.device)
                return
        keys, x = self._named(choice)
        if self.feedback is None and any(not all(part[2]) for part in parts):
            self._loose += [(keys, x, part, choice.t) for part in joined(parts)]
        else:
            self._beliefs.absorb(keys, x, parts, choice.t)

    def _gather(self) -> None:
        """Absorb what came to some trials only, as few observations as will do.

        Each trial may be at another round in one of them: where delays differ from
        trial to trial, dozens of rounds make a handful of observations.
        """
        packed: list[_Packed] = []
        for number, (keys, _, part, t) in enumerate(self._loose):
            functions, _, wanted, noise = part
            for trial in [i for i, want in enumerate(wanted) if want]:
                for row in packed:
                    alike = row.functions == functions and row.noise is noise
                    if alike and not row.wanted[trial]:
                        break
                else:
                    row = _Packed(
                        functions,
                        list(keys),
                        [number] * self._size,
                        [False] * self._size,
                        noise,
                        t,
                    )
                    packed.append(row)
                row.keys[trial], row.wanted[trial] = keys[trial], True
                row.source[trial], row.t = number, max(row.t, t)
        loose, self._loose = self._loose, []
        for row in packed:
            numbers = sorted(set(row.source))
            place = [numbers.index(number) for number in row.source]
            x = self._picked([loose[i][1] for i in numbers], place)
            values = self._picked([loose[i][2][1] for i in numbers], place)
            part = (row.functions, values, row.wanted, row.noise)
            self._beliefs.absorb(row.keys, x, [part], row.t)

    def _picked(self, values: list[Tensor], place: list[int]) -> Tensor:
        """``(T, k)``: each trial's row of the one of ``values`` in its ``place``."""
        if len(values) == 1:
            return values[0]
        trial = torch.arange(self._size, device=self.device)
        return torch.stack(values)[devices.put(place, self.device), trial]

    def _arrive(
        self, choice: Choice, news: Sequence[tuple[list[int], Sequence[Told]]]
    ) -> None:
        """Feedback that was waited for; what comes after the window is only counted."""
        assert isinstance(self.feedback, Delayed)
        for functions, told in news:
            for part in told:
                mask = part.mask()
                if part.at - choice.t > self.feedback.window:
                    self._late += mask
                else:
                    self._beliefs.fill(choice.t, functions, part.values, mask)

    def _named(self, choice: Choice) -> tuple[list[Any], Tensor]:
        """What the history calls the actions chosen, and where they are."""
        x = choice.x.reshape(self._size, -1)
        if choice.actions is None and choice.keys is not None:
            return choice.keys, x
        if choice.actions is None and choice.index is not None:
            index = choice.index.tolist()
            return index if isinstance(index, list) else [index], x
        if not isinstance(self.actions, Box):
            try:
                return self.actions.index(x).tolist(), x
            except CBanditError:
                pass
        return [tuple(row) for row in x.tolist()], x

    def observe(
        self, *, index: Any = None, x: Any = None, reward: Any = None, cost: Any = None
    ) -> None:
        """Learn from ``n`` rows of data from before; multipliers do not move.

        Args:
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: or the actions themselves, ``(n, d)`` or ``(*trials, n, d)``.
            reward: ``(n,)`` or ``(*trials, n)``.
            cost: ``(n, m)`` or ``(*trials, n, m)``; ``(n,)``, ``(*trials, n)`` if m =
                1.
        """
        if (index is None) == (x is None):
            raise CBanditError("observe takes either index= or x=")
        if reward is None and cost is None:
            raise CBanditError("observe needs reward=, cost= or both; got neither")
        if index is not None:
            if isinstance(self.actions, Box):
                raise CBanditError("a Box has no numbered actions: give x=")
            numbers = self._rows("index", checks.tensor("index", index, None))
            numbers = numbers.to(self.device)
            self.actions.points(numbers)
            numbers = numbers.long()  # an empty list was none
        else:
            given = checks.finite("x", checks.tensor("x", x, self.dtype, self.device))
            given = self._rows("x", given, (self.actions.dim,))
            if isinstance(self.actions, Box):
                numbers, places = None, self.actions.inside(given)
            else:
                numbers = self.actions.index(given)
        if numbers is not None:
            places = self.actions.at(numbers.expand(self._size, -1))
        n = places.shape[1]
        parts: list[tuple[list[int], Tensor]] = []
        if reward is not None:
            value = checks.finite("reward", checks.tensor("reward", reward))
            parts.append(([0], self._rows("reward", value, (1,), n)))
        if cost is not None:
            if self.m == 0:
                raise CBanditError(f"{self.name} has no costs; got cost=")
            value = checks.finite("cost", checks.tensor("cost", cost))
            functions = list(range(1, self.m + 1))
            parts.append((functions, self._rows("cost", value, (self.m,), n)))
        with Held():
            self._deliver()
            self._observe(numbers, places, parts)

    def _observe(
        self,
        numbers: Tensor | None,
        places: Tensor,
        parts: list[tuple[list[int], Tensor]],
    ) -> None:
        """Data from before.

        Numbers ``(T, n)`` (``None`` on a box), points ``(T, n, d)``, and functions with
        their values ``(T, n, f)``.
        """
        every = [True] * self._size
        rows: list[tuple[Sequence[Hashable], Tensor, list[Part]]] = []
        for i in range(places.shape[1]):
            told: list[Part] = [
                (functions, value[:, i].to(self.device), every, None)
                for functions, value in parts
            ]
            keys: list[Hashable] = (
                [tuple(point) for point in places[:, i].tolist()]
                if numbers is None
                else numbers[:, i].tolist()
            )
            rows.append((keys, places[:, i], told))
        self._beliefs.observe(rows)

    def _rows(
        self, name: str, value: Tensor, axes: tuple[int, ...] = (), n: int | None = None
    ) -> Tensor:
        return checks.rows(name, value, self.batch_shape, axes, n)

    # -- what is believed --------------------------------------------------------------

    @property
    def engine(self) -> str:
        """Which engines keep the posterior, and why."""
        return self._beliefs.describe()

    def _engines(self) -> list[str]:
        names = self._beliefs.engines()
        return [f"engine={' and '.join(names)}"]

    def posterior(self, x: Any = None) -> Posterior:
        """Means and standard deviations over the set, in the user's units.

        Or, by a dense solve, at points ``x``, ``(n, d)`` or ``(*trials, n, d)``; on a
        Box there is no other way.
        """
        self._catch_up()
        if x is not None:
            given = checks.finite("x", checks.tensor("x", x, self.dtype, self.device))
            mean, std = self._beliefs.anywhere(
                self._rows("x", given, (self.actions.dim,))
            )
        elif isinstance(self.actions, Box):
            raise CBanditError(
                "posterior needs points on a Box: posterior(x) with x of shape (n, d)"
            )
        else:
            mean, std = self._beliefs.posterior()
        reward = Marginal(self._outside(mean[:, 0]), self._outside(std[:, 0]))
        if self._beliefs.functions == 1:
            return Posterior(reward, None)
        return Posterior(
            reward, Marginal(self._outside(mean[:, 1:]), self._outside(std[:, 1:]))
        )

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """What to deploy: the best action believed feasible with ``confidence``.

        Of a policy without beliefs about its costs the action of greatest expected
        reward, nowhere called feasible.
        """
        confidence = checks.number("confidence", confidence)
        if not 0 < confidence < 1:
            raise CBanditError(f"confidence must lie between 0 and 1; got {confidence}")
        self._catch_up()
        # costs that are penalties, or seen in full, have no belief
        limits = self._limits(max(self.t, 1))[:, : self._beliefs.functions - 1]
        if isinstance(self.actions, Box):
            x = self._likely(self.actions, limits, confidence)
            mean, std = self._beliefs.anywhere(x.unsqueeze(1))
            found = recommend([(0, mean, std)], limits, confidence)
            found = replace(found, index=None)
        else:
            blocks = ((b.start, b.mean, b.std) for b in self._beliefs.sweep())
            found = recommend(blocks, limits, confidence, self._ranks)
            assert found.index is not None
            x = self.actions.at(found.index)
        if self._beliefs.functions <= self.m:
            # costs without a belief: nothing can be said of their chances
            unknown = found.value.new_full((self._size, self.m), torch.nan)
            nowhere = torch.zeros_like(found.feasible)
            found = replace(
                found, probability=unknown[:, 0], margin=unknown, feasible=nowhere
            )
        return replace(found, x=x).of(self._outside)

    def _likely(self, box: Box, limits: Tensor, confidence: float) -> Tensor:
        """The point of a box of greatest mean reward among those likely feasible."""
        beliefs = self._beliefs
        look = beliefs.looking()

        def estimate(x: Tensor) -> Tensor:
            mean, std = look(x)
            tau = limits.unsqueeze(-1)
            # a chance below confidence is one cost over its limit
            share = torch.special.log_ndtr((tau - mean[:, 1:]) / std[:, 1:])
            short = math.log(confidence) - share.sum(-2, keepdim=True)
            # chances far below one are astronomical, and all alike too low
            return torch.cat([mean[:, :1], short.asinh()], 1)

        streams = Streams(self.seed, self.trials, "recommend")
        incumbents = beliefs.incumbents(10 * INCUMBENTS)
        best, _ = best_feasible_point(box, estimate, streams, incumbents)
        assert best.x is not None
        return best.x

    def refit(self) -> None:
        """Fit hyperparameters to all data now, by marginal likelihood."""
        with Held():
            self._deliver()
            self._beliefs.refit()

    @property
    def model(self) -> ModelListGP:
        """The beliefs as a BoTorch ``ModelListGP``, reward first: a snapshot.

        Its data are means over repeats, with the noise of means; what it is to observe
        (fantasies, ``observation_noise=True``) has the noise of one observation.
        """
        from cbandit.posterior.botorch import model_list

        self._catch_up()
        return model_list(self._beliefs)

    def lighten(self) -> None:
        """Before a checkpoint: large arrays are computed afresh instead of saved."""
        self._beliefs.lighten(LIGHT)


def _pieced(news: Sequence[Told]) -> Sequence[Told]:
    """What came to some trials now and to others then, as one."""
    if len(news) < 2 or any(t.where is None or t.noise is not None for t in news):
        return news
    whole = news[0]
    for told in news[1:]:
        assert told.where is not None
        assert whole.where is not None
        came = told.mask().unsqueeze(-1)
        values = torch.where(came, told.values, whole.values)
        whole = replace(whole, values=values, where=whole.where | told.where)
    return [whole]
