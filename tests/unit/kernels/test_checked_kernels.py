"""A device's kernels are checked at their first use, and replaced where they err."""

from __future__ import annotations

import warnings

import pytest
import torch
from inside import kernel_verdicts, pretended_device
from launches import DEVICE, Case, differences, launch, small_blocks

import cbandit as cb
import cbandit_kernels as ck

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def untried():
    """Kernels run on this device, Triton's interpreter, and none has been tried."""
    with pretended_device(), kernel_verdicts():
        yield


def counted(monkeypatch, name, play):
    calls = []

    def count(*args):
        calls.append(args)
        return play(*args)

    monkeypatch.setattr(launch, name, count)
    return calls


def finish(case):
    return case.finish(ck.finish_round)


def stream(case):
    return case.stream(ck.stream_round)


OTHER_FORMS = {
    torch.float32: (
        {"score": "least", "clipped": False},
        {"columns": 2},
        {"masked": True},
        {"drawn": True, "functions": 3},
    ),
    torch.float64: (),
}
ROUNDS = {
    "finish": (finish, ck.finish_round_ref),
    "stream": (stream, ck.stream_round_ref),
}


def wanted(case, name):
    play = case.finish if name == "finish" else case.stream
    return play(ROUNDS[name][1])


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sound_kernels_are_used_and_each_form_is_checked_once(name, dtype, monkeypatch):
    calls = counted(monkeypatch, name, getattr(launch, name))
    play, _ = ROUNDS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case = Case(dtype=dtype, trials=2)
        assert differences(case, play(case), wanted(case, name)) == []
        assert len(calls) == 2  # the check, and the round
        assert calls[0][-5].shape[-1] > 2000 > calls[1][-5].shape[-1] == case.n
        play(Case(dtype=dtype, trials=2, n=50))
        assert len(calls) == 3
        for more in OTHER_FORMS[dtype]:
            case, before = Case(dtype=dtype, **more), len(calls)
            assert differences(case, play(case), wanted(case, name)) == []
            assert len(calls) == before + 2


def wrong_mean(case, found, mean, var):
    mean[..., -1] += 0.01


def wrong_variance(case, found, mean, var):
    var[:, 7] = torch.nan


def wrong_index(case, found, mean, var):
    found.index.add_(1)


def wrong_value(case, found, mean, var):
    found.value.mul_(1.01)


FAULTS = (wrong_mean, wrong_variance, wrong_index, wrong_value)


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_kernel_that_errs_is_replaced_with_a_warning(name, fault, monkeypatch):
    real = getattr(launch, name)

    def faulty(*args):
        found = real(*args)
        fault(None, found, args[-5], args[-4])
        return found

    calls = counted(monkeypatch, name, faulty)
    case, (play, _) = Case(used=2), ROUNDS[name]
    with pytest.warns(RuntimeWarning, match=f"kernel '{name}'.*differs from plain"):
        outcome = play(case)
    assert differences(case, outcome, wanted(case, name)) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert differences(case, play(case), wanted(case, name)) == []
    assert len(calls) == 1


@pytest.mark.parametrize("error", [RuntimeError, ImportError, TypeError])
def test_a_compilers_error_is_a_warning(error, monkeypatch):
    def broken(*args):
        raise error("no such instruction")

    monkeypatch.setattr(launch, "finish", broken)
    case = Case()
    said = f"it fails there .{error.__name__}: no such instruction"
    with pytest.warns(RuntimeWarning, match=said):
        outcome = finish(case)
    assert differences(case, outcome, wanted(case, "finish")) == []


def test_a_lack_of_memory_is_no_verdict(monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(launch, "finish", full)
        with pytest.raises(torch.OutOfMemoryError):
            finish(Case())
    calls = counted(monkeypatch, "finish", launch.finish)
    finish(Case())
    assert len(calls) == 2


def test_whoever_insists_on_a_backend_gets_it(monkeypatch):
    calls = counted(monkeypatch, "finish", small_blocks(launch.finish))
    Case().finish(lambda *args: ck.finish_round(*args, backend="triton"))
    assert len(calls) == 1  # no check


@pytest.mark.parametrize("engine", ["product", "stream", "factor"])
def test_a_policy_chooses_as_in_plain_torch(engine, monkeypatch):
    axis = torch.linspace(0, 1, 6, dtype=torch.float64) ** 1.2
    actions = cb.ProductGrid([axis, axis * 1.1])
    gp = cb.GP.default(actions)
    gp = cb.GP(gp.kernel, noise=0.01)

    def choices(device):
        policy = cb.CKB(
            actions,
            reward=gp,
            costs=gp,
            step=0.2,
            cap=3.0,
            engine=engine,
            dtype=torch.float64,
            device=device,
        )
        chosen = []
        for _ in range(6):
            choice = policy.ask()
            x = choice.x.cpu()
            policy.tell(choice, reward=float(x.sum()), cost=float(x[0] - 0.6))
            chosen.append(int(choice.index))
        return chosen

    monkeypatch.setattr(launch, "finish", None)  # cannot be called
    monkeypatch.setattr(launch, "stream", None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        chosen = choices(DEVICE)
    assert any("Plain torch takes its place" in str(w.message) for w in said)
    with pretended_device(False):
        assert chosen == choices("cpu")
