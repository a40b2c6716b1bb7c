from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from fusionray.config import load_config, read_preset
from fusionray.config_presets import list_presets
from fusionray.errors import ConfigInvalid
from fusionray.recipes.face_fusion.settings import FaceFusionConfig
from fusionray.training.config import TrainConfig

SHARDS = "data.shards=x"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_wins_over_the_preset_and_an_override_over_both(tmp_path: Path) -> None:
    file = write(
        tmp_path, "preset: tiny-64\ndata: {shuffle_buffer_rows: 99, decode_threads: 7}\nengine: {batch_size: 4}\n"
    )
    config = load_config(TrainConfig, file=file, overrides=[SHARDS, "data.shuffle_buffer_rows=77"])
    assert config.data.shuffle_buffer_rows == 77
    assert config.data.decode_threads == 7
    assert config.engine.batch_size == 4
    assert isinstance(config.recipe, FaceFusionConfig)
    # What neither names stays as the preset has it, inside the sections they touch too.
    preset = read_preset("tiny-64")
    assert config.engine.ema_half_life_images == preset["engine"]["ema_half_life_images"]
    assert list(config.recipe.generator.channels) == preset["recipe"]["generator"]["channels"]


def test_the_preset_may_be_named_in_an_override_and_then_wins(tmp_path: Path) -> None:
    file = write(tmp_path, "preset: tiny-64\n")
    assert load_config(TrainConfig, file=file, overrides=[SHARDS, "preset=fast-128"]).data.size == 128


def test_the_last_of_two_overrides_wins() -> None:
    config = load_config(TrainConfig, preset="tiny-64", overrides=[SHARDS, "run.seed=1", "run.seed=2"])
    assert config.run.seed == 2


@pytest.mark.parametrize("preset", list_presets())
def test_every_preset_is_a_valid_training_configuration(preset: str) -> None:
    config = load_config(TrainConfig, preset=preset, overrides=[SHARDS])
    assert config.data.shards == "x"
    if isinstance(config.recipe, FaceFusionConfig):
        assert config.recipe.generator.size == config.data.size


def test_a_preset_may_stand_on_another() -> None:
    longer, short = read_preset("identity-evaluator-64"), read_preset("identity-evaluator")
    assert longer["recipe"] == short["recipe"]
    assert longer["run"] == {"seed": 1000}
    assert longer["engine"] == {**short["engine"], "global_batch": 64}
    assert longer["budget"]["max_seconds"] is None


def test_the_issue_s_presets_are_there() -> None:
    assert {"tiny-64", "fast-128", "base-256", "large-512"} <= set(list_presets())


@pytest.mark.parametrize(
    ("override", "key", "meant", "section"),
    [
        ("dat.x=1", "dat", "data", ""),
        ("data.shard=1", "data.shard", "data.shards", " data"),
        ("engine.batchsize=1", "engine.batchsize", "engine.batch_size", " engine"),
        ("engine.schedule.warmup=1", "engine.schedule.warmup", "engine.schedule.warmup_images", " engine.schedule"),
        ("recipe.wieghts.identity=1", "recipe.wieghts", "recipe.weights", " recipe.face_fusion"),
        ("recipe.generator.source.headz=1", "recipe.generator.source.headz", "recipe.generator.source.heads", None),
        # Keys of another section.
        ("batch_size=4", "batch_size", "engine.batch_size", ""),
        ("run.num_workers=4", "run.num_workers", "workers.num_workers", " run"),
    ],
)
def test_an_unknown_key_is_refused_in_one_line_with_the_key_that_was_meant(
    override: str, key: str, meant: str, section: str | None
) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_config(TrainConfig, preset="tiny-64", overrides=[SHARDS, override])
    section = " recipe.face_fusion.generator.source" if section is None else section
    assert str(caught.value) == (
        f"preset tiny-64: unknown key '{key}'; did you mean '{meant}'? "
        f"`fusionray train --settings{section}` lists the keys"
    )


def test_an_unknown_key_that_is_like_no_other_is_refused_with_those_known_there() -> None:
    with pytest.raises(ConfigInvalid, match=r"unknown key 'weather' \(known here: budget, data, .*lists them"):
        load_config(TrainConfig, preset="tiny-64", overrides=[SHARDS, "weather=1"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.precision=fp8", "engine.precision: Input should be 'auto', 'fp32', 'tf32', 'bf16' or 'fp16'"),
        ("engine.parallel.overlap=3", "engine.parallel.overlap: Input should be 'auto' or a valid boolean"),
        ("recipe.name=face_fuson", "recipe.name: there is no 'face_fuson'; did you mean 'face_fusion'? choose"),
        ("run=3", "run: Input should be a section of keys"),
        ("workers.min_workers=4", "workers: min_workers=4 is more than num_workers=1"),
        ("recipe.generator.size=128", "tiny-64: recipe.generator.size=128 and data.size=64 must be equal"),
    ],
)
def test_a_wrong_value_is_refused_once_by_the_key_that_the_file_has(override: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_config(TrainConfig, preset="tiny-64", overrides=[SHARDS, override])
    assert said in str(caught.value)
    assert "; engine" not in str(caught.value)


def test_a_recipe_without_a_name_is_refused_by_the_key_that_is_missing() -> None:
    with pytest.raises(ConfigInvalid, match=r"recipe\.name: Field required"):
        load_config(TrainConfig, overrides=[SHARDS, "recipe={}"])


def test_an_unknown_key_of_a_file_is_refused_naming_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "preset: tiny-64\nlearning_rate: 1\n")
    with pytest.raises(ConfigInvalid, match=r"run\.yaml: unknown key 'learning_rate'"):
        load_config(TrainConfig, file=file, overrides=[SHARDS])


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(ConfigInvalid, match=r"run\.seed: .*; .*unknown key 'colour'"):
        load_config(TrainConfig, preset="tiny-64", overrides=[SHARDS, "run.seed=-1", "colour=1"])


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigInvalid, match=r"data\.shards: Field required"):
        load_config(TrainConfig, preset="tiny-64")


@pytest.mark.parametrize("text", ["data: [", "a: b: c", "- one\n- two\n", "just words\n"])
def test_a_file_that_is_no_mapping_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigInvalid, match=r"run\.yaml: (not valid YAML|expected)") as caught:
        load_config(TrainConfig, file=file)
    assert "\n" not in str(caught.value)


def test_a_file_and_an_override_run_no_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    code = f"!!python/object/apply:os.mkdir [{made}]"
    file = tmp_path / "run.yaml"
    file.write_text(f"run: {{name: {code}}}\n")
    with pytest.raises(ConfigInvalid, match=r"run\.yaml: not valid YAML: could not determine a constructor"):
        load_config(TrainConfig, file=file)
    with pytest.raises(ConfigInvalid, match="not valid YAML"):
        load_config(TrainConfig, overrides=[f"run.name={code}"])
    assert not made.exists()


def test_a_picture_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "face.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(ConfigInvalid, match=r"face\.png: not valid YAML"):
        load_config(TrainConfig, file=file)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"none\.yaml: cannot read the configuration"):
        load_config(TrainConfig, file=tmp_path / "none.yaml")


def test_an_unknown_preset_is_refused_naming_those_there_are() -> None:
    with pytest.raises(ConfigInvalid, match=r"no preset 'huge' \(presets: .*tiny-64"):
        load_config(TrainConfig, preset="huge")
    with pytest.raises(ConfigInvalid, match=r"no preset 'tiny-46'; did you mean 'tiny-64'\?"):
        load_config(TrainConfig, preset="tiny-46")


@pytest.mark.parametrize("override", ["data.size", "=3", "data..size=3", "data.size=[1"])
def test_a_malformed_override_is_refused_quoting_it(override: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_config(TrainConfig, preset="tiny-64", overrides=[override])
    assert f"override '{override}'" in str(caught.value)


def test_a_configuration_is_frozen() -> None:
    config = load_config(TrainConfig, preset="tiny-64", overrides=[SHARDS])
    with pytest.raises(ValidationError, match="frozen"):
        config.data.size = 3  # type: ignore[misc]


def test_a_configuration_survives_the_way_through_json() -> None:
    config = load_config(TrainConfig, preset="base-256", overrides=[SHARDS])
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
