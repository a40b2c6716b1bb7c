"""Pictures of any size are stylized by a bundle as by the network that was exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.checkpoint.info import find_checkpoint
from fusionray.errors import BundleInvalid, ImageRejected
from fusionray.faces.face import Image
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.registry import find_family
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.style_transfer.stylizer import (
    BYTES_PER_PIXEL,
    StyleTransferRunner,
    Stylizer,
    check_memory,
    mix_styles,
    pad_picture,
    reduce_picture,
)
from fusionray.runtime.tasks import open_runner
from tests.support.blend_bundle import write_blend_bundle
from tests.support.tiny_style import SIZE

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)


@pytest.fixture(scope="module")
def bundle(style_folder: Path) -> Bundle:
    return read_bundle(str(style_folder / "bundle"))


@pytest.fixture(scope="module")
def stylizer(bundle: Bundle) -> Stylizer:
    return Stylizer(bundle, ON_CPU)


def draw(seed: int, height: int, width: int) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_batch(picture: Image) -> torch.Tensor:
    return to_float(torch.from_numpy(picture).permute(2, 0, 1)[None])


def test_it_is_exported_through_the_parity_gate(bundle: Bundle) -> None:
    described = bundle.description
    assert (described.task, described.size, described.inputs) == ("style_transfer", SIZE, ("content", "style"))
    assert set(described.required_files) == {"generator.onnx", "style.onnx", *described.halos}
    assert len(described.halos) == 4
    assert described.parity is not None
    assert 0 < described.parity.largest_difference < 1e-4


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 64), (33, 47), (5, 3), (1, 90)])
def test_a_content_of_any_size_gives_a_picture_of_its_size(
    stylizer: Stylizer, style_folder: Path, height: int, width: int
) -> None:
    content, style = draw(1, height, width), draw(2, 24, 28)
    made = stylizer.stylize(content, [style])
    assert made.shape == content.shape
    network = find_family("style_transfer").load_model(find_checkpoint(str(style_folder / "run")))
    with torch.no_grad():
        painted = to_uint8(network(as_batch(style), as_batch(pad_picture(content, 4))))[0].permute(1, 2, 0).numpy()
    assert np.abs(painted[:height, :width].astype(int) - made).max() <= 1


def test_pictures_of_several_calls_are_painted_at_once_as_alone(bundle: Bundle) -> None:
    runner = StyleTransferRunner(bundle, ON_CPU)
    calls = [
        {"content": draw(1, 33, 47), "style": draw(2, 24, 28)},
        {"content": draw(3, 36, 45), "style": draw(4, 40, 32), "style_2": draw(5, 32, 32) // 3},
        {"content": draw(6, 34, 48), "style": draw(7, 30, 20) // 2},
    ]
    settings = [{}, {"weights": [3.0, 1.0], "strength": 0.4}, {"strength": 1.0}]
    assert len({runner.batch_key(call) for call in calls}) == 1
    together = runner.run_many(calls, settings)
    alone = [runner.run(call, **each) for call, each in zip(calls, settings, strict=True)]
    for made, wanted in zip(together, alone, strict=True):
        assert made.shape == wanted.shape
        assert np.abs(made.astype(int) - wanted).max() <= 1
    assert np.abs(together[0][:33, :45].astype(int) - together[1][:33, :45]).mean() > 1


def test_contents_of_other_sizes_and_large_ones_share_no_batch(bundle: Bundle) -> None:
    runner = StyleTransferRunner(bundle, ON_CPU)

    def key(height: int, width: int) -> object:
        return runner.batch_key({"content": np.zeros((height, width, 3), np.uint8)})

    assert key(32, 64) == key(29, 61) != key(64, 32)
    assert key(512, 1024) is not None
    assert key(516, 1024) is None
    for settings in ([{}, {"strength": 1.5}], [{"weights": [1.0, 1.0]}, {}]):
        with pytest.raises(ValueError, match=r"strength 1\.5|2 weights for 1 styles"):
            runner.run_many([{"content": draw(1, 32, 32), "style": draw(2, 32, 32)}] * 2, settings)


def test_strength_goes_from_the_content_s_own_style_to_the_other(stylizer: Stylizer) -> None:
    content, style = draw(1, 31, 36), draw(2, 32, 32) // 3
    ends = [stylizer.stylize(content, [picture]) for picture in (content, style)]
    apart = np.abs(ends[1].astype(int) - ends[0]).mean()
    np.testing.assert_array_equal(stylizer.stylize(content, [style], strength=0.0), ends[0])
    middle = stylizer.stylize(content, [style], strength=0.5)
    assert apart > 2
    assert all(np.abs(middle.astype(int) - end).mean() < apart for end in ends)
    with pytest.raises(ValueError, match=r"strength 1\.5: give a number from 0"):
        stylizer.stylize(content, [style], strength=1.5)


def test_styles_are_mixed_by_their_weights(stylizer: Stylizer) -> None:
    content, first, second = draw(1, 32, 32), draw(2, 32, 32) // 2, draw(3, 32, 32) // 4
    alone = stylizer.stylize(content, [first])
    np.testing.assert_array_equal(stylizer.stylize(content, [first, second], weights=[3, 0]), alone)
    assert (stylizer.stylize(content, [first, second]) != alone).any()
    codes = [stylizer.encode_style(picture) for picture in (first, second)]
    np.testing.assert_allclose(mix_styles(codes, [1, 3]), codes[0] / 4 + codes[1] * 3 / 4, rtol=1e-5)
    for weights in ([1.0], [-1.0, 2.0], [0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(ValueError, match="weights"):
            mix_styles(codes, weights)


def test_a_large_style_is_made_smaller_and_a_small_one_is_not_enlarged() -> None:
    assert reduce_picture(draw(1, 100, 300), 50).shape == (50, 150, 3)
    assert reduce_picture(draw(1, 40, 300), 50).shape == (40, 300, 3)
    assert pad_picture(draw(1, 8, 12), 4).shape == (8, 12, 3)
    assert pad_picture(draw(1, 9, 1), 4).shape == (12, 8, 3)


def test_a_content_that_does_not_fit_into_memory_is_refused_before() -> None:
    check_memory(draw(1, 20, 30), 20 * 30 * BYTES_PER_PIXEL)
    with pytest.raises(
        ImageRejected, match=r"a content of 3000 x 2000 px takes 2\.9 GiB .* and 1\.0 GiB are free"
    ) as caught:
        check_memory(np.broadcast_to(np.uint8(0), (2000, 3000, 3)), 2**30)
    assert caught.value.reason == "too_large"


def test_the_task_opens_the_runner_and_no_other_bundle_does(bundle: Bundle, stylizer: Stylizer, tmp_path: Path) -> None:
    runner = open_runner(bundle, ON_CPU)
    assert isinstance(runner, StyleTransferRunner)
    assert (runner.inputs, runner.report.provider) == (("content", "style"), CPU)
    runner.warm_up()
    pictures = {"content": draw(1, 30, 41), "style": draw(2, 32, 32)}
    expected = stylizer.stylize(pictures["content"], [pictures["style"]])
    np.testing.assert_array_equal(runner.run(pictures), expected)
    with pytest.raises(BundleInvalid, match="one of style_transfer is needed"):
        Stylizer(write_blend_bundle(tmp_path / "blend"))
