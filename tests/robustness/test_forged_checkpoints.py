"""Forged checkpoints: whatever they claim, none runs code, inflates or is taken."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import tracemalloc
import warnings
import zipfile
import zlib

import pytest
import torch
from attacks import attacks
from inside import forge, read_summary, read_table, read_toml
from midway import prepared
from terminal import printed
from worlds import Plain, Uniform

import cbandit as cb

SIZE = 3_000_000  # bytes of a bomb
MOST = 200 * 2**20  # bytes of memory above the process


def body(*nodes, root=(0,), sizes=(), places=(), data=b""):
    """The body of a checkpoint."""
    text = json.dumps([list(root), list(sizes), list(places), *nodes])
    return text.encode() + b"\n" + data


def tensor(*place, sizes=((32, "cpu"),), data=bytes(32)):
    """A body that is a tensor where the places say."""
    return body(["tensor", 0], sizes=sizes, places=[list(place)], data=data)


def crowd(node, *others):
    """As many nodes of a kind as a bomb can hold."""
    text = json.dumps(node)
    count = SIZE // (len(text) + 1)
    head = json.dumps([[0], [], [], ["list", *others]])[:-1]
    return (head + "," + ",".join([text] * count) + "]\n").encode()


def archive(*members, level=zipfile.ZIP_DEFLATED):
    """An archive as torch.save writes them, but deflated."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", level) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of members that come twice
        for name, content in members:
            file.writestr(name, content)
    return out.getvalue()


def saved(value):
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def doubled(kind, first):
    """Sixty nodes from number ``first`` on, each with the next one twice, and a 0."""
    parts = [[kind, [k + 1], [k + 1]] for k in range(first, first + 60)]
    return [*parts, [kind, 0]]


def small_bombs():
    """Bodies of a few kB that would take for ever, or gigabytes, by name."""
    chain = doubled("tuple", 1)
    lock = "cbandit.policies.saving:Lock"
    endless = ["range", 0, 10**8, 1]
    yield "a set of doubled tuples", body(["set", [1]], *chain)
    yield "a frozenset of them", body(["frozenset", [1]], *chain)
    yield "sets of sets", body(*doubled("frozenset", 0))
    yield "a key of them", body(["dict", [1], 0], *chain)
    yield "an ordered key of them", body(["OrderedDict", [1], 0], *chain)
    yield "a list of them, to be hashed later", body(["list", [1]], *chain)
    yield (
        "two that are equal and not the same",
        body(["set", [1], [62]], *chain, *doubled("tuple", 62)),
    )
    told = "cbandit.policies.choices:Failure"
    objects = [["object", told, [k + 1], None, [0], [0]] for k in range(1, 120, 2)]
    inner = [["tuple", [k + 1], [k + 1]] for k in range(2, 121, 2)]
    nested = [node for pair in zip(objects, inner, strict=True) for node in pair]
    yield "a set of doubled named tuples", body(["set", [1]], *nested, ["tuple", 0])
    plan = "cbandit.posterior.engines.protocol:Plan"
    yield (
        "a set of an object that hashes its parts",
        body(
            ["set", [1]],
            *(["object", plan, [2], [3], [4], [4]], ["tuple"]),
            *(["dict", "name", [5], "why", ""], ["list"]),
            *doubled("tuple", 5),
        ),
    )
    twos = itertools.product((-1, -2), repeat=14)
    alike = [["tuple", *two] for two in itertools.islice(twos, 15_000)]
    yield (
        "tuples of one hash",
        body(["set", *([k] for k in range(1, 15_001))], *alike),
    )
    yield "deep tuples", body(["set", [1]], *(["tuple", [k + 2]] for k in range(400)))
    deep = [["list", *([k] for k in range(1, 50_001))], ["tuple", 0]]
    yield "deeper ones", body(*deep, *(["tuple", [k]] for k in range(1, 50_000)))
    yield "a range of arguments", body(["object", lock, [1], None, [1], [1]], endless)
    function = "cbandit.multipliers:exponential"
    yield (
        "a range of a function's arguments",
        body(["partial", [1], [2], [3]], ["name", function], endless, ["dict"]),
    )
    many = [["partial", [k + 1], [201], [202]] for k in range(200)]
    yield (
        "partials of partials",
        body(*many, ["name", function], ["tuple", *[0] * 20_000], ["dict"]),
    )
    attributes = [part for k in range(10_000) for part in (f"a{k}", 0)]
    yield (
        "one state of many objects",
        body(
            ["list", *([k] for k in range(3, 10_000))],
            *(["tuple"], ["dict", *attributes]),
            *[["object", "cbandit.actions.box:Box", [1], [2], [1], [1]]] * 9_997,
        ),
    )


BOMBS = dict(small_bombs())


def others(honest):
    """Bodies that are no policy, or none any more, by name."""
    zeros = bytes(MOST + 10**8)
    bomb = zlib.compress(zeros, 1)
    deep = b"[" * 200_000 + b"]" * 200_000
    head, _, tail = honest.partition(b"\n")
    parts = json.loads(head)
    huge = 10**12

    def changed(*path, to):
        again = json.loads(head)
        inner = again
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to
        return json.dumps(again).encode() + b"\n" + tail

    yield "zlib", bomb
    yield "zlib, as a line", bomb.replace(b"\n", b"") + b"\n"
    yield (
        "a deflated archive",
        archive(("a/data.pkl", pickle.dumps([])), ("a/0", zeros)),
    )
    yield (
        "members twice",
        archive(("a/data.pkl", b"."), ("a/data.pkl", pickle.dumps(1))),
    )
    yield "an archive in an archive", archive(("a", archive(("b", bomb))))
    yield "ints of one hash", body(["set", *(k * (2**61 - 1) for k in range(60_000))])
    yield "lists in lists", b"[" * 1_500_000 + b"]" * 1_500_000 + b"\n"
    yield "dicts in dicts", b'{"":' * 500_000 + b"0" + b"}" * 500_000 + b"\n"
    yield "saved by torch", saved({"nodes": torch.zeros(3), "tensors": []})
    yield "a view saved by torch", saved(torch.zeros(1).expand(huge))
    yield "a number", body(root=[5])[:0] + b"[5, [], []]\n"
    yield "a number in a node", body(["list", 5])
    yield "a dict", body(["dict", "a", 1])
    yield "a tensor", tensor(0, "float64", [4])
    yield (
        "a choice",
        body(
            ["object", "cbandit.choice:Choice", [1], [2], [3], [3]],
            ["tuple"],
            ["dict"],
            ["list"],
        ),
    )
    yield "a view of 10^12", tensor(0, "float64", [10**6, 10**6], 0, [0, 0])
    yield "a view of 10^12, of 1", tensor(0, "uint8", [huge], 0, [0])
    yield "a shape of 10^12", tensor(0, "float64", [huge])
    yield "a size of 10^12", tensor(0, "uint8", [huge], sizes=[[huge, "cpu"]])
    yield (
        "sizes that cancel",
        tensor(0, "uint8", [64], sizes=[[64, "cpu"], [-32, "cpu"]]),
    )
    yield "a negative offset", tensor(0, "float64", [1], -1)
    yield "an offset beyond the end", tensor(0, "float64", [1], 4)
    yield "negative strides", tensor(0, "float64", [2], 3, [-1])
    yield "wide strides", tensor(0, "float64", [2, 2], 0, [huge, 1])
    yield "a shape without end", tensor(0, "float64", [2**62, 2**62], 0, [0, 0])
    yield "a negative shape", tensor(0, "float64", [-1, -4])
    yield "another dtype", tensor(0, "object", [4])
    yield "another device", tensor(0, "uint8", [32], sizes=[[32, "meta"]])
    yield "another memory", tensor(1, "float64", [4])
    yield "deep nesting", deep + b"\n"
    yield "deep nodes", body(*(["list", [k + 1]] for k in range(100_000)), ["list"])
    yield "a tuple in itself", body(["tuple", [0]])
    yield "a frozenset in itself", body(["frozenset", [1]], ["tuple", [0]])
    yield "a list in itself", body(["list", [0]])
    yield (
        "a policy that is its own state",
        body(["object", "cbandit.policies.ckb:CKB", [1], [0], [1], [1]], ["tuple"]),
    )
    yield (
        "a policy without a state",
        body(["object", "cbandit.policies.ckb:CKB", [1], None, [1], [1]], ["tuple"]),
    )
    yield (
        "a policy of nothing",
        body(
            ["object", "cbandit.policies.ckb:CKB", [1], [2], [1], [1]],
            ["tuple"],
            ["dict"],
        ),
    )
    yield (
        "a billion trials",
        body(
            ["object", "cbandit._core.randomness:Streams", [1], [2], [1], [1]],
            *(
                ["tuple"],
                ["dict", "seed", 0, "trials", [3], "purpose", "", "each", [4]],
            ),
            *(["tuple", 0, 10**6], ["list", [5], [5]], ["tensor", 0]),
            sizes=[[5056, "cpu"]],
            places=[[0, "uint8", [5056]]],
            data=bytes(5056),
        ),
    )
    yield "many sets", crowd(["set"], *([k] for k in range(1, 1000)))
    yield "many dicts", crowd(["dict"])
    yield "many generators", crowd(["Generator", "cpu", 0])
    name = "cbandit._core.randomness:Streams"
    yield "many streams", crowd(["object", name, [1], None, [1], [1]])
    yield "many lists in lists", crowd([[], [], [], [], [], []])
    yield "a long text", body(["list", "x" * SIZE])
    yield "no nodes", body(root=[0])
    yield "not even a list", b"5\n"
    yield "no line", b"[" * 1000
    yield "nothing", b""
    yield from BOMBS.items()
    yield "cut", honest[: len(honest) // 2]
    yield "longer", honest + b"0"
    yield "without its last byte", honest[:-1]
    yield "tensors in another order", changed(1, to=parts[1][::-1])
    yield (
        "nodes in another order",
        json.dumps([*parts[:3], *parts[:2:-1]]).encode() + b"\n" + tail,
    )
    yield "another root", changed(0, to=[1])
    yield "no such root", changed(0, to=[10**9])
    yield "a pickle for numbers", head + b"\n" + pickle.dumps(print)
    for place in range(4):
        yield (
            f"a pickle before part {place}",
            changed(place, to=str(pickle.dumps(print))),
        )


@pytest.fixture
def honest(tmp_path):
    """The body of a policy's checkpoint."""
    policy, _, _ = prepared(trials=2)
    policy.save(tmp_path / "honest")
    return (tmp_path / "honest").read_bytes().partition(b"\n")[2]


MEASURED = """
import resource, sys
from pathlib import Path
import cbandit as cb
from cbandit.policies import ckb
from inside import forge

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

cb.load(Path(FOLDER) / "good")
before = peak()
for path in sorted(Path(FOLDER).glob("*.ckpt")):
    raw = path.read_bytes()
    try:
        print("TAKEN", path.name, cb.load(path))
    except cb.CheckpointError as error:
        said = str(error)
        fine = str(path) in said and "kept as it is" in said and "\\n" not in said
        print("refused" if fine else f"WORDS {said}", path.read_bytes() == raw)
    print("peak", path.name, peak() - before)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_what_a_small_file_repeats_is_bounded(name, tmp_path):
    """A file is read in time and memory of the order of its size."""
    content = BOMBS[name]
    assert len(content) < SIZE / 2
    path = tmp_path / "forged"
    forge(path, "policy", content)
    tracemalloc.start()
    try:
        with pytest.raises(cb.CheckpointError, match="kept as it is"):
            cb.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST


@pytest.mark.slow
def test_none_is_taken_and_none_inflates(tmp_path, honest):
    """All in one process, whose largest size ever is asked for."""
    mark = tmp_path / "mark"
    forge(tmp_path / "good", "policy", honest)
    bodies = [*others(honest), *attacks(mark)]
    names = {}
    for number, (name, content) in enumerate(bodies):
        path = tmp_path / f"{number:03d}.ckpt"
        forge(path, "policy", content)
        names[path.name] = name
        assert path.stat().st_size < 1.5 * SIZE, name
    assert len(bodies) > 150
    lines = printed(MEASURED.replace("FOLDER", repr(str(tmp_path)))).splitlines()
    taken = [line for line in lines if line.startswith(("TAKEN", "WORDS"))]
    assert not taken, [(line, names.get(line.split()[1])) for line in taken]
    assert lines.count("refused True") == len(bodies)
    assert not mark.exists(), "it ran"
    peaks = [line.split()[1:] for line in lines if line.startswith("peak")]
    over = [(names[name], size) for name, size in peaks if int(size) > MOST]
    assert not over


def test_a_run_and_a_simulation_are_whole(tmp_path, honest):
    problem = Plain()
    path, folder = tmp_path / "a.ckpt", tmp_path / "run"
    cb.simulate(Uniform(problem), problem, 5, path, progress=False).save(folder)
    run = (folder / "run.ckpt").read_bytes().partition(b"\n")[2]
    bodies = [*others(honest), ("a policy", honest), ("a run", run)]
    head, _, tail = run.partition(b"\n")
    for name in (
        "rewards",
        "actions",
        "policy",
        "seed",
        "trials",
        "objective",
        "names",
    ):
        again = json.loads(head)
        _, *parts = again[3]
        at = parts.index(name) + 2
        again[3][at] = [10**6] if name == "names" else 5.5
        bodies.append(
            (f"a run whose {name}", json.dumps(again).encode() + b"\n" + tail)
        )
    for name, content in bodies:
        if len(content) > SIZE // 20:
            continue  # the reader is the same
        forge(path, "simulation", content)
        policy = Uniform(problem)
        with pytest.raises(cb.CheckpointError, match="kept"):
            cb.simulate(policy, problem, 9, path, progress=False)
        assert policy.t == 0, name
        if name == "a run":
            continue
        forge(folder / "run.ckpt", "run", content)
        with pytest.raises(cb.CheckpointError, match="kept"):
            cb.Run.load(folder)


def misfits(honest, count):
    """So many bodies in each of which one part, anywhere, is none that fits."""
    head, _, tail = honest.partition(b"\n")
    parts = json.loads(head)
    spots = [(parts[1], k, [[32, "meta"], [0, "cpu"]]) for k in range(len(parts[1]))]
    for place in parts[2]:
        spots += [(place, 1, ["int64", "bool"]), (place, 2, [[], [1, *place[2]]])]
    for node in parts[3:]:
        if node[0] in ("tensor", "name", "method"):
            continue
        first = 2 if node[0] == "object" else 1
        values = range(first, len(node), 1 + (node[0] == "dict"))
        spots += [(node, k, [None, 7, -1, "x", float("nan"), 2**62]) for k in values]
        if len(node) > 2:
            spots.append((parts, parts.index(node), [node[:1]]))
    forged = [(*spot[:2], value) for spot in spots for value in spot[2]]
    for holder, key, value in forged[:: len(forged) // count]:
        before, holder[key] = holder[key], value
        yield json.dumps(parts).encode() + b"\n" + tail
        holder[key] = before


@pytest.mark.filterwarnings("ignore")  # a forged number may overflow, say
@pytest.mark.parametrize("name", ["CKB", "OPB", "contexts"])
def test_a_state_that_does_not_fit_ends_in_errors(tmp_path, name):
    """What is not seen when it is read is seen when it is used: nothing crashes."""
    path, line, shown = tmp_path / "state", cb.Finite(torch.rand(9, 1)), {}
    if name == "CKB":
        policy, _, _ = prepared(trials=2)
    elif name == "OPB":
        arms = cb.Counts(subgaussian=0.1, range=(0.0, 1.0))
        safe = cb.Safe(index=0, reward=0.0, cost=0.0)
        kinds = {"reward": arms, "costs": [arms], "safe": safe}
        policy = cb.OPB(line, **kinds, thresholds=0.5, horizon=50)
    else:
        space = cb.Space(kind=cb.Category("a", "b"), load=cb.Context(2))
        policy = cb.CKB(space, reward=cb.GP.linear(space), costs=[cb.GP.linear(space)])
        shown = {"context": {"load": [0.1, 0.2]}}
    lead, m = policy.batch_shape, policy.m

    def used(policy):
        for choice in [*policy.outstanding, policy.ask(**shown)]:
            policy.cancel(choice)
        told = {"reward": torch.zeros(lead), "cost": torch.zeros(*lead, m)}
        policy.tell(policy.ask(**shown), **told)
        policy.ask(**shown)
        policy.recommend(**shown)
        policy.history()
        policy.save(tmp_path / "again", overwrite=True)

    used(policy)
    policy.save(path)
    refused = set()
    for body in misfits(path.read_bytes().partition(b"\n")[2], 60):
        forge(path, "policy", body)
        try:
            loaded = cb.load(path)
        except cb.CheckpointError:
            refused.add("read")
            continue
        try:
            used(loaded)
        except Exception:
            refused.add("used")
    assert refused == {"read", "used"}


@pytest.mark.parametrize(
    "name", ["notes.txt", "plot.png", "empty", "model.pt", "z.zip"]
)
def test_a_wrong_file_is_told_what_it_is_not(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(
        {
            "notes.txt": b"to do: feed the cat\n",
            "plot.png": b"\x89PNG\r\n\x1a\n",
            "empty": b"",
            "model.pt": saved({"a": torch.zeros(2)}),
            "z.zip": archive(("a", b"b")),
        }[name]
    )
    with pytest.raises(cb.CheckpointError) as error:
        cb.load(path)
    assert str(error.value) == (
        f"{path} is not a checkpoint of cbandit: it does not begin with 'cbandit "
        "checkpoint'. Give a path that policy.save(path) or cb.simulate(..., "
        "checkpoint=path) has written; this one was kept as it is"
    )


def test_a_file_larger_than_the_memory_is_one_line_whatever_reads_it(tmp_path):
    """Some systems promise more memory than they have, and end who takes it."""
    path = tmp_path / "rows.csv"
    with open(path, "wb") as file:
        file.truncate(1 << 42)
    (tmp_path / "summary.json").symlink_to(path)
    for read in (cb.load, read_toml, read_table):
        with pytest.raises(cb.CBanditError, match="larger than the memory"):
            read(path)
    with pytest.raises(cb.CBanditError, match="larger than the memory"):
        read_summary(tmp_path)


def test_a_path_that_is_no_file_is_not_read(tmp_path):
    """A pipe or a device would never end, a folder or a long name has no bytes."""

    def refused(words, *paths):
        for odd in paths:
            with pytest.raises(cb.CBanditError, match=words):
                cb.load(odd)

    os.mkfifo(tmp_path / "pipe")
    refused("it is no file", tmp_path / "pipe", tmp_path, "/dev/zero")
    refused("must be a path", "x" * 300, "\ud800", "a\0b")
    (tmp_path / "loop").symlink_to("loop")
    refused("Symlink loop|symbolic links", tmp_path / "loop")


def test_large_sets_are_loaded(tmp_path):
    """10^7 numbers come back, in about the memory that they take."""
    points = torch.rand(5_000_000, 2, dtype=torch.float64)
    policy = cb.baselines.Random(cb.Finite(points), costs=1)
    policy.tell(policy.ask(), reward=1.0, cost=0.5)
    policy.save(tmp_path / "a")
    again = cb.load(tmp_path / "a")
    assert torch.equal(again.actions.points(torch.arange(5_000_000)), points)
    assert torch.equal(again.ask().x, policy.ask().x)
