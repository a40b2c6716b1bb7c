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


def case(preset: str, *overrides: str, batch: int = 4) -> dict[str, Any]:
    return {
        "preset": preset,
        "overrides": list(overrides),
        "batch": batch,
        "paired": UNPAIRED not in overrides,
    }


# Name of the case -> most kernels of a usual step. Counts do not depend on the machine; room for small changes.
QUICK = {
    "tiny-64": (case("tiny-64"), 7400),
    "fp16": (case("tiny-64", UNPAIRED, ADAPTIVE, DISGUISE, "engine.precision=fp16"), 3500),
    "identity-small": (case("identity-small"), 600),
    "attributes-small": (case("attributes-small"), 400),
    "style-tiny": (case("style-tiny"), 1400),
    "style-encoder": (case("style-encoder"), 380),
}
SLOW = {
    "fast-128": (case("fast-128", batch=32), 8900),
    "fast-128 unpaired": (case("fast-128", UNPAIRED, batch=32), 4500),
    "base-256": (case("base-256"), 10200),
    "large-512": (case("large-512"), 9900),
    "identity-64": (case("identity-64"), 600),
    "identity-r50": (case("identity-r50"), 950),
    "identity-evaluator": (case("identity-evaluator"), 650),
    "identity-evaluator-64": (case("identity-evaluator-64"), 650),
    "identity-photographs": (case("identity-photographs"), 600),
    "identity-evaluator-photographs": (case("identity-evaluator-photographs"), 650),
    "face-parser": (case("face-parser"), 5200),
    "style-small": (case("style-small"), 1400),
    "style-adain": (case("style-adain"), 700),
    "style-adain-tiny": (case("style-adain-tiny"), 700),
    "style-evaluator": (case("style-evaluator"), 380),
    "style-encoder-tiny": (case("style-encoder-tiny"), 380),
    "fp32": (case("tiny-64", UNPAIRED, "engine.precision=fp32"), 2300),
    "adamw ada": (case("tiny-64", "recipe.generator_optimizer.kind=adamw", ADAPTIVE), 7400),
    "sgd": (case("tiny-64", UNPAIRED, "recipe.generator_optimizer.kind=sgd"), 2300),
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
    cases.write_text("".join(json.dumps({"name": name, **described}) + "\n" for name, (described, _) in chosen.items()))
    answers = run_python("-W", "ignore", "-m", "tests.support.fake_cuda.steps", str(library), str(cases))
    return {answer["name"]: answer for answer in map(json.loads, answers.splitlines())}


@pytest.fixture(scope="module")
def quick(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return take_steps(library, tmp_path_factory.mktemp("quick"), QUICK)


# A line each: what the host does with a tensor of the GPU, and whether it waits.
ASKS = {
    "value.sum().item()": True,
    "bool((value > 0).any())": True,
    "value.tolist()": True,
    "value.cpu()": True,
    "(value > 0).nonzero()": True,
    "value[:, [0, 1]]": True,
    "torch.tensor([1.0, 2.0], device=value.device)": True,
    "value.to('cpu', non_blocking=True)": False,
    "(value * 2).relu_()": False,
}
PROGRAM = """
import sys
from tests.support.fake_cuda.tensors import fake_cuda, install
install(sys.argv[1])
import torch
with fake_cuda() as watch:
    value = torch.ones(3, 4, device="cuda:0")
    for line in sys.argv[2:]:
        watch.start()
        eval(line)
        print(sum(watch.waits.values()) > 0)
    try:
        value + torch.ones(3, 4)
    except RuntimeError:
        print("refused")
"""


def test_what_the_host_waits_for_is_seen_and_devices_do_not_mix(library: Path) -> None:
    printed = run_python("-W", "ignore", "-c", PROGRAM, str(library), *ASKS).split()
    assert printed == [*map(str, ASKS.values()), "refused"]


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
