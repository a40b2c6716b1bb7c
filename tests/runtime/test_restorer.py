from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from fusionray.bundle.bundle import Bundle
from fusionray.cli import main
from fusionray.errors import ConfigInvalid
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import decode_image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.restorer import FaceRestorer, RestorerConfig, open_restorer
from fusionray.safety.verify import verify
from fusionray.video.files.reader import VideoReader
from tests.support.pictures import draw_person
from tests.support.restorers import write_restorer, write_restorer_settings
from tests.support.tiny_bundle import write_tiny_bundle
from tests.video.films import film

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)
SIDE = 320


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_tiny_bundle(tmp_path_factory.mktemp("restored") / "bundle")


def build(path: Path, **settings: Any) -> FaceRestorer:
    restorer = open_restorer(
        RestorerConfig.model_validate({"model": str(path), "licence": "MIT", "size": 256, "strength": 1.0, **settings}),
        ON_CPU,
    )
    assert restorer is not None
    return restorer


def fuse(bundle: Bundle, restorer: FaceRestorer | None, strength: float = 1.0) -> Image:
    fuser = Fuser(bundle, build_detector("default"), ON_CPU, restorer=restorer)
    return fuser.fuse(draw_person(1, SIDE), draw_person(2, SIDE), strength=strength).image


def test_only_what_was_fused_is_restored(bundle: Bundle, tmp_path: Path) -> None:
    target, plain = draw_person(2, SIDE), fuse(bundle, None)
    restored = fuse(bundle, build(write_restorer(tmp_path / "invert.onnx", "invert")))
    is_fused, is_restored = ((each != target).any(axis=2) for each in (plain, restored))
    # The weights of both blends are rounded, so the rim is a pixel or two different.
    grown = cv2.dilate(is_fused.astype(np.uint8), np.ones((7, 7), np.uint8)) > 0
    assert (grown | ~is_restored).all()
    middle = slice(SIDE // 2 - 20, SIDE // 2 + 20)
    # The generator inverts the target, so what is inverted again is the target.
    assert np.abs(restored[middle, middle].astype(int) - plain[middle, middle]).mean() > 30


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"factor": 2}, {}),
        ({"weighted": True}, {"inputs": {"weight": 1.0}}),
        ({}, {"template": "arcface_128"}),
    ],
)
def test_a_model_that_changes_nothing_changes_next_to_nothing(
    bundle: Bundle, tmp_path: Path, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    plain = fuse(bundle, None).astype(int)
    restorer = build(write_restorer(tmp_path / "copy.onnx", **options), **settings)
    assert restorer.factor == options.get("factor", 1)
    apart = np.abs(fuse(bundle, restorer) - plain)
    # A crop that is cut and pasted loses the finest detail.
    assert apart.mean() < 0.5
    assert np.abs(fuse(bundle, restorer, strength=0.0).astype(int) - draw_person(2, SIDE)).max() == 0


def test_strength_is_the_share_of_the_restored_face(bundle: Bundle, tmp_path: Path) -> None:
    model = write_restorer(tmp_path / "invert.onnx", "invert")
    plain = fuse(bundle, None).astype(int)
    weak, strong = (np.abs(fuse(bundle, build(model, strength=share)) - plain).mean() for share in (0.25, 1.0))
    assert 0.15 < weak / strong < 0.35


def test_what_is_no_restorer_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for path, settings, said in (
        (tmp_path / "gone.onnx", {}, "there is no such model"),
        (tmp_path / "text.onnx", {}, "text.onnx"),
        (write_restorer(tmp_path / "grey.onnx", channels=1), {}, "does not take one picture"),
        (write_restorer(tmp_path / "w.onnx", weighted=True), {}, "further inputs weight, restorer.inputs has none"),
        (write_restorer(tmp_path / "c.onnx"), {"inputs": {"weight": 1}}, "further inputs none"),
    ):
        with pytest.raises(ConfigInvalid, match=said) as raised:
            build(path, **settings)
        assert str(raised.value).startswith("restorer.model: ")
    assert open_restorer(RestorerConfig()) is None
    with pytest.raises(ValueError, match="model and licence belong together"):
        RestorerConfig(model="a.onnx")
    with pytest.raises(ValueError, match="'nose' is not known"):
        RestorerConfig(template="nose")


@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
def test_the_commands_restore_and_say_so(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("source", 9), ("target", 4)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), cv2.cvtColor(draw_person(seed, SIDE), cv2.COLOR_RGB2BGR))
    source, target, settings = tmp_path / "source.png", tmp_path / "target.png", write_restorer_settings(tmp_path)
    made: dict[str, bytes] = {}
    for name, options in (("plain", []), ("restored", ["--restorer", str(settings)])):
        output = tmp_path / f"{name}.png"
        assert main(["fuse", str(source), str(target), str(output), "--bundle", str(bundle.folder), *options]) == 0
        made[name] = output.read_bytes()
    assert np.abs(decode_image(made["plain"]).astype(int) - decode_image(made["restored"])).max() > 60
    assert verify(made["restored"]).holds
    assert main(["verify", str(tmp_path / "restored.png")]) == 0
    assert "restored by invert (MIT)" in capsys.readouterr().out

    talk = film(tmp_path / "talk.mp4", num_frames=6)
    frames = {}
    for name, options in (("plain", []), ("restored", ["--restorer", str(settings)])):
        output = tmp_path / f"{name}.mp4"
        command = ["fuse-video", str(source), talk, str(output), "--bundle", str(bundle.folder), "--quality", "5"]
        assert main([*command, *options]) == 0
        reader = VideoReader(output)
        frames[name] = np.stack([reader.see(frame, 1000) for frame in reader.read_frames()]).astype(int)
    assert "restored by invert (MIT)" in capsys.readouterr().out
    changed = np.abs(frames["plain"] - frames["restored"]).mean(axis=(0, 3))
    assert changed.max() > 60
    # The corner of the picture is nobody's face.
    assert changed[:12, :12].max() < 3
