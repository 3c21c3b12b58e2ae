"""What is shipped, and what importing it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile

import matrix
import pytest
from places import ROOT

import cbandit as cb

# every public switch of the libraries below, with its global value
SETTINGS = """
import gpytorch, linear_operator

def settings():
    out = {}
    for module in (gpytorch.settings, linear_operator.settings):
        for name, switch in vars(module).items():
            if isinstance(switch, type):
                for key in ("_state", "_default", "_global_value", "_value",
                            "_global_float_value", "_global_double_value",
                            "_global_half_value"):
                    if hasattr(switch, key):
                        out[f"{module.__name__}.{name}.{key}"] = getattr(switch, key)
    return {key: repr(value) for key, value in out.items()}
"""


def fresh_python(code: str, *options: str) -> dict[str, object]:
    """What ``code`` prints as JSON on its last line, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_is_light_and_changes_nothing_of_torch_or_numpy():
    seen = fresh_python(
        """
import json, random, sys, warnings
import numpy, torch

def state():
    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "print": str(vars(torch._tensor_str.PRINT_OPTS)),
        "torch draws": torch.random.get_rng_state().tolist(),
        "numpy draws": str(numpy.random.get_state()),
        "python draws": str(random.getstate()),
        "numpy errors": numpy.geterr(),
        "warnings": [str(f) for f in warnings.filters],
    }

import gpytorch
before = state()
import cbandit, cbandit_kernels
after = state()
print(json.dumps({
    "changed": [key for key in before if before[key] != after[key]],
    "heavy": [m for m in ("triton", "matplotlib", "pandas", "pyarrow", "cvxpy", "ray",
                          "ax", "IPython", "pytest") if m in sys.modules],
    "path": cbandit.__file__,
}))
"""
    )
    assert seen["changed"] == []
    assert seen["heavy"] == []


def test_import_leaves_gpytorch_settings_as_gpytorch_has_them():
    seen = fresh_python(
        SETTINGS
        + """
import json
before = settings()
import cbandit, cbandit_kernels
after = settings()
print(json.dumps({
    "number": len(before),
    "changed": {k: [before[k], after[k]] for k in before if before[k] != after[k]},
}))
"""
    )
    assert seen["changed"] == {}
    assert int(str(seen["number"])) > 40, "the settings were not found"


def test_that_check_would_notice_botorch():
    changed = fresh_python(
        SETTINGS
        + """
import json
before = settings()
import botorch
after = settings()
print(json.dumps({k: after[k] for k in before if before[k] != after[k]}))
"""
    )
    assert changed, "importing botorch no longer changes settings: simplify cbandit"


def test_import_warns_of_nothing():
    # gpytorch itself does, on import
    fresh_python(
        "import gpytorch, warnings; warnings.simplefilter('error');"
        "import cbandit, cbandit_kernels; print('{}')"
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    build += ["--no-build-isolation", "--wheel-dir", str(out), str(ROOT)]
    done = subprocess.run(
        build, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("cbandit-*.whl")
    return made


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_wheel_holds_both_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name.split("/")[0] for name in names if "dist-info" in name)
        metadata = archive.read(f"{info}/METADATA").decode()
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {
        "cbandit",
        "cbandit_kernels",
        info,
    }
    for package in ("cbandit", "cbandit_kernels"):
        assert f"{package}/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    shipped = {name for name in names if name.endswith(".py")}
    kept = {str(p.relative_to(ROOT)) for p in (ROOT / "cbandit").rglob("*.py")}
    kept |= {
        str(p.relative_to(ROOT / "kernels")) for p in (ROOT / "kernels").rglob("*.py")
    }
    assert shipped == kept
    assert "cbandit = cbandit.cli:main" in scripts
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata
    lines = [each for each in metadata.splitlines() if each.startswith("Requires-Dist")]
    pinned = [line for line in lines if "==" in line.split(";")[0]]
    assert not pinned, "pyproject.toml states ranges, constraints.txt the pins"


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_wheel_imports_from_where_it_is_installed(wheel, tmp_path):
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-index", "--target", str(target), str(wheel)]
    done = subprocess.run(
        install, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    # -I leaves out the working directory and the environment; the target goes first and
    # what an editable install put on the path goes
    seen = fresh_python(
        f"""
import json, sys
target, root = {str(target)!r}, {str(ROOT)!r}
sys.path = [target] + [p for p in sys.path if p not in (root, root + "/kernels")]
import cbandit, cbandit_kernels
from importlib.metadata import version
from importlib.util import find_spec
points = cbandit.Finite([[0.0], [1.0]])
policy = cbandit.GPTS(points, reward=cbandit.GP.default(points), trials=2)
print(json.dumps({{
    "files": [cbandit.__file__, cbandit_kernels.__file__, cbandit.problems.__file__],
    "kernels": find_spec("kernels") is not None,
    "chosen": policy.ask().x.shape,
}}))
""",
        "-I",
    )
    assert all(str(name).startswith(str(target)) for name in seen["files"])
    assert not seen["kernels"]
    assert seen["chosen"] == [2, 1]


def test_no_package_is_called_kernels():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    for folder in ("tests", "benchmarks", "notebooks"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_every_pin_is_exact_and_every_dependency_pinned():
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    lines = [line.split(";")[0].strip() for line in lines if not line.startswith("#")]
    pins = [line for line in lines if line]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    pinned = {plain(pin.split("==")[0]) for pin in pins}
    assert len(pinned) == len(pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    wanted += project["build-system"]["requires"]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    names = {plain(re.match(r"[A-Za-z0-9._-]+", each)[0]) for each in wanted}
    assert names - {"cbandit"} <= pinned


def test_the_lowest_versions_can_be_read():
    pins = set(matrix.lowest(ROOT / "pyproject.toml"))
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert torch.replace("==", ">=") in table["dependencies"]
    assert "paretobandit==0.1.1" in pins  # its range has an upper end too


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == cb.__version__
