"""`fusionray bench style`: measure the configured parts, write figures.json, report.html and report.md."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tqdm import tqdm

from fusionray.bands.writer import BandOutput, BandWriter
from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.interleaving import Pace, interleave
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.serve.inputs import write_untrained
from fusionray.benchmarks.style.config import Size, StyleBenchConfig, StylePart
from fusionray.bundle.bundle import Bundle
from fusionray.checkpoint.info import find_checkpoint
from fusionray.data.synthetic.pictures import draw_style
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, ServiceFailed
from fusionray.export.export import ExportConfig, export
from fusionray.faces.face import Image
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.nets.style_transfer import StyleTransferNetwork
from fusionray.recipes.registry import find_family
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.style_transfer.stylizer import Stylizer
from fusionray.training.dry_run.dry_run import build_dry_recipe, load_dry_config

ROWS = 256
# A content is a texture that repeats, on a slope of brightness: no two bands are alike.
TEXTURE_SIDE = 512


@dataclass(frozen=True)
class Subject:
    """The network that is measured, exported and in PyTorch, with a style, and the folder for pictures."""

    config: StyleBenchConfig
    bundle: Bundle
    network: StyleTransferNetwork
    style: Image
    folder: Path


def bench_style(config: StyleBenchConfig) -> BenchResult:
    """Measure the parts that `config` names, and write figures.json, report.html and report.md.

    Raises: ConfigInvalid, CheckpointMissing, BundleInvalid.
    """
    config = config.model_copy(update={"output": resolve_location(config.output)})
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    keys = {name: key for name, key in load_keys("style").items() if key.part in config.parts}
    findings = Findings()
    with TemporaryDirectory(prefix="pictures-", dir=output) as folder:
        subject = open_subject(config, Path(folder))
        for part in config.parts:
            own = [name for name, key in keys.items() if key.part == part]
            try:
                with tqdm(desc=f"bench {part}", unit=" measurements") as bar:
                    findings.add(MEASURES[part](subject, lambda bar=bar: bar.update()))  # type: ignore[misc]
            except ServiceFailed as error:
                findings.add(Findings(missing=dict.fromkeys(own, str(error))))
            # Written after each part, so that a failure later loses nothing.
            result = write_result(output, "style", keys, findings)
    return result


def open_subject(config: StyleBenchConfig, folder: Path) -> Subject:
    """Open the network of a run, or one with random weights, which is as fast, and export it."""
    family = find_family("style_transfer")
    if config.run is None:
        settings = load_dry_config(None, [], config.preset)
        if settings.recipe.name != family.name:
            raise ConfigInvalid(f"preset={config.preset}: is not of style transfer")
        recipe, _ = build_dry_recipe(settings)
        network = recipe.networks["stylizer"].network
        bundle = write_untrained(family.export_recipe(recipe, ""), config.preset, folder / "bundle")
    else:
        network = family.load_model(find_checkpoint(config.run))
        bundle = export(ExportConfig(checkpoint=config.run, output=str(folder / "bundle")))
    if not isinstance(network, StyleTransferNetwork):
        raise ConfigInvalid(f"run={config.run}: is not a run of style transfer")
    return Subject(config, bundle, network.eval(), draw_style(0, 0, bundle.description.size), folder)


def draw_content(size: Size, rows: range) -> Image:
    """Draw rows of a content."""
    texture = np.random.default_rng(0).integers(0, 100, (TEXTURE_SIDE, TEXTURE_SIDE, 3), np.uint8)
    columns = np.arange(size[0]) % TEXTURE_SIDE
    part = texture[np.asarray(rows) % TEXTURE_SIDE][:, columns]
    slope = (np.asarray(rows)[:, None] / size[1] + np.arange(size[0]) / size[0]) * 75
    return np.asarray(part + slope[:, :, None].astype(np.uint8), np.uint8)


def write_content(size: Size, path: Path) -> Path:
    """Write a content as PNG."""
    with BandWriter(path, *size, BandOutput("png")) as writer:
        for start in range(0, size[1], ROWS):
            writer.write(draw_content(size, range(start, min(start + ROWS, size[1]))))
    return path


def measure_speed(subject: Subject, tick: Callable[[], None]) -> Findings:
    """Compare with a plain loop, in turns: uint8 to uint8, with a style that is encoded once."""
    config, findings = subject.config, Findings()
    stylizer = Stylizer(subject.bundle, RuntimeConfig(threads=config.threads))
    encoded = stylizer.encode_style(subject.style)
    with torch.no_grad():
        style = subject.network.encode_style(to_float(torch.from_numpy(subject.style).permute(2, 0, 1)[None]))
    former = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        for name, size in (("512", config.small), ("2k", config.medium), ("8k", config.large)):
            content = draw_content(size, range(size[1]))
            candidates = {
                "product": lambda content=content: stylizer.paint(content, encoded),
                "plain": lambda content=content: paint_plainly(subject.network, content, style),
            }
            once = name == "8k"
            seconds = interleave(
                candidates,
                Pace(rounds=1 if once else config.rounds, steps=1 if once else 3),
                device=torch.device("cpu"),
                warm_up=0 if once else 1,
                tick=tick,
            )
            steps = 1 if once else 3
            findings.values[f"pictures_per_second_{name}"] = [steps / each for each in seconds["product"]]
            pairs = zip(seconds["plain"], seconds["product"], strict=True)
            findings.values[f"vs_plain_{name}"] = [plain / product for plain, product in pairs]
    finally:
        torch.set_num_threads(former)
    return findings


@torch.no_grad()
def paint_plainly(network: StyleTransferNetwork, content: Image, style: torch.Tensor) -> Image:
    """Paint a content as one would with PyTorch alone; the benchmark's sides are multiples of 4."""
    batch = to_float(torch.from_numpy(content).permute(2, 0, 1)[None])
    painted: Image = to_uint8(network.paint(batch, style))[0].permute(1, 2, 0).contiguous().numpy()
    return painted


def measure_tiles(subject: Subject, tick: Callable[[], None]) -> Findings:
    """Compare processes that stylize a file whole, in tiles, and in tiles with statistics of a reduced picture."""
    content = write_content(subject.config.large, subject.folder / "large.png")
    used, values = {}, {}
    for mode in ("whole", "tiled", "fast"):
        used[mode] = work(subject, mode, content)
        tick()
    for mode in used:
        work(subject, f"{mode}-values", content, output=subject.folder / f"{mode}.npy")
        values[mode] = np.load(subject.folder / f"{mode}.npy", mmap_mode="r")
        tick()
    described = subject.bundle.tensor("generator.onnx", "output")
    span = float(np.max(described.maximum)) - float(np.min(described.minimum))

    def differ(mode: str) -> float:
        pairs = itertools.product(range(3), range(0, values["whole"].shape[1], ROWS))
        parts = ((channel, slice(start, start + ROWS)) for channel, start in pairs)
        return max(float(np.abs(values[mode][part] - values["whole"][part]).max()) for part in parts) / span

    notes = [f"{mode}: {each['seconds']:.1f} s, {each['peak_mib']:.0f} MiB" for mode, each in used.items()]
    return Findings(
        {
            "tiled_memory_ratio_8k": [used["tiled"]["peak_mib"] / used["whole"]["peak_mib"]],
            "tiled_time_ratio_8k": [used["tiled"]["seconds"] / used["whole"]["seconds"]],
            "tiled_time_ratio_8k_fast": [used["fast"]["seconds"] / used["whole"]["seconds"]],
            "tiled_max_difference": [differ("tiled")],
            "tiled_max_difference_fast": [differ("fast")],
        },
        notes=notes,
    )


def measure_growth(subject: Subject, tick: Callable[[], None]) -> Findings:
    """Compare the memory of processes that stylize files of different widths in tiles."""
    peaks = []
    for size in (subject.config.large, subject.config.huge):
        content = write_content(size, subject.folder / "content.png")
        peaks.append(work(subject, "tiled", content)["peak_mib"])
        tick()
    width, height = subject.config.huge
    notes = [f"{width} x {height} px: {peaks[1]:.0f} MiB at most, {peaks[0]:.0f} at the smaller size"]
    return Findings({"memory_growth_mib_30k": [peaks[1] - peaks[0]]}, notes=notes)


def work(subject: Subject, mode: str, content: Path, output: Path | None = None) -> dict[str, float]:
    """Run `benchmarks.style.work`; return seconds and the largest memory.

    Raises: ServiceFailed.
    """
    style = subject.folder / "style.png"
    if not style.exists():
        with BandWriter(style, subject.style.shape[1], subject.style.shape[0], BandOutput("png")) as writer:
            writer.write(subject.style)
    module, bundle = "fusionray.benchmarks.style.work", str(subject.bundle.folder)
    files = [bundle, str(content), str(style), str(output or subject.folder / "out.png")]
    command = [sys.executable, "-m", module, mode, *files, str(subject.config.threads)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the program itself
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ServiceFailed(f"{mode}: ended with {done.returncode} after {time.monotonic() - started:.0f} s ({last})")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


MEASURES: dict[StylePart, Callable[[Subject, Callable[[], None]], Findings]] = {
    "speed": measure_speed,
    "tiles": measure_tiles,
    "growth": measure_growth,
}
