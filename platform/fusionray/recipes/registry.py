"""The model families there are: built in, installed as entry points, or named in the environment.

`register` is called by the module of a family. Families of other packages are found by the entry-point group
`fusionray.recipes` (each entry names a module), and by FUSIONRAY_RECIPES (importable modules, separated by commas).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from operator import or_
from typing import Annotated, Any

import torch
from pydantic import Field, GetJsonSchemaHandler, PlainValidator, SerializeAsAny, TypeAdapter
from pydantic.json_schema import JsonSchemaValue

from fusionray.environment import list_recipe_modules
from fusionray.errors import ConfigInvalid
from fusionray.recipes.family import DatasetInfo, RecipeConfig, RecipeFamily, TrainSettings
from fusionray.recipes.recipe import Recipe

ENTRY_POINTS = "fusionray.recipes"
BUILT_IN = (
    "fusionray.recipes.identity_family",
    "fusionray.recipes.attributes_family",
    "fusionray.recipes.face_fusion_family",
)

Family = RecipeFamily[Any]
families: dict[str, Family] = {}
imported: set[str] = set()


def register(family: Family) -> None:
    """Make a family known under its name.

    Raises: ValueError if another class has taken the name.
    """
    former = families.setdefault(family.name, family)
    # The same module may be imported under two names, e.g. by a test and by FUSIONRAY_RECIPES.
    if type(former).__qualname__ != type(family).__qualname__:
        raise ValueError(f"recipe name '{family.name}' is taken by {type(former).__module__}")


def find_family(name: str) -> Family:
    """Find a family by `recipe.name`.

    Raises: ConfigInvalid naming the families there are, or the module that cannot be imported.
    """
    import_families()
    if name not in families:
        raise ConfigInvalid(f"no recipe '{name}'; there are: {', '.join(list_families())}")
    return families[name]


def list_families() -> list[str]:
    """Name the families in alphabetical order.

    Raises: ConfigInvalid as `find_family`.
    """
    import_families()
    return sorted(families)


def import_families() -> None:
    """Import every module that registers a family, each once.

    Raises: ConfigInvalid naming a module of the environment or of an installed package that cannot be imported.
    """
    installed = {point.value: f"entry point {point.name}" for point in entry_points(group=ENTRY_POINTS)}
    named = dict.fromkeys(list_recipe_modules(), "FUSIONRAY_RECIPES")
    for module, where in {**dict.fromkeys(BUILT_IN, ""), **installed, **named}.items():
        if module in imported:
            continue
        try:
            import_module(module)
        except ImportError as error:
            if not where:
                raise
            raise ConfigInvalid(f"{where}: cannot import the recipe module {module} ({error})") from error
        imported.add(module)


def recipe_union() -> Any:
    """Type the settings of any registered family: a union that `name` tags."""
    configs: list[Any] = [find_family(name).Config for name in list_families()]
    return Annotated[reduce(or_, configs), Field(discriminator="name")]


def parse_recipe(value: Any) -> RecipeConfig:
    """Read a family's settings from a plain tree with a `name`; settings that were read already are passed through.

    Raises: ValidationError as a union tagged by `name` does, ValueError for a family that cannot be imported.
    """
    if isinstance(value, RecipeConfig):
        return value
    try:
        union = recipe_union()
    except ConfigInvalid as error:
        raise ValueError(str(error)) from error
    config: RecipeConfig = TypeAdapter(union).validate_python(value)
    return config


class RecipeSchema:
    """Describe a field that `parse_recipe` reads to whoever asks for the JSON schema: the union of all families."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        del schema
        return handler(TypeAdapter(recipe_union()).core_schema)


# The settings of a recipe as a field of a configuration: read by the family that `name` names.
AnyRecipeConfig = Annotated[SerializeAsAny[RecipeConfig], PlainValidator(parse_recipe), RecipeSchema()]


def build_recipe(config: TrainSettings, facts: DatasetInfo, dependencies: Mapping[str, Any]) -> Recipe[Any]:
    """Build the recipe of a configuration; its networks get their first weights from `run.seed`."""
    torch.manual_seed(config.run.seed)
    return find_family(config.recipe.name).build(config.recipe, facts, dependencies)
