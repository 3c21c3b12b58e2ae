"""One stream a trial: the same draws however a batch is split, stopped or resumed."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import BLOCK, Streams, trial_range

from cbandit import CBanditError

# Every statistical test below draws from fixed seeds, so it gives the same verdict each
# time; its bound was chosen to fail with probability below 1e-6 for a sound generator.
FIVE_SIGMA = 5.0  # two-sided 5.7e-7

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["normal", "uniform", "ragged"]),
        st.lists(st.integers(0, 40), max_size=2),
    ),
    max_size=12,
)


def draw(streams: Streams, calls) -> list[torch.Tensor]:
    out = []
    for kind, shape in calls:
        if kind == "ragged":
            numbers = range(1) if streams.trials is None else streams.trials
            counts = [7 * i % 5 + len(shape) for i in numbers]
            drawn = streams.ragged_normal(counts, 3)
            widest = 7  # so that splits have one shape
            out.append(
                torch.nn.functional.pad(drawn, (0, 0, 0, widest - drawn.shape[-2]))
            )
        else:
            out.append(getattr(streams, kind)(*shape))
    return out


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_shapes_and_dtype():
    alone, batch = Streams(0), Streams(0, 3)
    for kind in ("normal", "uniform"):
        assert getattr(alone, kind)().shape == ()
        assert getattr(alone, kind)(4, 5).shape == (4, 5)
        assert getattr(alone, kind)(0).shape == (0,)
        assert getattr(batch, kind)().shape == (3,)
        assert getattr(batch, kind)(4, 5).shape == (3, 4, 5)
        assert getattr(batch, kind)(2 * BLOCK + 1).shape == (3, 2 * BLOCK + 1)
        assert getattr(batch, kind)().dtype == torch.float64
    assert alone.ragged_normal([4], 2).shape == (4, 2)
    assert batch.ragged_normal([4, 0, 1], 2).shape == (3, 4, 2)
    assert Streams(0, 1).normal(2).shape == (1, 2)


@given(calls=CALLS, cut=st.integers(1, 4))
def test_splitting_a_batch_changes_no_draw(calls, cut):
    whole = draw(Streams(7, 5), calls)
    first = draw(Streams(7, range(cut)), calls)
    second = draw(Streams(7, range(cut, 5)), calls)
    assert same(whole, [torch.cat(pair) for pair in zip(first, second, strict=True)])


@given(calls=CALLS)
def test_no_trials_axis_is_trial_zero(calls):
    batch = draw(Streams(3, 2), calls)
    assert same(draw(Streams(3), calls), [x[0] for x in batch])


def test_trials_may_come_in_any_order():
    forward = Streams(1, range(6)).normal(9)
    assert torch.equal(Streams(1, range(5, -1, -1)).normal(9), forward.flip(0))
    assert torch.equal(Streams(1, range(1, 6, 2)).normal(9), forward[1::2])


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_many_small_draws_are_one_large_draw(kind):
    # across the ends of blocks, and exactly up to one
    sizes = [1, BLOCK - 2, 1, BLOCK, 7, 0, 2 * BLOCK - 3, 1]
    whole = getattr(Streams(2, 3), kind)(sum(sizes))
    streams = Streams(2, 3)
    parts = [getattr(streams, kind)(n) for n in sizes]
    assert torch.equal(torch.cat(parts, -1), whole)


def test_a_ragged_draw_depends_on_the_trials_own_count():
    few = Streams(4, 3).ragged_normal([2, 0, 100], 3)
    many = Streams(4, 3).ragged_normal([2, 70, 1], 3)
    assert torch.equal(few[0, :2], many[0, :2])
    assert torch.equal(few[2, :1], many[2, :1])
    assert not few[0, 2:].any()
    assert not few[1].any()
    assert few[2].all()
    with pytest.raises(CBanditError, match=r"counts must name .* 3 trials; got 2"):
        Streams(4, 3).ragged_normal([1, 2], 3)


@given(before=CALLS, after=CALLS, trials=st.sampled_from([None, 1, 3, range(2, 5)]))
def test_a_pickle_goes_on_bit_for_bit(before, after, trials):
    streams = Streams(11, trials, "noise")
    draw(streams, before)
    shared = torch.randn(3, generator=streams)
    restored = pickle.loads(pickle.dumps(streams))
    copied = copy.deepcopy(streams)
    assert isinstance(restored, Streams)
    assert (restored.seed_number, restored.trials, restored.purpose) == (
        streams.seed_number,
        streams.trials,
        streams.purpose,
    )
    expected = draw(streams, after)
    assert same(draw(restored, after), expected)
    assert same(draw(copied, after), expected)
    tail = torch.randn(3, generator=streams)
    assert torch.equal(torch.randn(3, generator=restored), tail)
    assert torch.equal(torch.randn(3, generator=copied), tail)
    assert not torch.equal(shared, tail)


def test_saving_takes_nothing_from_the_stream():
    watched, free = Streams(1, 2), Streams(1, 2)
    seen = []
    for _ in range(3):
        seen.append(watched.normal(BLOCK // 2 + 1))
        pickle.dumps(watched)
        watched.state()
    assert torch.equal(torch.cat(seen, -1), free.normal(3 * (BLOCK // 2 + 1)))


def test_state_survives_torch_save():
    streams = Streams(5, 2)
    streams.normal(3)
    streams.uniform(3)
    buffer = io.BytesIO()
    torch.save(streams.state(), buffer)
    buffer.seek(0)
    other = Streams(5, 2)
    other.__setstate__(torch.load(buffer, weights_only=True))
    assert torch.equal(other.normal(5), streams.normal(5))
    assert torch.equal(other.uniform(5), streams.uniform(5))


def test_a_saved_state_is_a_snapshot():
    streams = Streams(5, 2)
    streams.normal(3)
    state = streams.state()
    expected = streams.normal(BLOCK)
    for _ in range(2):  # and may be used again
        other = Streams(5, 2)
        other.__setstate__(state)
        assert torch.equal(other.normal(BLOCK), expected)


def test_it_is_a_generator_for_code_that_knows_nothing_of_trials():
    assert isinstance(Streams(0), torch.Generator)
    a = torch.randint(100, (20,), generator=Streams(0, 5))
    assert torch.equal(a, torch.randint(100, (20,), generator=Streams(0, 5)))
    streams = Streams(0, 5)
    torch.randperm(100, generator=streams)
    assert torch.equal(streams.normal(4), Streams(0, 5).normal(4))


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    draw(Streams(0, 3), [("normal", [3]), ("uniform", [3]), ("ragged", [])])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002


def test_seed_trial_and_purpose_keep_streams_apart():
    keys = [
        (seed, trial, purpose)
        for seed in (0, 1, 10, 2**40, 2**64 - 1)
        for trial in range(40)
        for purpose in ("", "policy", "world", "world/shared")
    ]
    first = {
        tuple(Streams(seed, range(trial, trial + 1), purpose).normal(2)[0].tolist())
        for seed, trial, purpose in keys
    }
    assert len(first) == len(keys)


def test_no_two_trials_of_a_run_share_a_generator():
    # a hash of the trial into the 32 bits torch keeps would meet itself: 20 000 trials
    # would hold about one in twenty such pairs, and 500 000 about thirty
    from inside import _seed

    seeds = {_seed(0, i, "policy") for i in range(500_000)}
    assert len(seeds) == 500_000
    assert max(seeds) < 2**32


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_moments(kind):
    trials, n = 50, 20_000
    x = getattr(Streams(2024, trials), kind)(n)
    assert torch.isfinite(x).all()
    if kind == "uniform":
        assert 0 <= float(x.min()) <= float(x.max()) < 1
        x = (x - 0.5) * 12**0.5
        fourth = 9 / 5
    else:
        fourth = 3.0
    total = trials * n
    # powers 1 to 4 of a standardised draw; the variances are exact
    sixth, eighth = (15.0, 105.0) if kind == "normal" else (27 / 7, 9.0)
    for power, mean, variance in (
        (1, 0.0, 1.0),
        (2, 1.0, fourth - 1),
        (3, 0.0, sixth),
        (4, fourth, eighth - fourth**2),
    ):
        z = (x.pow(power).mean() - mean) / (variance / total) ** 0.5
        assert abs(float(z)) < FIVE_SIGMA, power
    # each trial alone: fifty means, so the bound is that of a 1e-6 / 50 quantile
    assert float(x.mean(-1).abs().max()) * n**0.5 < 5.7


def test_trials_purposes_and_neighbours_are_uncorrelated():
    trials, n = 20, 10_000
    streams = Streams(99, trials)
    x, other = streams.normal(n), Streams(99, trials, "other").normal(n)
    seeds = Streams(100, trials).normal(n)
    correlation = x @ x.mT / n
    correlation.fill_diagonal_(0)
    lagged = (x[:, :-1] * x[:, 1:]).mean(-1)
    # 190 + 400 + 400 + 20 + 20 nearly normal correlations of deviation n^-1/2:
    # P(any beyond 6.2 deviations) < 1100 * 5.7e-10 < 1e-6
    for gap in (correlation, x @ other.mT / n, x @ seeds.mT / n, lagged):
        assert float(gap.abs().max()) * n**0.5 < 6.2
    uniform = (streams.uniform(n) - 0.5) * 12**0.5
    assert float((x * uniform).mean(-1).abs().max()) * n**0.5 < 6.2


def test_normal_draws_have_the_normal_distribution():
    n = 100_000
    x = Streams(8, 10).normal(n // 10).flatten().sort().values
    cdf = torch.special.ndtr(x)
    steps = torch.arange(n, dtype=torch.float64)
    distance = torch.maximum((steps + 1) / n - cdf, cdf - steps / n).max()
    # Kolmogorov: P(sqrt(n) D > 2.7) < 2 exp(-2 2.7^2) < 1e-6
    assert float(distance) * n**0.5 < 2.7


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (None, None),
        (1, range(1)),
        (50, range(50)),
        (np.int64(3), range(3)),
        (range(4, 9), range(4, 9)),
        (range(4, 0, -1), range(4, 0, -1)),
    ],
)
def test_trial_range(trials, expected):
    assert trial_range(trials) == expected


@pytest.mark.parametrize(
    "trials", [0, -1, 1.5, "3", True, range(0), range(-1, 2), range(2, -2, -1), [1]]
)
def test_bad_trials_are_named(trials):
    with pytest.raises(
        CBanditError, match="trials must be None, a positive int"
    ) as caught:
        Streams(0, trials)
    assert repr(trials) in str(caught.value)


@pytest.mark.parametrize("seed", [None, 1.0, "1", True, -1, 2**64])
def test_a_bad_seed_is_named(seed):
    with pytest.raises(CBanditError, match="seed must be an int from 0") as caught:
        Streams(seed)
    assert repr(seed) in str(caught.value)


def test_a_numpy_seed_is_an_int():
    assert torch.equal(Streams(np.int64(3)).normal(2), Streams(3).normal(2))
