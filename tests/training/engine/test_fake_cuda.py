"""Whole steps on a GPU that does not exist: no wrong device or dtype, no waiting of the host, and how many kernels."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.child_python import ROOT, run_python

SOURCE = ROOT / "tests" / "support" / "fake_cuda" / "device.cpp"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

UNPAIRED = "recipe.paired=false"
ADAPTIVE = "recipe.adaptive_augmentation.target_real_sign=0.6"
DISGUISE = "recipe.identity_perturbation={}"


def case(name: str, preset: str, *overrides: str, batch: int = 4) -> dict[str, Any]:
    return {
        "name": name,
        "preset": preset,
        "overrides": list(overrides),
        "batch": batch,
        "paired": UNPAIRED not in overrides,
    }


# Name of the case -> most kernels of a usual step. Counts do not depend on the machine; room for small changes.
QUICK = {
    "tiny-64": (case("tiny-64", "tiny-64"), 7400),
    "fp16": (case("fp16", "tiny-64", UNPAIRED, ADAPTIVE, DISGUISE, "engine.precision=fp16"), 3500),
    "identity-small": (case("identity-small", "identity-small"), 600),
    "attributes-small": (case("attributes-small", "attributes-small"), 400),
}
SLOW = {
    "fast-128": (case("fast-128", "fast-128", batch=32), 8900),
    "fast-128 unpaired": (case("fast-128 unpaired", "fast-128", UNPAIRED, batch=32), 4500),
    "base-256": (case("base-256", "base-256"), 10200),
    "large-512": (case("large-512", "large-512"), 9900),
    "identity-64": (case("identity-64", "identity-64"), 600),
    "identity-r50": (case("identity-r50", "identity-r50"), 950),
    "identity-evaluator": (case("identity-evaluator", "identity-evaluator"), 650),
    "identity-evaluator-64": (case("identity-evaluator-64", "identity-evaluator-64"), 650),
    "fp32": (case("fp32", "tiny-64", UNPAIRED, "engine.precision=fp32"), 2300),
    "adamw ada": (case("adamw ada", "tiny-64", "recipe.generator_optimizer.kind=adamw", ADAPTIVE), 7400),
    "sgd": (case("sgd", "tiny-64", UNPAIRED, "recipe.generator_optimizer.kind=sgd"), 2300),
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device as a library, linked to torch."""
    built = tmp_path_factory.mktemp("fake-cuda") / "libdevice.so"
    torch = next(Path(folder, "torch") for folder in sys.path if Path(folder, "torch", "include").is_dir())
    libraries = torch / "lib"
    options = ["-O1", "-fPIC", "-shared", "-std=c++20", f"-I{torch / 'include'}", f"-L{libraries}"]
    links = ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
    done = subprocess.run(
        ["g++", *options, str(SOURCE), *links, "-o", str(built)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return built


def take_steps(library: Path, folder: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    """Take the steps of all cases, in a process in which torch knows the device."""
    cases = folder / "cases.jsonl"
    cases.write_text("".join(json.dumps(description) + "\n" for description, _ in chosen.values()))
    answers = run_python("-W", "ignore", "-m", "tests.support.fake_cuda.steps", str(library), str(cases))
    return {answer["name"]: answer for answer in map(json.loads, answers.splitlines())}


@pytest.fixture(scope="module")
def quick(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return take_steps(library, tmp_path_factory.mktemp("quick"), QUICK)


@pytest.mark.parametrize("name", QUICK)
def test_the_host_waits_for_nothing_in_a_step(quick: dict[str, Any], name: str) -> None:
    assert quick[name]["waits"] == {"usual": {}, "all": {}}


@pytest.mark.parametrize("name", QUICK)
def test_a_step_starts_no_more_kernels_than_it_did(quick: dict[str, Any], name: str) -> None:
    assert 0 < quick[name]["kernels"]["usual"] <= QUICK[name][1], quick[name]["operations"]


@pytest.mark.slow(seconds=90)
def test_every_other_preset_neither_waits_nor_starts_more_kernels(library: Path, tmp_path: Path) -> None:
    answers = take_steps(library, tmp_path, SLOW)
    for name, (_, most) in SLOW.items():
        assert answers[name]["waits"] == {"usual": {}, "all": {}}, name
        assert 0 < answers[name]["kernels"]["usual"] <= most, name
