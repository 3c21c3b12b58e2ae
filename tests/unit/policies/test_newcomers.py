"""Values of categories that are added and retired while a policy runs."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

import cbandit as cb

MODELS = ("small", "large", "huge")
SPACES = {
    "grid": {"model": cb.Category(*MODELS), "threads": cb.Int(1, 3)},
    "last": {"threads": cb.Int(1, 3), "model": cb.Category(*MODELS)},
    "box": {"model": cb.Category(*MODELS), "speed": cb.Float(0.0, 1.0)},
    "slice": {
        "model": cb.Category(*MODELS),
        "hour": cb.Context(cb.Int(0, 3)),
        "threads": cb.Int(1, 2),
    },
    "points": {"model": cb.Category(*MODELS), "prompt": cb.Context(2)},
    "rest": {
        "model": cb.Category(*MODELS),
        "speed": cb.Float(0.0, 1.0),
        "load": cb.Context(cb.Float(0.0, 4.0)),
    },
}
SHOWN = {
    "slice": {"hour": 2},
    "points": {"prompt": [0.5, -0.5]},
    "rest": {"load": 1.5},
}
every = pytest.mark.parametrize("kind", SPACES)
# a search of a box takes long: trials are left to the sets that are counted
batched = pytest.mark.parametrize(
    ("kind", "trials"),
    [(k, None) for k in SPACES] + [(k, 2) for k in SPACES if k not in ("box", "rest")],
)
LAM = 0.05


def asked(policy, kind, **more):
    context = {"context": SHOWN[kind]} if kind in SHOWN else {}
    return policy.ask(**context, **more)


def model_of(choice):
    params = choice.params
    return params["model"] if isinstance(params, dict) else [p["model"] for p in params]


def build(kind, rule=cb.CKB, **options):
    space = cb.Space(**SPACES[kind])
    gp = cb.GP.default(space)
    costs = {} if rule in (cb.GPUCB, cb.GPTS) else {"costs": gp}
    return rule(space, reward=gp, **costs, **options)


def play(policy, kind, rounds, seed=0):
    draw = torch.Generator().manual_seed(seed)
    models = []
    for _ in range(rounds):
        choice = asked(policy, kind)
        models.append(model_of(choice))
        reward = torch.randn(policy.batch_shape, generator=draw)
        policy.tell(choice, reward=reward, **({"cost": reward} if policy.m else {}))
    return models


def rbf(space):
    """Return a kernel over all coordinates, and the same as a function of arrays."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(1.3, dtype=torch.float64)
    return kernel, lambda a, b: np.exp(
        -0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / 1.3**2
    )


@every
def test_a_newcomer_is_believed_as_the_prior_says(kind):
    space = cb.Space(**SPACES[kind])
    kernel, values = rbf(space)
    gp = cb.GP(kernel, noise=LAM)
    policy = cb.CKB(
        space,
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        dual="projected",
        step=0.1,
        cap=1.0,
    )
    x, y = [], []
    open_choice = None
    for t in range(6):
        choice = asked(policy, kind)
        if t == 2:  # waits while the set grows
            open_choice = choice
        else:
            x.append(choice.x)
            y.append(float(np.sin(3 * t)))
            policy.tell(choice, reward=y[-1], cost=-1.0)
        if t == 3:
            policy.add("model", "new")
    policy.tell(open_choice.id, reward=2.0, cost=-1.0)
    x.append(open_choice.x)
    y.append(2.0)
    assert policy.actions.names.parameters["model"].options == (*MODELS, "new")
    names = policy.actions.names
    params = [
        names.params(p) | {"model": model} for p in x for model in (*MODELS, "new")
    ]
    at, tried = names.points(params).numpy(), torch.stack(x).numpy()
    cross, inner = values(at, tried), values(tried, tried) + LAM * np.eye(len(x))
    mean = cross @ np.linalg.solve(inner, np.array(y))
    var = 1 - (cross * np.linalg.solve(inner, cross.T).T).sum(-1)
    answer = policy.posterior(params=params).reward
    assert np.allclose(answer.mean.numpy(), mean, atol=1e-9)
    assert np.allclose(answer.std.numpy(), np.sqrt(var), atol=1e-9)
    if kind not in ("box", "rest"):
        # the arrays over the set agree with the solve
        context = {"context": SHOWN[kind]} if kind in SHOWN else {}
        whole = policy.posterior(**context).reward
        asked_at = asked(policy, kind)
        same = policy.posterior(params=[asked_at.params]).reward
        assert float(whole.mean[asked_at.index]) == pytest.approx(
            float(same.mean[0]), abs=1e-9
        )


@every
def test_a_newcomer_is_tried(kind):
    policy = build(kind, rule=cb.GPUCB, explore=cb.UCB(4.0))
    searched = policy.actions.continuous
    play(policy, kind, 3 if searched else 6)
    policy.add("model", "new")
    assert "new" in play(policy, kind, 6 if searched else 20, seed=1)
    newest = asked(policy, kind, **({} if policy.actions.continuous else
                                    {"among": {"model": ["new"]}}))  # fmt: skip
    if not policy.actions.continuous:
        assert model_of(newest) == "new"
    frame = policy.history()
    assert set(frame["model"]) <= {*MODELS, "new"}


@batched
def test_what_is_retired_is_never_chosen_again(kind, trials):
    policy = build(kind, trials=trials, pending="ignore")
    play(policy, kind, 4)
    waiting = asked(policy, kind)
    gone = np.ravel(model_of(waiting))[0]
    policy.retire("model", str(gone))
    rest = 2 if policy.actions.continuous else 15
    assert gone not in np.ravel(play(policy, kind, rest, seed=2)).tolist()
    zero = torch.zeros(policy.batch_shape)
    policy.tell(waiting, reward=zero + 6.0, cost=zero - 6.0)  # the best of all
    assert gone not in np.ravel(play(policy, kind, 2, seed=3)).tolist()
    context = {"context": SHOWN[kind]} if kind in SHOWN else {}
    best = policy.recommend(**context).params
    best = [best] if trials is None else best
    assert all(params["model"] != gone for params in best)
    policy.add("model", str(gone))  # it comes back, with what was told of it
    models = policy.actions.names.parameters["model"].options
    assert models == MODELS
    best = policy.recommend(**context).params
    assert (best if trials is None else best[0])["model"] == gone


@every
def test_drawn_and_designed_rounds_leave_out_what_is_retired(kind):
    options = {"design": 4}
    if kind not in ("box", "rest"):
        options["explore"] = cb.TS(1.0)
    policy = build(kind, **options)
    policy.retire("model", "large")
    assert "large" not in play(policy, kind, 5 if "explore" not in options else 8)


@batched
def test_saved_policies_remember_who_came_and_went(kind, trials, tmp_path):
    policy = build(kind, trials=trials)
    play(policy, kind, 3)
    policy.add("model", "new")
    policy.retire("model", "small")
    play(policy, kind, 2, seed=1)
    policy.save(tmp_path / "state.ckpt")
    other = cb.load(tmp_path / "state.ckpt")
    first, second = play(policy, kind, 2, seed=2), play(other, kind, 2, seed=2)
    assert first == second
    assert "small" not in np.ravel(first).tolist()
    assert torch.equal(asked(policy, kind).x, asked(other, kind).x)


@pytest.mark.parametrize("kind", ["grid", "last", "slice", "points"])
def test_what_failed_stays_failed_when_the_set_grows(kind):
    policy = build(kind, failures=False)
    choice = asked(policy, kind)
    policy.tell(choice, failed=True)
    late = asked(policy, kind)
    policy.add("model", "new")
    policy.tell(late, failed=True)
    model = {"model": [model_of(choice)]}
    for _ in range(policy.actions.size):
        try:
            again = asked(policy, kind, among=model)
        except cb.CBanditError:
            break
        assert not torch.equal(again.x, choice.x)
        assert not torch.equal(again.x, late.x)
        policy.tell(again, failed=True)
    else:
        raise AssertionError("everything was asked for again")


@pytest.mark.parametrize("kind", ["last", "points"])
@pytest.mark.parametrize("feedback", [cb.Delayed(4), cb.Sliding(4)])
def test_feedback_that_is_late_when_the_set_grows(kind, feedback):
    policy = build(kind, feedback=feedback)
    play(policy, kind, 3)
    late = [asked(policy, kind) for _ in range(2)]
    policy.add("model", "new")
    for choice in late:
        policy.tell(choice, reward=1.0, cost=0.0)
    play(policy, kind, 6, seed=4)
    assert not policy.outstanding


def test_a_context_grows_too():
    policy = cb.GPUCB(
        (space := cb.Space(m=cb.Category("a", "b"), at=cb.Context(cb.Category("eu")))),
        reward=cb.GP.default(space),
    )
    with pytest.raises(cb.CBanditError, match="at must be of Category"):
        policy.ask(context="us")
    policy.tell(policy.ask(context="eu"), reward=1.0)
    policy.add("at", "us")
    assert policy.ask(context="us").params["at"] == "us"
    assert policy.actions.size == 2
    with pytest.raises(cb.CBanditError, match="at is a context, which is shown"):
        policy.retire("at", "eu")


def test_sets_of_one_round_leave_out_what_is_retired():
    policy = build("grid")
    policy.retire("model", "large")
    rows = [{"model": m, "threads": 2} for m in ("large", "huge")]
    assert all(
        policy.ask(actions=rows).params["model"] == "huge" for _ in range(3)
    )  # fmt: skip
    with pytest.raises(cb.CBanditError, match="every action of this round is retired"):
        policy.ask(actions=rows[:1])
    with pytest.raises(cb.CBanditError, match="that among allows is retired"):
        policy.ask(among={"model": "large"})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.add("model", "large"), "add: model has the value 'large' already"),
        (lambda p: p.add("modell", "x"), r"one of \['model'\]; got 'modell'"),
        (lambda p: p.add("threads", 7), r"one of \['model'\]; got 'threads'"),
        (lambda p: p.add("model", ["x"]), "takes strings, numbers"),
        (lambda p: p.retire("model", "tiny"), "retire: model must be of Category"),
        (
            lambda p: [p.retire("model", m) for m in MODELS],
            "model must keep a value; none would be left",
        ),
    ],
)
def test_values_that_cannot_come_or_go(call, words):
    policy = build("grid")
    play(policy, "grid", 2)
    with pytest.raises(cb.CBanditError, match=words):
        call(policy)
    assert policy.actions.size == 9
    assert policy.t == 2
    play(policy, "grid", 2)


def test_add_needs_a_space_that_may_grow():
    plain = cb.GPUCB(
        (points := cb.Finite([[0.0], [1.0]])), reward=cb.GP.default(points)
    )
    with pytest.raises(cb.CBanditError, match=r"add needs a cb\.Space with a cb\.Cat"):
        plain.add("model", "new")
    with pytest.raises(cb.CBanditError, match="EpochPenalty has no retire"):
        build_epoch().retire("model", "small")


def build_epoch():
    space = cb.Space(**SPACES["grid"])
    return cb.EpochPenalty(space, reward=cb.GP.default(space), costs=1, epoch=3)


@pytest.mark.parametrize("fade", [None, 0.9])
def test_linear_beliefs_keep_what_they_know_and_start_newcomers_at_the_prior(fade):
    space = cb.Space(**SPACES["points"])
    gp = cb.GP.linear(space, fade=fade)
    policy = cb.CKB(space, reward=gp, costs=gp, trials=2)
    play(policy, "points", 12)
    before = policy.posterior(context=SHOWN["points"]).reward
    policy.add("model", "new")
    after = policy.posterior(context=SHOWN["points"]).reward
    assert after.mean.shape == (2, 4)
    assert torch.allclose(after.mean[:, :3], before.mean, atol=1e-9)
    assert torch.allclose(after.std[:, :3], before.std, atol=1e-9)
    # data only narrow: untold, it is wider than all others, and as wide as another
    assert bool((after.std[:, 3] > before.std.amax(-1)).all())
    policy.add("model", "newest")
    last = policy.posterior(context=SHOWN["points"]).reward
    assert torch.allclose(last.std[:, 3:], after.std[:, 3:].expand(-1, 2), atol=1e-9)
    assert torch.allclose(last.mean[:, 3], last.mean[:, 4], atol=1e-9)
    assert "new" in np.ravel(play(policy, "points", 8, seed=1)).tolist()
