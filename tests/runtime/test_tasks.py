"""The task of a bundle selects the runner that opens it."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest

from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import TensorDescription
from fusionray.cli import main
from fusionray.errors import BundleInvalid, NoFaceFound
from fusionray.runtime import tasks
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.compile import compile_bundle
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixel_runner import PixelRunner, fit_picture
from fusionray.runtime.tasks import open_runner, register_task
from tests.support.blend_bundle import BLEND_SIZE, build_mean, describe_blend, write_blend_bundle
from tests.support.pictures import draw_empty, draw_person
from tests.support.serving import encode
from tests.support.tiny_bundle import write_tiny_bundle

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)


def flat(level: int, height: int = BLEND_SIZE, width: int = BLEND_SIZE) -> np.ndarray:  # type: ignore[type-arg]
    return np.full((height, width, 3), level, np.uint8)


def test_pictures_of_any_size_give_one_of_the_model_size(tmp_path: Path) -> None:
    runner = open_runner(write_blend_bundle(tmp_path / "bundle"), ON_CPU)
    assert isinstance(runner, PixelRunner)
    runner.warm_up()
    assert runner.report.provider == CPU
    made = runner.run({"content": flat(10, 50, 80), "style": flat(110, 7, 5)})
    assert made.shape == (BLEND_SIZE, BLEND_SIZE, 3)
    assert np.unique(made).tolist() == [60]


def test_the_model_gets_the_centre_of_a_picture() -> None:
    picture = flat(0, 40, 100)
    picture[:, 30:70] = 200
    assert np.unique(fit_picture(picture, (20, 20))).tolist() == [200]
    assert fit_picture(picture, (10, 25)).shape == (10, 25, 3)
    assert np.array_equal(fit_picture(picture, (40, 100)), picture)


@pytest.mark.parametrize("batch", ["N", 2])
def test_a_batch_gives_the_same_as_single_pictures(tmp_path: Path, batch: str | int) -> None:
    bundle = write_bundle(tmp_path / "b", {"generator.onnx": build_mean(batch=batch)}, describe_blend(batch=batch))
    runner = PixelRunner(bundle, ON_CPU)
    content, style = np.random.default_rng(0).integers(0, 256, (2, 9, BLEND_SIZE, BLEND_SIZE, 3), dtype=np.uint8)
    together = runner.run_batch({"content": content, "style": style})
    alone = [runner.run({"content": a, "style": b}) for a, b in zip(content, style, strict=True)]
    assert np.array_equal(together, np.stack(alone))
    calls = [{"content": a, "style": b} for a, b in zip(content, style, strict=True)]
    assert np.array_equal(np.stack(runner.run_many(calls, [{}] * len(calls))), together)
    with pytest.raises(TypeError, match="no settings"):
        runner.run_many(calls[:1], [{"strength": 1.0}])
    wanted = (content.astype(float) + style) / 2
    assert np.abs(together - wanted).max() <= 0.5


def test_a_model_that_differs_from_its_description_is_refused(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", {"generator.onnx": build_mean(size=16)}, describe_blend())
    with pytest.raises(BundleInvalid, match=r"'output' is .*, not"):
        open_runner(bundle, ON_CPU)


def test_a_task_with_other_inputs_than_pictures_needs_its_own_runner(tmp_path: Path) -> None:
    picture = describe_blend().tensors["generator.onnx"]["output"]
    sound = TensorDescription(meaning="source", shape=("N", 3, 32, 32), minimum=-1.0, maximum=1.0)
    tensors = {"generator.onnx": {"content": picture, "style": sound, "output": picture}}
    bundle = write_blend_bundle(tmp_path / "bundle", tensors=tensors)
    with pytest.raises(
        BundleInvalid, match=r"'style' is a source .* without a runner of the task blend, only pictures"
    ):
        open_runner(bundle, ON_CPU)


class Own(PixelRunner):
    """A runner of another package."""


def test_a_package_can_register_the_runner_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("blend", f"{__name__}:Own", tasks.ENTRY_POINTS)
    monkeypatch.setattr(tasks, "RUNNER_FACTORIES", dict(tasks.RUNNER_FACTORIES))
    monkeypatch.setattr(tasks, "entry_points", lambda **wanted: EntryPoints([entry]).select(**wanted))
    assert isinstance(open_runner(write_blend_bundle(tmp_path / "bundle"), ON_CPU), Own)
    with pytest.raises(ValueError, match=r"task 'blend': .*Own.* is registered for it already"):
        register_task("blend", PixelRunner)


def test_face_fusion_is_one_of_the_tasks(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    runner = open_runner(bundle, ON_CPU)
    source, target = draw_person(1), draw_person(2)
    wanted = Fuser(bundle, runner.fuser.preprocessor.detector, ON_CPU).fuse(source, target).image  # type: ignore[attr-defined]
    assert np.array_equal(runner.run({"source": source, "target": target}), wanted)
    with pytest.raises(NoFaceFound):
        runner.run({"source": draw_empty(), "target": target})


def test_fuse_refuses_a_bundle_of_another_task_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_blend_bundle(tmp_path / "bundle")
    (tmp_path / "face.jpg").write_bytes(encode(draw_person(1)))
    face = str(tmp_path / "face.jpg")
    assert main(["fuse", face, face, str(tmp_path / "out.png"), "--bundle", str(tmp_path / "bundle")]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "is a bundle of the task blend, and one of face_fusion is needed here" in line


def test_the_models_of_any_task_are_compiled(tmp_path: Path) -> None:
    bundle: Bundle = write_blend_bundle(tmp_path / "bundle")
    settings = ON_CPU.model_copy(update={"cache": str(tmp_path / "cache")})
    assert [one.file for one in compile_bundle(bundle, settings)] == ["generator.onnx"]
