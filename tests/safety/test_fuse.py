from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from PIL import Image

from fusionray.bundle.bundle import bundle_hash, read_bundle
from fusionray.cli import main
from fusionray.safety.verify import verify
from tests.safety.certificates import Authority, write_files
from tests.support.pictures import draw_person
from tests.support.target_classifier import IN_RANGE, write_classifier
from tests.support.tiny_bundle import write_tiny_bundle


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """`fusionray fuse` of two pictures with a small bundle, into fused.jpg."""
    write_tiny_bundle(tmp_path / "bundle")
    for seed, name in enumerate(("source.png", "target.png"), 1):
        Image.fromarray(draw_person(seed)).save(tmp_path / name)
    files = [str(tmp_path / name) for name in ("source.png", "target.png", "fused.jpg")]
    return ["fuse", *files, "--bundle", str(tmp_path / "bundle")]


def test_fuse_signs_with_the_key_of_the_operator(arguments: list[str], authority: Authority, tmp_path: Path) -> None:
    key = generate_private_key(SECP256R1())
    settings = write_files(tmp_path / "operator", key, authority.issue(key))
    assert main([*arguments, "--certificate", str(settings.certificate), "--key", str(settings.key), "--mark"]) == 0
    data = (tmp_path / "fused.jpg").read_bytes()
    verdict = verify(data, authority.pem)
    assert verdict.holds
    bundle = read_bundle(str(tmp_path / "bundle"))
    assert (verdict.model, verdict.bundle) == (bundle.description.name, bundle_hash(bundle))
    with Image.open(tmp_path / "fused.jpg") as marked:
        plate = marked.crop((160, 170, 190, 190)).convert("L")
    assert max(plate.tobytes()) - min(plate.tobytes()) > 180


def test_fuse_without_a_key_signs_with_a_test_key_and_says_so(arguments: list[str], tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="TEST KEY"):
        assert main(arguments) == 0
    assert verify((tmp_path / "fused.jpg").read_bytes()).test_key


def test_fuse_with_half_a_key_leaves_no_picture(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--key", "key.pem"]) == 1
    assert "certificate and key belong together" in capsys.readouterr().err
    assert main([*arguments, "--certificate", "none.pem", "--key", "none.key"]) == 1
    assert "none.pem: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "fused.jpg").exists()


def test_fuse_takes_the_skin_of_the_head_around_the_face(arguments: list[str], tmp_path: Path) -> None:
    made = []
    for skin in ("source", "target"):
        with pytest.warns(RuntimeWarning, match="TEST KEY"):
            assert main([*arguments, "--skin", skin]) == 0
        with Image.open(tmp_path / "fused.jpg") as picture:
            made.append(np.asarray(picture).astype(int))
    own, matched = (np.abs(picture - draw_person(2)).mean() for picture in made)
    # The model inverts colours.
    assert matched < 0.85 * own


@pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")
def test_fuse_boosts_large_faces(arguments: list[str], tmp_path: Path) -> None:
    Image.fromarray(draw_person(2, 768)).save(tmp_path / "target.png")
    details = []
    for boost in ("1", "4"):
        assert main([*arguments, "--pixel-boost", boost]) == 0
        with Image.open(tmp_path / "fused.jpg") as picture:
            middle = np.asarray(picture.convert("L")).astype(np.float32)[300:500, 250:500]
        details.append(np.abs(np.diff(middle, axis=1)).mean())
    assert details[0] < 0.8 * details[1]


@pytest.mark.parametrize(("on", "threshold"), [("picture", 0.2), ("face", 0.2), ("face", 1.1)])
@pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")
def test_fuse_asks_the_target_policy(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], on: str, threshold: float
) -> None:
    made = threshold > 1
    model = write_classifier(tmp_path / "red.onnx")
    settings = {"model": str(model), "on": on, "refuse": {"red": threshold}} | {
        name: list(value) if isinstance(value, tuple) else value for name, value in IN_RANGE.items()
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(settings))
    assert main([*arguments, "--target-policy", str(tmp_path / "policy.yaml")]) == (0 if made else 1)
    assert (tmp_path / "fused.jpg").exists() == made
    assert ("rule red" in capsys.readouterr().err) != made


@pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")
def test_fuse_changes_the_face_of_the_reference(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = [draw_person(seed, side) for seed, side in ((5, 192), (6, 320))]
    row = np.full((320, 512, 3), 128, np.uint8)
    row[:192, :192], row[:, 192:] = people
    Image.fromarray(row).save(tmp_path / "target.png")
    Image.fromarray(people[0]).save(tmp_path / "reference.png")
    arguments[3] = str(tmp_path / "fused.png")
    reference = ["--reference", str(tmp_path / "reference.png")]
    assert main([*arguments, *reference]) == 0
    with Image.open(tmp_path / "fused.png") as picture:
        changed = (np.asarray(picture) != row).any(axis=(0, 2))
    assert changed[:192].any()
    assert not changed[192:].any()
    capsys.readouterr()
    Image.fromarray(draw_person(1)).save(tmp_path / "reference.png")
    assert main([*arguments, *reference, "--reference-similarity", "1"]) == 1
    assert "no face of the target picture has a similarity of 1" in capsys.readouterr().err
    assert main([*arguments, *reference, "--faces", "all"]) != 0


@pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")
def test_fuse_gives_each_face_its_own_source(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = np.full((320, 512, 3), 128, np.uint8)
    row[:192, :192], row[:, 192:] = draw_person(5, 192), draw_person(6, 320)
    Image.fromarray(row).save(tmp_path / "target.png")
    Image.fromarray(draw_person(9)).save(tmp_path / "other.png")
    arguments[3] = str(tmp_path / "fused.png")
    other = ["--source", str(tmp_path / "other.png")]

    def fuse(*more: str) -> np.ndarray:
        assert main([*arguments, *more]) == 0
        with Image.open(tmp_path / "fused.png") as picture:
            return np.asarray(picture)

    together, swapped = fuse(*other, "--faces", "1,0"), fuse(*other, "--faces", "0,1")
    # The smaller face, number 1, is at the left.
    assert (together[:, :192] == fuse("--faces", "1")[:, :192]).all()
    assert (swapped[:, 192:] == fuse("--faces", "0")[:, 192:]).all()
    assert (together[:, :192] != swapped[:, :192]).any()
    assert (together[:, 192:] != swapped[:, 192:]).any()
    capsys.readouterr()
    for faces in ("largest", "0", "0,1,2"):
        assert main([*arguments, *other, "--faces", faces]) != 0
        assert f"--faces {faces}: 2 sources are for as many faces, and" in capsys.readouterr().err
    reference = ["--reference", str(tmp_path / "other.png")]
    assert main([*arguments, *other, *reference]) != 0
