from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from fusionray.commands.trees import TREES
from fusionray.config import Section, in_unit
from fusionray.config_keys import Group, Key, list_groups, list_paths


class Small(Section):
    """A small one.

    More about it.
    """

    name: Literal["small"] = Field("small", description="Selects it.")
    rate: float = Field(0.5, gt=0, le=1, description="How fast.", json_schema_extra=in_unit("turns"))


class Large(Section):
    """A large one."""

    name: Literal["large"] = Field("large", description="Selects it.")
    part: Small = Field(Small(rate=0.25), description="Its part.")


class Tree(Section):
    """All of it."""

    choice: Annotated[Small | Large, Field(discriminator="name")] = Field(description="Which one.")
    small: Small | None = Field(None, description="An optional one.")
    many: tuple[Small, ...] = Field((), description="Several.")
    named: dict[str, Small] = Field({}, description="Several by name.")
    size: int | Literal["auto"] | None = Field(None, description="A side.")
    images: int = Field(50_000, ge=1, description="A count.")
    pair: tuple[float, float] = Field((0.0, 1e-6), description="Two numbers without a unit.")
    mode: Literal["a", "b"] = Field("a", description="One of two.")
    on: bool = Field(False, description="On or off.")
    free: dict[str, Any] = Field({}, description="Anything.")


def find_key(groups: list[Group], path: str) -> Key:
    (key,) = [key for group in groups for key in group.keys if key.path == path][:1]
    return key


def test_a_key_is_described_as_it_is_typed() -> None:
    groups = list_groups(Tree)
    described = {key.path: (key.kind, key.unit, key.default) for key in groups[0].keys}
    assert described == {
        "small": ("section | null", "", "null"),
        "many": ("list of section", "", "[]"),
        "named": ("mapping of section", "", "{}"),
        "size": ("integer | auto | null", "pixels", "null"),
        "images": ("integer >= 1", "images", "50_000"),
        "pair": ("[number, number]", None, "[0, 1e-06]"),
        "mode": ("a | b", "", "a"),
        "on": ("true | false", "", "false"),
        "free": ("mapping", "", "{}"),
    }
    assert find_key(groups, "mode").choices == ("a", "b")
    assert find_key(groups, "size").choices == ()
    assert find_key(groups, "choice.rate").kind == "number > 0, <= 1"


def test_sections_of_unions_lists_and_mappings_have_an_address() -> None:
    addresses = {group.address: (group.path, group.condition) for group in list_groups(Tree)}
    assert addresses == {
        "": ("", ""),
        "choice": ("choice", ""),
        "choice.small": ("choice", "choice.name=small"),
        "choice.large": ("choice", "choice.name=large"),
        "choice.large.part": ("choice.part", "choice.name=large"),
        "small": ("small", ""),
        "many.N": ("many.N", ""),
        "named.KEY": ("named.KEY", ""),
    }
    assert "choice.part.rate" in list_paths(Tree)


def test_a_default_is_that_of_the_owner_and_the_tag_of_a_union_is_required() -> None:
    groups = list_groups(Tree)
    assert find_key(groups, "choice.part.rate").default == "0.25"
    assert find_key(groups, "many.N.rate").default == "0.5"
    assert find_key(groups, "choice.name").default == "required"


def test_a_union_lists_its_members_with_the_first_sentence_of_each() -> None:
    (union,) = [group for group in list_groups(Tree) if group.members]
    assert union.members == (("large", "A large one."), ("small", "A small one."))


@pytest.mark.parametrize("verb", TREES)
def test_every_setting_has_a_sentence_and_every_number_a_unit(verb: str) -> None:
    section = TREES[verb]()
    assert section.listed_by == f"fusionray {verb} --settings"
    groups = list_groups(section)
    keys = [key for group in groups for key in group.keys]
    assert section.model_fields.keys() <= {key.path.partition(".")[0] for key in keys}
    assert [key.path for key in keys if not is_sentence(key.sentence)] == []
    assert [group.address for group in groups if not is_sentence(group.sentence)] == []
    # A key whose name tells no unit says it with `in_unit`, which also takes "" for a number without one.
    assert [key.path for key in keys if key.unit is None] == []


def is_sentence(text: str) -> bool:
    return text.endswith(".") and text[:1].isupper()
