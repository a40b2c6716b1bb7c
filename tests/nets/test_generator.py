from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from fusionray.config import load_config
from fusionray.config_presets import list_presets
from fusionray.nets.blocks import count_parameters
from fusionray.nets.generator import Generator, GeneratorConfig
from fusionray.nets.source_encoder import SourceConfig
from fusionray.recipes.face_fusion.settings import FaceFusionConfig
from fusionray.training.config import TrainConfig
from tests.support.tiny_fusion import SEEING

SMALL = GeneratorConfig(size=32, channels=(8, 16, 24), bottleneck_blocks=1, style_length=32)


def build_inputs(count: int, size: int, source_length: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.rand(count, source_length - 512) * 2 - 1
    source = torch.cat([F.normalize(torch.randn(count, 512)), tokens], dim=1)
    return source, torch.rand(count, 3, size, size) * 2 - 1


def read_fusion_presets() -> dict[str, FaceFusionConfig]:
    configs = {name: load_config(TrainConfig, preset=name, overrides=["data.shards=x"]) for name in list_presets()}
    return {name: config.recipe for name, config in configs.items() if isinstance(config.recipe, FaceFusionConfig)}


@pytest.mark.parametrize("count", [1, 3])
def test_output_and_mask_have_their_shapes_and_ranges(count: int) -> None:
    torch.manual_seed(0)
    generator = Generator(SMALL)
    with torch.no_grad():
        generator.head.weight.mul_(50)  # far from 0, where a missing tanh or sigmoid shows
        fused = generator(*build_inputs(count, 32))
    assert fused.output.shape == (count, 3, 32, 32)
    assert fused.mask.shape == (count, 1, 32, 32)
    assert fused.output.abs().max() <= 1
    assert fused.mask.min() >= 0
    assert fused.mask.max() <= 1
    assert fused.mask.max() > 0.99


def test_rows_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    generator = Generator(SMALL).eval()
    source, target = build_inputs(4, 32)
    with torch.no_grad():
        together = generator(source, target).output
        alone = torch.cat([generator(source[i : i + 1], target[i : i + 1]).output for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_target_passes_through_where_the_mask_is_0() -> None:
    torch.manual_seed(0)
    generator = Generator(SMALL)
    source, target = build_inputs(2, 32)
    with torch.no_grad():
        generator.head.bias[3] = -200
        fused = generator(source, target)
    assert fused.mask.max() == 0
    assert torch.equal(fused.output, target)


def test_the_floor_of_the_mask_prevents_returning_the_target() -> None:
    torch.manual_seed(0)
    generator = Generator(SMALL.model_copy(update={"mask_floor": 0.25}))
    with torch.no_grad():
        generator.head.bias[3] = -200
        fused = generator(*build_inputs(1, 32))
        torch.testing.assert_close(fused.mask, torch.full_like(fused.mask, 0.25))
        generator.head.bias[3] = 200
        torch.testing.assert_close(generator(*build_inputs(1, 32)).mask, torch.ones(1, 1, 32, 32))


@pytest.mark.parametrize("config", [SMALL, SEEING], ids=["blind", "seeing"])
def test_the_identity_changes_the_picture_and_every_parameter_learns(config: GeneratorConfig) -> None:
    torch.manual_seed(0)
    generator = Generator(config)
    source, target = build_inputs(2, config.size, config.source_length)
    other, _ = build_inputs(2, config.size, config.source_length)
    fused = generator(source, target)
    assert (fused.output - generator(other, target).output).abs().max() > 1e-3
    (fused.output.square().mean() + fused.mask.mean()).backward()
    still = [name for name, p in generator.named_parameters() if p.grad is None or (p.grad == 0).all()]
    # The gates start flat: their weights are 0 and learn, what lies before them learns through the blend.
    assert still == []


def test_tokens_change_the_picture_for_an_equal_embedding() -> None:
    torch.manual_seed(0)
    generator = Generator(SEEING)
    source, target = build_inputs(1, SEEING.size, SEEING.source_length)
    other = source.clone()
    other[:, 512:] = torch.rand_like(other[:, 512:])
    with torch.no_grad():
        assert (generator(source, target).output - generator(other, target).output).abs().max() > 1e-3


@pytest.mark.parametrize("channels", [(8, 8), (8, 8, 8, 8)])
def test_a_generator_too_small_to_attend_to_the_source_is_refused(channels: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match=r"source needs features of \[16, 32, 64\] px"):
        GeneratorConfig(size=32, channels=channels, source=SourceConfig())


@pytest.mark.parametrize(("size", "message"), [(30, "multiple of 4"), (12, "at least 16")])
def test_a_size_that_the_levels_do_not_divide_is_refused(size: int, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GeneratorConfig(size=size, channels=(8, 8, 8))


@pytest.mark.parametrize("preset", sorted(read_fusion_presets()))
def test_every_preset_fuses_on_the_meta_device(preset: str) -> None:
    config = read_fusion_presets()[preset].generator
    with torch.device("meta"):
        generator = Generator(config)
        fused = generator(torch.empty(2, config.source_length), torch.empty(2, 3, config.size, config.size))
    assert fused.output.shape == (2, 3, config.size, config.size)
    assert fused.mask.shape == (2, 1, config.size, config.size)


def test_large_512_has_over_100_million_parameters_and_steps_on_the_meta_device() -> None:
    config = read_fusion_presets()["large-512"].generator
    with torch.device("meta"):
        generator = Generator(config)
        optimizer = torch.optim.AdamW(generator.parameters())
        fused = generator(torch.empty(1, config.source_length), torch.empty(1, 3, 512, 512))
        fused.output.abs().mean().backward()
        optimizer.step()
    assert count_parameters(generator) > 100_000_000
    assert all(parameter.grad is not None for parameter in generator.parameters())


def test_tiny_64_is_small_enough_for_a_demo() -> None:
    with torch.device("meta"):
        assert count_parameters(Generator(read_fusion_presets()["tiny-64"].generator)) < 5_000_000
