"""Which families there are, and how configurations name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusionray.config import load_config, validate
from fusionray.errors import ConfigInvalid
from fusionray.recipes.family import RecipeFamily
from fusionray.recipes.registry import find_family, list_families, register
from fusionray.training.config import TrainConfig
from tests.support.child_python import run_python
from tests.support.toy_family import ColourTransferConfig, ColourTransferFamily

TREE = {"data": {"shards": "x"}, "recipe": {"name": "colour_transfer", "width": 4}}


def test_families_of_the_package_and_registered_ones_are_found_by_name() -> None:
    assert {"attributes", "colour_transfer", "face_fusion", "identity"} <= set(list_families())
    assert isinstance(find_family("colour_transfer"), ColourTransferFamily)
    for name in list_families():
        family = find_family(name)
        assert family.name == name
        assert family.Config.model_fields["name"].default == name


def test_a_name_is_taken_once() -> None:
    class Other(ColourTransferFamily):
        """Another family under the same name."""

    register(ColourTransferFamily())  # the same one, imported twice
    with pytest.raises(ValueError, match=r"'colour_transfer' is taken by tests\.support\.toy_family"):
        register(Other())


def test_an_unknown_recipe_is_refused_in_one_line_that_lists_those_there_are() -> None:
    with pytest.raises(ConfigInvalid, match=r"recipe\.name: there is no 'fusion'; .*choose .*face_fusion") as caught:
        load_config(TrainConfig, preset="tiny-64", overrides=["data.shards=x", "recipe.name=fusion"])
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigInvalid, match=r"recipe\.name: Field required"):
        validate(TrainConfig, {"data": {"shards": "x"}, "recipe": {}}, "here")


def test_the_settings_of_any_family_survive_the_way_through_json() -> None:
    config = validate(TrainConfig, TREE, "here")
    assert config.recipe == ColourTransferConfig(width=4)
    assert config.model_dump(mode="json")["recipe"]["width"] == 4
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_an_unknown_key_of_any_family_is_named_with_those_there_are() -> None:
    tree = {**TREE, "recipe": {"name": "colour_transfer", "widht": 4}}
    with pytest.raises(ConfigInvalid, match=r"unknown key 'recipe\.widht'; did you mean 'recipe\.width'\?"):
        validate(TrainConfig, tree, "here")


def test_an_evaluator_of_fusions_is_refused_for_a_family_that_makes_none() -> None:
    with pytest.raises(
        ConfigInvalid, match=r"validation\.evaluator: no network scores models of recipe\.name=colour_transfer"
    ):
        validate(TrainConfig, {**TREE, "validation": {"evaluator": "preset:identity-evaluator"}}, "here")


def test_modules_that_the_environment_names_register_their_families() -> None:
    code = "import json; from fusionray.recipes.registry import list_families; print(json.dumps(list_families()))"
    assert "colour_transfer" not in json.loads(run_python("-c", code))
    found = json.loads(run_python("-c", code, FUSIONRAY_RECIPES="tests.support.toy_family"))
    assert "colour_transfer" in found


def test_an_installed_package_registers_its_family_by_an_entry_point(tmp_path: Path) -> None:
    installed = tmp_path / "toy-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[fusionray.recipes]\ntoy = tests.support.toy_family\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from fusionray.recipes.registry import list_families; print('colour_transfer' in list_families())"
    )
    assert run_python("-c", code).strip() == "True"


def test_a_module_that_cannot_be_imported_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIONRAY_RECIPES", "no_such_recipes")
    with pytest.raises(ConfigInvalid, match="FUSIONRAY_RECIPES: cannot import the recipe module no_such_recipes"):
        find_family("identity")


def test_a_family_without_export_says_so() -> None:
    assert issubclass(ColourTransferFamily, RecipeFamily)
    with pytest.raises(ConfigInvalid, match=r"^there: models of the recipe identity cannot be exported$"):
        find_family("identity").export("there")
