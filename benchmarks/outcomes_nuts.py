"""Posteriors of binary outcomes beside long NUTS runs, at 2, 8 and 20 places.

    python benchmarks/outcomes_nuts.py [--quick] [--json FILE]

Latent values at places on a line are drawn from a Gaussian process (RBF, lengthscale
0.2, variance 1); 20, 50 and 200 yes-or-no outcomes come from random places. numpyro
samples the latent values given the same prior: 4 chains, after 1 000 steps of warm-up
5 000 draws each, in float64. The rows show the largest differences over all places and
data sets: of the expected probability, and of the ends of 90 and 95 % intervals, in
probability. At 2 places exact integration stands beside: what NUTS itself is off by.

Goals, as in ``outcomes.py``: means within 0.02, ends of 90 % intervals within 0.03,
of 95 % ones from 50 outcomes on.

It takes ``pip install numpyro`` in an environment that has cbandit; without, it says so
and compares nothing. ``--quick`` takes 2 and 8 places, few outcomes, one chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from outcomes import GRID, belief_of, marginals, rbf
from report import Row, check_of, row_of, say
from report import main as report_main

SHARES = torch.tensor([0.05, 0.95, 0.025, 0.975], dtype=torch.float64)


@dataclass(frozen=True)
class Sizes:
    """How large it all is; the defaults are the full run's."""

    places: tuple[int, ...] = (2, 8, 20)
    told: tuple[int, ...] = (20, 50, 200)
    sets: int = 3
    chains: int = 4
    draws: int = 5_000


QUICK = Sizes((2, 8), (20,), 1, 1, 10_000)


def sampled(root: Tensor, events: Tensor, tries: Tensor, sizes: Sizes) -> Tensor:
    """Return draws of the probabilities at all places by NUTS, ``(draws, places)``."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from jax.scipy.special import log_ndtr
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    lower, yes, of = (jax.numpy.asarray(part.numpy()) for part in (root, events, tries))

    def model() -> None:
        normals = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([len(yes)]))
        latent = lower @ normals
        log = yes * log_ndtr(latent) + (of - yes) * log_ndtr(-latent)
        numpyro.factor("outcomes", log.sum())

    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.9),
        num_warmup=min(1000, sizes.draws),
        num_samples=sizes.draws,
        num_chains=sizes.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.PRNGKey(0))
    normals: Tensor = torch.tensor(np.array(mcmc.get_samples()["z"]))
    chances: Tensor = torch.special.ndtr(normals @ root.mT)
    return chances


def compared(places: int, told: int, sizes: Sizes) -> Row:
    """Return the row of so many places and outcomes."""
    generator = torch.Generator().manual_seed(100 * places + told)
    x = torch.linspace(0, 1, places, dtype=torch.float64).unsqueeze(-1)
    prior = rbf(0.2).forward(x, x).detach() + 1e-6 * torch.eye(places).double()
    root = torch.linalg.cholesky(prior)
    size = sizes.sets, places
    latent = torch.randn(size, generator=generator, dtype=torch.float64) @ root.mT
    index = torch.randint(0, places, (sizes.sets, told), generator=generator)
    tries = torch.nn.functional.one_hot(index, places).sum(1).double()
    events = torch.binomial(tries, torch.special.ndtr(latent), generator=generator)
    mean, center, width = belief_of(prior, events, tries, "binary")
    deviates = torch.special.ndtri(SHARES)
    ends = torch.special.ndtr(center + width * deviates.view(-1, 1, 1))
    gaps, exact = [], []
    for i in range(sizes.sets):
        draws = sampled(root, events[i], tries[i], sizes)
        quantiles = draws.quantile(SHARES, 0)
        of = torch.cat([draws.mean(0, keepdim=True), quantiles])
        gaps.append((torch.cat([mean[i : i + 1], ends[:, i]]) - of).abs().amax(1))
        if places == 2:
            exact.append((integrated(prior, events[i], tries[i]) - of).abs().amax(1))
    account = {"ours": largest(gaps)}
    columns = said(account["ours"])
    if exact:
        account["NUTS"] = largest(exact)
        columns += f"; NUTS beside integration: {said(account['NUTS'])}"
    off, nine, wide = account["ours"]
    checks = [check_of("mean off by", off, 0.02), check_of("90 % ends", nine, 0.03)]
    if told >= 50:
        checks.append(check_of("95 % ends", wide, 0.03))
    peer = f"NUTS of numpyro {version('numpyro')}"
    section = f"beside {peer}, largest differences of {sizes.sets} data sets"
    what = f"{places} places, {told} outcomes"
    return row_of(section, what, columns=columns, checks=checks, account=account)


def integrated(prior: Tensor, events: Tensor, tries: Tensor) -> Tensor:
    """Return the exact means and ends of the probabilities, ``(5, places)``."""
    columns = []
    for mass in marginals(prior, events, tries, "binary"):
        below = (mass.cumsum(0) - 0.5 * mass).numpy()
        ends = torch.tensor(np.interp(SHARES.numpy(), below, GRID.numpy()))
        mean = mass @ torch.special.ndtr(GRID)
        columns.append(torch.cat([mean.reshape(1), torch.special.ndtr(ends)]))
    return torch.stack(columns, -1)


def largest(gaps: Sequence[Tensor]) -> list[float]:
    """Return the largest gaps of means, of 90 % and of 95 % ends."""
    most = torch.stack(list(gaps)).amax(0)
    parts = most[:1], most[1:3], most[3:]
    return [float(part.max()) for part in parts]


def said(gaps: Sequence[float]) -> str:
    """Return gaps in words."""
    return "mean {:.4f}, 90% ends {:.4f}, 95% ends {:.4f}".format(*gaps)


def measure(sizes: Sizes) -> list[Row]:
    """Return all rows."""
    if find_spec("numpyro") is None:
        return [row_of("beside NUTS", "left out", note="numpyro is not installed")]
    rows = []
    for places, told in itertools.product(sizes.places, sizes.told):
        say(f"{places} places, {told} outcomes")
        rows.append(compared(places, told, sizes))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    report_main(__file__, __doc__, measure, Sizes(), QUICK, argv)


if __name__ == "__main__":
    main()
