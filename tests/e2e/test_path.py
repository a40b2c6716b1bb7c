"""The whole path by its own commands: prepare, train, export, fuse, serve. Stops: test_interruptions.py."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from fusionray.cli import main
from fusionray.data import synthetic
from fusionray.safety.provenance import read_provenance
from tests.support.workspace import IMAGES, FusionRun, Workspace

STOP_SECONDS = 60


@pytest.fixture(scope="module")
def trained(prepared: Workspace) -> FusionRun:
    run = prepared.fusion_run()
    assert run.train() == 0
    return run


def test_the_last_checkpoint_has_seen_all_images(trained: FusionRun) -> None:
    assert trained.checkpoints()[-1] == IMAGES


def test_last_preview_is_in_mlflow(trained: FusionRun) -> None:
    client, run_id = trained.find_in_mlflow()
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert "preview.png" in names
    with Image.open(client.download_artifacts(run_id, "preview.png", str(trained.output))) as preview:
        assert preview.width % 64 == 0
        assert preview.height % 64 == 0


def test_finished_run_has_nothing_left_to_do(trained: FusionRun, capfd: pytest.CaptureFixture[str]) -> None:
    before = trained.checkpoints()
    assert trained.train() == 0
    assert "nothing to do" in capfd.readouterr().err
    assert trained.checkpoints() == before


@pytest.fixture(scope="module")
def bundle(prepared: Workspace, trained: FusionRun) -> Path:
    """The exported bundle."""
    assert main(["export", str(trained.folder), "--output", str(prepared.folder / "bundle")]) == 0
    return prepared.folder / "bundle"


@pytest.fixture(scope="module")
def pictures(prepared: Workspace) -> dict[str, Path]:
    """Two people who look straight ahead, as files."""
    people = synthetic.sample_identities(2, seed=8)
    drawn = synthetic.render(people, synthetic.neutral_attributes(2), 192).clamp(0, 1)
    paths = {name: prepared.folder / f"{name}.png" for name in ("source", "target")}
    for path, picture in zip(paths.values(), drawn, strict=True):
        Image.fromarray((picture.permute(1, 2, 0).numpy() * 255).astype(np.uint8)).save(path)
    return paths


def test_exported_bundle_names_its_lineage_and_fuses_two_files(
    prepared: Workspace, bundle: Path, pictures: dict[str, Path]
) -> None:
    description = json.loads((bundle / "bundle.json").read_text())
    assert description["lineage"]["config"]["run"]["name"] == "fusion"
    for path in bundle.iterdir():
        assert str(prepared.folder).encode() not in path.read_bytes(), f"{path.name} names a folder of this machine"
    assert description["parity"]["largest_difference"] <= description["parity"]["tolerance"]
    output = prepared.folder / "fused.png"
    files = [str(pictures["source"]), str(pictures["target"]), str(output)]
    with pytest.warns(RuntimeWarning, match="TEST KEY"):
        assert main(["fuse", *files, "--bundle", str(bundle)]) == 0
    with Image.open(output) as picture, Image.open(pictures["target"]) as target:
        assert picture.size == (192, 192)
        assert np.abs(np.asarray(picture, np.int16) - np.asarray(target, np.int16)).max() > 0
    provenance = read_provenance(output.read_bytes())
    assert provenance is not None
    assert "AlgorithmicMedia" in provenance.digital_source_type


def test_served_bundle_answers_and_ends_with_its_signal(
    prepared: Workspace, bundle: Path, pictures: dict[str, Path]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = prepared.start("serve", "--bundle", str(bundle), "--port", str(port))
    try:
        assert service.stdout is not None
        first_line = service.stdout.readline()
        assert f"http://127.0.0.1:{port}" in first_line, service.communicate(timeout=STOP_SECONDS)
        files = {name: path.read_bytes() for name, path in pictures.items()}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/fuse", files=files, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "image/png"
        assert read_provenance(answer.content) is not None
        service.send_signal(signal.SIGTERM)
        output, errors = service.communicate(timeout=STOP_SECONDS)
        assert service.returncode == 0, errors
        assert output == "", "it ends without a word"
    finally:
        service.kill()
        service.communicate()
    prepared.assert_nothing_runs()


def test_bundle_with_a_wrong_hash_is_refused(
    prepared: Workspace, bundle: Path, pictures: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = prepared.folder / "damaged"
    shutil.copytree(bundle, damaged)
    with (damaged / "generator.onnx").open("r+b") as file:
        file.seek(200)
        file.write(b"\0\1\2\3")
    files = [str(pictures["source"]), str(pictures["target"]), str(prepared.folder / "never.png")]
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
    prepared: Workspace, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    (prepared.folder / "empty").mkdir(exist_ok=True)
    assert words in refusal(capfd, *(argument.format(folder=prepared.folder) for argument in arguments))


def test_run_of_the_same_name_with_another_setting_is_refused(
    trained: FusionRun, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capfd, *trained.command("recipe.weights.identity=9"))
    assert re.search(r"recipe\.weights\.identity \([\d.]+ before, 9\.0 now\)", line)


def test_a_command_of_its_own_prints_no_more_than_the_refusal(prepared: Workspace) -> None:
    refused = prepared.run("prepare", "/nowhere/faces", str(prepared.folder / "out"))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == ["fusionray prepare: /nowhere/faces: no such folder or archive; check INPUT"]
