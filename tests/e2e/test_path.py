"""The whole path by its own commands, with processes of the training that end on the way.

The verbs run in this process, on the Ray of the session: a Ray of its own for each would cost ten seconds and show
nothing more. Only `serve` is a process, as it is for its users.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.checkpoint.reader import load_tensors
from fusionray.cli import main
from fusionray.data import synthetic
from fusionray.data.shards import read_manifest
from fusionray.hardware.processes import find_processes
from fusionray.safety.provenance import read_provenance
from fusionray.tracking.store import make_client
from fusionray.training.faults.preemption import EXIT_STATUS
from tests.faults.driver import CONTROLLER, WORKER, meanwhile, wait_until
from tests.support.tiny_fusion import TINY_SOURCE
from tests.support.tiny_shards import flip_a_bit

ROOT = Path(__file__).resolve().parents[2]
WORLD = "synthetic://people=24,images=6,size=96,seed=3"
RUN_SECONDS = 240
STOP_SECONDS = 60
LINGER_SECONDS = 60
IMAGES = 960

TINY: dict[str, Any] = {
    "preset": "tiny-64",
    "run": {"name": "fusion"},
    "recipe": {
        "generator": {
            "channels": [8, 16, 24],
            "style_length": 32,
            "source": TINY_SOURCE.model_dump(mode="json"),
        },
        "discriminator": {"channels": [8, 16]},
    },
    "data": {"shuffle_buffer_rows": 32, "validation_images": 16},
    "engine": {"global_batch": 16, "schedule": {"warmup_images": 32}},
    "budget": {
        "images": IMAGES,
        "checkpoint_every_images": 160,
        "log_every_images": 32,
        "validate_every_images": IMAGES,
    },
    "workers": {"num_workers": 2, "threads": 1, "warm_spares": False},
}
ENCODER: dict[str, Any] = {
    "preset": "identity-small",
    "run": {"name": "encoder"},
    "recipe": {"encoder": {"channels": [8, 16], "blocks": [1, 1]}},
    "data": {"shuffle_buffer_rows": 32, "validation_images": 16},
    "engine": {"global_batch": 16, "schedule": {"warmup_images": 32}},
    "budget": {"images": 160, "checkpoint_every_images": 160, "log_every_images": 80, "validate_every_images": 160},
    "workers": {"num_workers": 1, "threads": 1, "warm_spares": False},
}


@dataclass(frozen=True)
class World:
    """Where this module works; `ray_folder` tells the processes of its Rays from all others."""

    folder: Path
    ray_folder: str

    @property
    def shards(self) -> Path:
        return self.folder / "shards"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {**inherited, "PYTHONPATH": str(ROOT / "platform"), "RAY_TMPDIR": self.ray_folder}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fusionray.cli", *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment()
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            output, errors = process.communicate(timeout=RUN_SECONDS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def settings(self, name: str, tree: dict[str, Any]) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(tree))
        return str(path)

    def processes(self) -> list[int]:
        """List what still runs of the Rays that this module started."""
        return find_processes(variable=f"RAY_TMPDIR={self.ray_folder}")

    def assert_nothing_runs(self) -> None:
        deadline = time.monotonic() + LINGER_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.processes() == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Iterator[World]:
    """Prepared shards and a trained encoder, made in this process: a Ray of its own each costs time, shows nothing."""
    # The path of a socket in it may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="fr-e2e-", ignore_cleanup_errors=True) as ray_folder:
        world = World(tmp_path_factory.mktemp("path"), ray_folder)
        assert (
            main(["prepare", WORLD, str(world.shards), "size=64", "validation_fraction=0.2", "rows_per_shard=36"]) == 0
        )
        encoder = world.settings("encoder", ENCODER)
        assert main(["train", "--config", encoder, "--output", str(world.runs), f"data.shards={world.shards}"]) == 0
        yield world


def test_encoder_is_validated_on_held_out_people(world: World) -> None:
    info = read_info(find_checkpoint(str(world.runs / "encoder")))
    assert info.images_seen == ENCODER["budget"]["images"]
    assert 0 <= info.metrics["verification_accuracy"] <= 1


def fusion_arguments(world: World, *more: str, output: Path | None = None) -> list[str]:
    places = [f"data.shards={world.shards}", f"recipe.identity_encoder={world.runs / 'encoder'}"]
    return ["train", "--config", world.settings("fusion", TINY), "--output", str(output or world.runs), *places, *more]


def checkpoints(world: World) -> list[int]:
    folders = (world.runs / "fusion").glob("checkpoint-*/info.json")
    return sorted(int(folder.parent.name.removeprefix("checkpoint-")) for folder in folders)


@dataclass(frozen=True)
class Interrupted:
    """What was seen of a fusion run that was told to end, and then lost a worker and its controller."""

    checkpoints: list[int]
    status: int
    told: str


def wait_for_more(world: World) -> None:
    """Wait until the run has a checkpoint that it does not have now."""
    newest = max(checkpoints(world), default=0)
    wait_until("another checkpoint", lambda: max(checkpoints(world), default=0) > newest)


def kill(title: str) -> None:
    """Kill a process of this session's Ray."""
    found = find_processes(f"ray::{title}", variable=f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}")
    assert found, f"no {title} runs"
    os.kill(found[0], signal.SIGKILL)


@pytest.fixture(scope="module")
def interrupted(world: World) -> Interrupted:
    """A fusion run that SIGTERM stopped; the same command has then finished it, in spite of two kills."""

    def tell() -> None:
        wait_for_more(world)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(tell), contextlib.redirect_stderr(io.StringIO()) as told:
        status = main(fusion_arguments(world))
    found = checkpoints(world)

    def kill_both() -> None:
        for title in (WORKER, CONTROLLER):
            wait_for_more(world)
            kill(title)

    with meanwhile(kill_both):
        # Processes in wait, as users have them: one of them takes the place of the worker.
        assert main(fusion_arguments(world, "workers.warm_spares=true")) == 0
    return Interrupted(found, status, told.getvalue())


def find_run(world: World, output: Path | None = None) -> tuple[Any, str]:
    client = make_client(f"sqlite:///{output or world.runs}/mlflow.db")
    experiment = client.get_experiment_by_name("fusionray")
    runs = client.search_runs([experiment.experiment_id], filter_string="tags.`fusionray.run` = 'fusion'")
    assert len(runs) == 1, "a run that goes on stays one run in the tracker"
    return client, runs[0].info.run_id


def test_run_that_is_told_to_end_does_so_with_a_checkpoint(interrupted: Interrupted) -> None:
    assert interrupted.status == EXIT_STATUS
    assert "stopped after SIGTERM" in interrupted.told
    assert 0 < interrupted.checkpoints[-1] < IMAGES


def test_interrupted_run_goes_on_from_its_last_checkpoints(world: World, interrupted: Interrupted) -> None:
    assert checkpoints(world)[-1] == IMAGES
    client, run_id = find_run(world)
    history = client.get_metric_history(run_id, "grad_norm_generator")
    positions = [entry.step for entry in sorted(history, key=lambda entry: entry.timestamp)]
    # Successors come again past what was logged after the last checkpoint: no entry is there twice.
    step = TINY["budget"]["log_every_images"]
    assert positions == list(range(step, IMAGES + 1, step))
    # Evaluations stand where they were made, with the values that the checkpoint has of them.
    newest = read_info(find_checkpoint(str(world.runs / "fusion")))
    looked = [name for name in newest.metrics if name.startswith("validation_")]
    assert looked
    for name in looked:
        (entry,) = client.get_metric_history(run_id, name)
        assert entry.step == IMAGES
        assert entry.value == pytest.approx(newest.metrics[name])


@pytest.fixture(scope="module")
def uninterrupted(world: World, ray_session: None) -> Path:
    """The output of the same fusion run without a break."""
    other = world.folder / "uninterrupted"
    assert main(fusion_arguments(world, output=other)) == 0
    return other


def test_interrupted_run_is_bit_for_bit_the_uninterrupted_one(
    world: World, interrupted: Interrupted, uninterrupted: Path
) -> None:
    wanted = load_tensors(find_checkpoint(str(uninterrupted / "fusion")))
    found = load_tensors(find_checkpoint(str(world.runs / "fusion")))
    assert found.keys() == wanted.keys()
    # Networks, averages, optimisers: data order, augmentation and rates were those of a run without a break.
    assert [name for name, value in wanted.items() if not torch.equal(value, found[name])] == []


def test_damage_in_mid_run_is_told_and_done_without(
    world: World, uninterrupted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    newest = Path(find_checkpoint(str(uninterrupted / "fusion")))
    flip_a_bit(next(newest.glob("*.bin")))
    manifest = read_manifest(str(world.shards))
    assert len(manifest.files("train")) > 2
    shard, lost = (world.shards / name for name in manifest.files("train")[:2])
    sound = {path: path.read_bytes() for path in (shard, lost)}
    flip_a_bit(shard)
    lost.unlink()
    try:
        longer = fusion_arguments(world, f"budget.images={IMAGES + 160}", output=uninterrupted)
        assert main(longer) == 0
    finally:
        for path, data in sound.items():
            path.write_bytes(data)
    told = capfd.readouterr().err
    assert re.search(rf"{newest.name}/\S+\.bin: does not hold what was saved .*; trying the previous one", told)
    assert f"{lost.name}: is missing" in told
    for path in (shard, lost):
        assert re.search(rf"worker \d: \S+/{path.name}: .*; rows of other files replace its rows", told), path
    assert read_info(find_checkpoint(str(uninterrupted / "fusion"))).images_seen == IMAGES + 160
    client, run_id = find_run(world, output=uninterrupted)
    assert max(entry.value for entry in client.get_metric_history(run_id, "replaced_rows")) > 0


def test_last_preview_is_in_the_tracker(world: World, interrupted: Interrupted) -> None:
    client, run_id = find_run(world)
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert "preview.png" in names
    with Image.open(client.download_artifacts(run_id, "preview.png", str(world.folder))) as preview:
        assert preview.width % 64 == 0
        assert preview.height % 64 == 0


def test_finished_run_has_nothing_left_to_do(
    world: World, interrupted: Interrupted, capfd: pytest.CaptureFixture[str], ray_session: None
) -> None:
    before = checkpoints(world)
    assert main(fusion_arguments(world)) == 0
    assert "nothing to do" in capfd.readouterr().err
    assert checkpoints(world) == before


@pytest.fixture(scope="module")
def bundle(world: World, interrupted: Interrupted) -> Path:
    """The exported bundle."""
    assert main(["export", str(world.runs / "fusion"), "--output", str(world.folder / "bundle")]) == 0
    return world.folder / "bundle"


@pytest.fixture(scope="module")
def pictures(world: World) -> dict[str, Path]:
    """Two people who look straight ahead, as files."""
    people = synthetic.sample_identities(2, seed=8)
    drawn = synthetic.render(people, synthetic.neutral_attributes(2), 192).clamp(0, 1)
    paths = {name: world.folder / f"{name}.png" for name in ("source", "target")}
    for path, picture in zip(paths.values(), drawn, strict=True):
        Image.fromarray((picture.permute(1, 2, 0).numpy() * 255).astype(np.uint8)).save(path)
    return paths


def test_exported_bundle_names_its_lineage_and_fuses_two_files(
    world: World, bundle: Path, pictures: dict[str, Path]
) -> None:
    description = json.loads((bundle / "bundle.json").read_text())
    assert description["lineage"]["config"]["run"]["name"] == "fusion"
    assert description["parity"]["largest_difference"] <= description["parity"]["tolerance"]
    output = world.folder / "fused.png"
    files = [str(pictures["source"]), str(pictures["target"]), str(output)]
    with pytest.warns(RuntimeWarning, match="TEST KEY"):
        assert main(["fuse", *files, "--bundle", str(bundle)]) == 0
    with Image.open(output) as picture, Image.open(pictures["target"]) as target:
        assert picture.size == (192, 192)
        assert np.abs(np.asarray(picture, np.int16) - np.asarray(target, np.int16)).max() > 0
    provenance = read_provenance(output.read_bytes())
    assert provenance is not None
    assert "AlgorithmicMedia" in provenance.digital_source_type


def test_served_bundle_answers_and_ends_with_its_signal(world: World, bundle: Path, pictures: dict[str, Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = world.start("serve", "--bundle", str(bundle), "--port", str(port))
    try:
        assert service.stdout is not None
        assert f"http://127.0.0.1:{port}" in service.stdout.readline()
        files = {name: path.read_bytes() for name, path in pictures.items()}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/fuse", files=files, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "image/png"
        assert read_provenance(answer.content) is not None
        service.send_signal(signal.SIGTERM)
        _, errors = service.communicate(timeout=STOP_SECONDS)
        assert service.returncode == 0, errors
    finally:
        service.kill()
        service.communicate()
    world.assert_nothing_runs()


def test_bundle_with_a_wrong_hash_is_refused(
    world: World, bundle: Path, pictures: dict[str, Path], capfd: pytest.CaptureFixture[str], ray_session: None
) -> None:
    damaged = world.folder / "damaged"
    shutil.copytree(bundle, damaged)
    with (damaged / "generator.onnx").open("r+b") as file:
        file.seek(200)
        file.write(b"\0\1\2\3")
    files = [str(pictures["source"]), str(pictures["target"]), str(world.folder / "never.png")]
    for arguments in (["fuse", *files], ["serve"]):
        assert "generator.onnx" in refusal(capfd, *arguments, "--bundle", str(damaged))


def refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a verb in this process and return the one line that it refuses with."""
    capfd.readouterr()
    assert main(arguments) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prepare", "/nowhere/faces", "{folder}/out"), "/nowhere/faces"),
        (("prepare", "{folder}/empty", "{folder}/out"), "empty"),
        (("train", "--preset", "tiny-64", "data.shards={folder}/shards", "engine.batch=3"), "engine.batch"),
        (("train", "--preset", "tiny-96", "data.shards={folder}/shards"), "tiny-64"),
        (("train", "--preset", "fast-128", "data.shards={folder}/shards", "--output", "{folder}/o"), "64 px"),
        (("train", "--preset", "tiny-64", "data.shards={folder}/none", "--output", "{folder}/o"), "none"),
        (("export", "{folder}/none", "--output", "{folder}/b"), "none"),
        (("fuse", "{folder}/source.png", "{folder}/target.png", "{folder}/c.png", "--bundle", "{folder}/none"), "none"),
    ],
)
@pytest.mark.usefixtures("pictures", "ray_session")
def test_bad_input_gets_one_clear_line(
    world: World, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    (world.folder / "empty").mkdir(exist_ok=True)
    assert words in refusal(capfd, *(argument.format(folder=world.folder) for argument in arguments))


def test_run_of_the_same_name_with_another_setting_is_refused(
    world: World, interrupted: Interrupted, capfd: pytest.CaptureFixture[str], ray_session: None
) -> None:
    line = refusal(capfd, *fusion_arguments(world, "recipe.weights.identity=9"))
    assert re.search(r"recipe\.weights\.identity \([\d.]+ before, 9\.0 now\)", line)


def test_a_command_of_its_own_prints_no_more_than_the_refusal(world: World) -> None:
    refused = world.run("prepare", "/nowhere/faces", str(world.folder / "out"))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == ["fusionray prepare: /nowhere/faces: no such folder or archive; check INPUT"]
