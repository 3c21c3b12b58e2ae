"""Real requests to language models: choose which model answers, under a budget.

Each request was answered by three models, and every answer was judged and priced. The
data come with the package ``paretobandit`` (Apache-2.0): 1 785 requests to learn on and
1 824 to be judged on. Prompts become 25 numbers by TF-IDF and a truncated singular
value decomposition. Both are fitted to the requests to learn on, whose spreads also
scale the numbers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Category, Context, Space
from cbandit.errors import CBanditError
from cbandit.problems.contexts import Contexts

FEATURES = 25
MISSING = (
    "the requests of this problem come with paretobandit, and scikit-learn makes "
    "numbers of them; install both: pip install 'cbandit[experiments]'"
)


class Requests(NamedTuple):
    """Requests, and the outcome of every model on each.

    Args:
        models: their names, ``K`` of them, the cheapest first.
        prompts: ``(n, 25)``, the numbers of each prompt.
        rewards: ``(n, K)``, how good the answers were, between 0 and 1.
        usd: ``(n, K)``, what they cost in dollars.
        first: how many requests, from the first on, are to learn on.
    """

    models: tuple[str, ...]
    prompts: Tensor
    rewards: Tensor
    usd: Tensor
    first: int

    def budgets(self, count: int = 7) -> Tensor:
        """Return budgets in dollars, from the cheapest model's mean to the dearest."""
        means = self.usd.mean(0).log10()
        ends = float(means.min()), float(means.max())
        return torch.logspace(*ends, count, dtype=torch.float64)


@cache
def requests() -> Requests:
    """Return the requests that come with ``paretobandit``."""
    try:
        from pareto_bandit.data import get_example_holdout_path, get_example_val_path
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError as error:
        raise CBanditError(MISSING) from error
    learned = _rows(get_example_val_path())
    rows = learned + _rows(get_example_holdout_path())
    prompts, first = [row["prompt"] for row in rows], len(learned)
    counts = TfidfVectorizer().fit(prompts[:first])
    reduced = TruncatedSVD(FEATURES, random_state=0)
    reduced.fit(counts.transform(prompts[:first]))
    numbers = torch.as_tensor(reduced.transform(counts.transform(prompts)))
    numbers = numbers.to(torch.float64)
    spread, center = torch.std_mean(numbers[:first], 0, unbiased=False)
    arms = list(rows[0]["arms"])
    told = torch.tensor(
        [
            [[row["arms"][a][k] for a in arms] for k in ("reward", "cost")]
            for row in rows
        ],
        dtype=torch.float64,
    )
    order = told[:, 1].mean(0).argsort()
    return Requests(
        tuple(arms[k].rpartition("/")[2] for k in order.tolist()),
        (numbers - center) / spread,
        told[:, 0, order],
        told[:, 1, order],
        first,
    )


def _rows(path: Path) -> list[dict[str, dict[str, dict[str, float]]]]:
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def routing(budget: float = 6.6e-4) -> Contexts:
    """Choose a language model for each request, within a mean budget per request.

    Args:
        budget: dollars per request. The cheapest model costs 0.000029 on average, the
            dearest 0.015.

    Example:
        >>> import cbandit as cb
        >>> problem = cb.problems.routing(budget=5e-4)              # doctest: +SKIP
        >>> problem.linear.reward                                   # doctest: +SKIP
    """
    limit = checks.positive("budget", budget)
    known = requests()
    space = Space(model=Category(*known.models), prompt=Context(FEATURES))
    return Contexts(
        known.prompts,
        known.rewards,
        known.usd.unsqueeze(1),
        space,
        {"usd": float(limit)},
        first=known.first,
    )
