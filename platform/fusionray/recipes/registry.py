"""The registry of model families: built in, installed as entry points, or named in the environment.

The module of a family calls `register`. The registry imports the modules of the entry-point group `fusionray.recipes`,
and those that FUSIONRAY_RECIPES names, separated by commas.
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
    "fusionray.recipes.face_fusion.family",
    "fusionray.recipes.face_parsing.family",
    "fusionray.recipes.style_transfer.encoder_family",
    "fusionray.recipes.style_transfer.family",
    "fusionray.recipes.style_transfer.adain_family",
)

AnyFamily = RecipeFamily[Any]
families: dict[str, AnyFamily] = {}
imported: set[str] = set()


def register(family: AnyFamily) -> None:
    """Register a family under its name.

    Raises: ValueError if another class has registered the name.
    """
    registered = families.setdefault(family.name, family)
    # The same module may be imported under two names, e.g. by a test and by FUSIONRAY_RECIPES.
    if type(registered).__qualname__ != type(family).__qualname__:
        raise ValueError(f"recipe name '{family.name}' is taken by {type(registered).__module__}")


def find_family(name: str) -> AnyFamily:
    """Find a family by `recipe.name`.

    Raises: ConfigInvalid naming the registered families, or the module that cannot be imported.
    """
    import_families()
    if name not in families:
        raise ConfigInvalid(f"no recipe '{name}'; there are: {', '.join(list_families())}")
    return families[name]


def list_families() -> list[str]:
    """Return the names of all families in alphabetical order.

    Raises: ConfigInvalid if a module cannot be imported.
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


def list_configs() -> tuple[type[RecipeConfig], ...]:
    """List the types of all families' settings.

    Raises: ConfigInvalid if a module cannot be imported.
    """
    return tuple(find_family(name).Config for name in list_families())


RecipeConfig.list_registered = list_configs


def recipe_union() -> Any:
    """Return the type of any family's settings: a union discriminated by `name`."""
    configs: tuple[Any, ...] = list_configs()
    return Annotated[reduce(or_, configs), Field(discriminator="name")]


def parse_recipe(value: Any) -> RecipeConfig:
    """Validate a family's settings from a plain tree with a `name`; return validated settings unchanged.

    Raises: ValidationError for settings that the family refuses, ValueError for a module that cannot be imported.
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
    """Provide the JSON schema of a field that `parse_recipe` validates: the union of all families."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        del schema
        return handler(TypeAdapter(recipe_union()).core_schema)


# Type of a configuration field with the settings of any recipe; `name` selects the family.
AnyRecipeConfig = Annotated[SerializeAsAny[RecipeConfig], PlainValidator(parse_recipe), RecipeSchema()]


def build_recipe(config: TrainSettings, dataset: DatasetInfo, dependencies: Mapping[str, Any]) -> Recipe[Any]:
    """Build the recipe of a configuration; `run.seed` seeds the initial weights of its networks."""
    torch.manual_seed(config.run.seed)
    return find_family(config.recipe.name).build(config.recipe, dataset, dependencies)
