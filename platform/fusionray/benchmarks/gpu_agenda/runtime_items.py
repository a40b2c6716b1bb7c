"""Items about inference: a bundle is trained for a moment and exported, then run by every provider and precision."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fusionray.benchmarks.gpu_agenda.agenda import Workplace
from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, WeightPrecision
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser

BATCHES = (1, 2, 4, 8, 16, 32)
TIMED_SECONDS = 1.0
SERVED_WORLD = "synthetic://people=40,images=8,size=128,seed=0"
SERVED_IMAGES = 640
PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
}


def run_command(*arguments: str) -> None:
    """Run a verb of the command line; what it prints goes into the log of the item.

    Raises: LookupError if it fails.
    """
    done = subprocess.run([sys.executable, "-m", "fusionray.cli", *arguments], check=False)  # noqa: S603 - our own
    if done.returncode:
        raise LookupError(f"fusionray {arguments[0]} failed; see above")


def find_bundle(place: Workplace) -> Path:
    """The bundle of these items."""
    return place.folder / "bundle"


def make_bundle(place: Workplace, preset: str) -> dict[str, Any]:
    """Train a preset for a moment, and export it in every precision."""
    work = place.folder / "served"
    budget = [f"budget.{name}_images={SERVED_IMAGES}" for name in ("checkpoint_every", "validate_every")]
    run_command(
        "train",
        "--preset",
        preset,
        "--output",
        str(work),
        f"data.shards={SERVED_WORLD}",
        "run.name=served",
        f"budget.images={SERVED_IMAGES}",
        *budget,
    )
    started = time.monotonic()
    run_command("export", str(work / "served"), "--output", str(find_bundle(place)), "precisions=[fp32,fp16,int8]")
    return {"export_seconds": time.monotonic() - started}


def draw_inputs(bundle: Bundle, count: int) -> tuple[Any, Any]:
    """Draw sources and target crops of noise."""
    random = np.random.default_rng(0)
    sources = random.normal(0, EMBEDDING_LENGTH**-0.5, (count, *bundle.source_shape)).astype(np.float32)
    size = bundle.description.size
    return sources, random.integers(0, 256, (count, size, size, 3), np.uint8)


def run_generator(place: Workplace, provider: str, precision: WeightPrecision) -> dict[str, Any]:
    """Run the generator on a provider: seconds to open, faces/s by batch, and the difference to the CPU in float32."""
    bundle = read_bundle(str(find_bundle(place)))
    sources, crops = draw_inputs(bundle, max(BATCHES))
    wanted = CropFuser(bundle, RuntimeConfig(providers=PROVIDERS["cpu"])).fuse(sources[:4], crops[:4]).crops
    settings = RuntimeConfig(providers=PROVIDERS[provider], batches=BATCHES, cache=str(place.folder / "engines"))
    started = time.perf_counter()
    fuser = CropFuser(bundle, settings, precision=precision, max_batch=max(BATCHES))
    found = fuser.fuse(sources[:4], crops[:4]).crops
    opened = time.perf_counter() - started
    return {
        "provider": fuser.report.provider,
        "precision": fuser.report.precision,
        "seconds_to_first_answer": opened,
        "mean_difference": float(np.abs(found.astype(np.int16) - wanted).mean()),
        "faces_per_second": {size: time_batch(place, fuser, sources[:size], crops[:size]) for size in BATCHES},
    }


def time_batch(place: Workplace, fuser: CropFuser, sources: Any, crops: Any) -> float:
    """Return the faces/s of one batch after another."""
    fuser.fuse(sources, crops)
    with place.alone():
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < TIMED_SECONDS:
            fuser.fuse(sources, crops)
            done += len(crops)
        return done / (time.perf_counter() - started)


def train_to_the_end(place: Workplace, config: str) -> dict[str, Any]:
    """Train for the time that is left, with checkpoints, and evaluate the result."""
    if not Path(config).exists():
        raise LookupError(f"{config}: there is no such file; call this from a checkout")
    work = place.folder / "trained"
    # A fifth is for the evaluation.
    seconds = 0.8 * place.seconds
    run_command("train", "--config", config, "--output", str(work), f"budget.max_seconds={seconds:.0f}")
    (run,) = (folder for folder in work.iterdir() if list(folder.glob("checkpoint-*")))
    run_command("evaluate", str(run), "--output", str(work / "evaluation"), "pairs=200")
    return {"figures": (work / "evaluation" / "figures.json").read_text()}
