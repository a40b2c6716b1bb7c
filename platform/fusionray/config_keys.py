"""The keys of a configuration tree: path, type, unit, default and sentence of each, read from its JSON schema.

Placeholders stand in a path for what the user names: `models.N` is any entry of a list, `space.KEY` any entry of a
mapping. A tagged union, such as `recipe`, is listed by the names of its members.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

REQUIRED = "required"
LIST_ENTRY = "N"
MAPPING_ENTRY = "KEY"
# Units that the last word of a key names. Other integers count what their plural says: `trials`, `num_workers`.
UNITS = {
    "seconds": "seconds",
    "minutes": "minutes",
    "bytes": "bytes",
    "gib": "GiB",
    "megabytes": "MB",
    "images": "images",
    "pixels": "pixels",
    "size": "pixels",
    "side": "pixels",
    "degrees": "degrees",
    "cpus": "CPUs",
    "gpus": "GPUs",
    "people": "people",
    "share": "share",
    "ratio": "share",
    "fraction": "share",
    "quantile": "share",
    "dropout": "share",
    "factor": "factor",
    # Numbers without a unit.
    "seed": "",
    "lr": "",
    "norm": "",
    "rank": "",
    "quality": "",
    "sharpness": "",
    "asymmetry": "",
}
PLAIN_TYPES = {"integer": "integer", "number": "number", "string": "text"}
# Integers from here on are written in groups of three digits.
SHORTEST_GROUPED = 10_000

Schema = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """One key. `unit` is "" for what has none, None for a number of which nobody says it; `choices` are all values that
    the key takes, () if they cannot be listed."""

    path: str
    kind: str
    unit: str | None
    default: str
    sentence: str
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Group:
    """The keys of one section. `members` has the name and sentence of each choice of a tagged union, else nothing.

    `address` is the path with the member of a union in it, `recipe.face_fusion.generator`; files leave the member out.
    `condition` is the setting on which the keys are there: `recipe.name=face_fusion`, or "".
    """

    path: str
    address: str
    condition: str
    sentence: str
    keys: tuple[Key, ...] = ()
    members: tuple[tuple[str, str], ...] = ()


def list_groups(section: type[BaseModel]) -> list[Group]:
    """List the sections of a tree with their keys, each section before those inside it."""
    schema = section.model_json_schema()
    walk = Walk(schema.get("$defs", {}))
    return list(walk.visit(schema, Place("", "", ""), None, first_sentence(schema)))


def list_paths(section: type[BaseModel]) -> list[str]:
    """List the dotted paths of a tree: its keys, and the sections that hold them."""
    groups = list_groups(section)
    paths = {key.path for group in groups for key in group.keys} | {group.path for group in groups}
    return sorted(paths - {""})


@dataclass(frozen=True)
class Place:
    """Where a walk stands; the fields are those of `Group`."""

    path: str
    address: str
    condition: str

    def enter(self, name: str) -> Place:
        """Go one key down."""
        return Place(join(self.path, name), join(self.address, name), self.condition)

    def choose(self, member: str, key: str) -> Place:
        """Choose a member of the union that stands here; `key` is the one that names it."""
        return Place(self.path, join(self.address, member), f"{join(self.path, key)}={member}")


@dataclass(frozen=True)
class Walk:
    """Walk through a JSON schema whose references lie in `definitions`."""

    definitions: Mapping[str, Schema]

    def visit(self, node: Schema, place: Place, default: Any, sentence: str) -> Iterator[Group]:
        """Yield the group of a section, then those of the sections inside it; `default` is what its owner says."""
        members = self.members(node)
        if members:
            named = tuple((name, first_sentence(member)) for name, member in members.items())
            yield Group(place.path, place.address, place.condition, sentence, members=named)
            for name, member in members.items():
                below = place.choose(name, node["discriminator"]["propertyName"])
                yield from self.visit(member, below, None, first_sentence(member))
            return
        keys: list[Key] = []
        inside: list[tuple[Schema, Place, Any, str]] = []
        for name, child in node["properties"].items():
            below = place.enter(name)
            value = default[name] if isinstance(default, dict) and name in default else child.get("default", REQUIRED)
            if place.condition == f"{below.path}={child.get('const')}":
                value = REQUIRED
            plain = self.resolve(child)
            said = child.get("description") or first_sentence(plain)
            if "properties" in plain or self.members(plain):
                inside.append((plain, below, value, said))
            else:
                keys.append(self.describe(below.path, child, value, child.get("description", "")))
                inside += [(held, where, value, first_sentence(held)) for held, where in self.held(plain, below)]
        yield Group(place.path, place.address, place.condition, sentence, tuple(keys))
        for each in inside:
            yield from self.visit(*each)

    def resolve(self, node: Schema) -> Schema:
        """Follow a reference; keys next to it, such as a description, stay with the caller."""
        while "$ref" in node:
            node = self.definitions[node["$ref"].rpartition("/")[2]]
        return node

    def members(self, node: Schema) -> dict[str, Schema]:
        """Name the sections of a tagged union; nothing for other nodes."""
        mapping = node.get("discriminator", {}).get("mapping", {})
        return {name: self.resolve({"$ref": reference}) for name, reference in mapping.items()}

    def held(self, node: Schema, place: Place) -> Iterator[tuple[Schema, Place]]:
        """Yield the sections that a key may hold: an optional one, those of a list, those of a mapping."""
        if "properties" in node:
            yield node, place
        for branch in node.get("anyOf", ()):
            yield from self.held(self.resolve(branch), place)
        for name, entry in (("items", LIST_ENTRY), ("additionalProperties", MAPPING_ENTRY)):
            if isinstance(node.get(name), dict):
                yield from self.held(self.resolve(node[name]), place.enter(entry))

    def describe(self, path: str, node: Schema, default: Any, sentence: str) -> Key:
        """Describe a key that holds a value."""
        leaves = list(self.leaves(node))
        is_number = any(leaf.get("type") in ("integer", "number") for leaf in leaves)
        explicit = [leaf["unit"] for leaf in (node, *leaves) if "unit" in leaf]
        unit = explicit[0] if explicit else unit_by_name(path.rpartition(".")[2], leaves) if is_number else ""
        choices = tuple(word for leaf in self.branches(node) for word in values_of(leaf))
        countable = all(values_of(leaf) for leaf in self.branches(node))
        shown = REQUIRED if default is REQUIRED else write_value(default)
        return Key(path, self.kind(node), unit, shown, sentence, choices if countable else ())

    def branches(self, node: Schema) -> list[Schema]:
        """List what a value may be: the members of a union, or the node itself."""
        node = self.resolve(node)
        return [leaf for branch in node["anyOf"] for leaf in self.branches(branch)] if "anyOf" in node else [node]

    def leaves(self, node: Schema) -> Iterator[Schema]:
        """Yield the plain values that a key is made of, those inside lists too; not those inside sections."""
        for branch in self.branches(node):
            inside = [*branch.get("prefixItems", ()), *([branch["items"]] if "items" in branch else ())]
            if not inside:
                yield branch
            for item in inside:
                yield from self.leaves(item)

    def kind(self, node: Schema) -> str:
        """Say in words what values a key takes."""
        return " | ".join(dict.fromkeys(self.kind_of_branch(branch) for branch in self.branches(node)))

    def kind_of_branch(self, node: Schema) -> str:
        name: str = node.get("type", "")
        inner = node.get("items") or node.get("additionalProperties")
        if values_of(node):
            return " | ".join(values_of(node))
        if "prefixItems" in node:
            return f"[{', '.join(self.kind(item) for item in node['prefixItems'])}]"
        if "properties" in node:
            return "section"
        if name in ("array", "object"):
            word = "list" if name == "array" else "mapping"
            return f"{word} of {self.kind(inner)}" if isinstance(inner, dict) and inner else word
        return f"{PLAIN_TYPES.get(name, 'any')} {describe_range(node)}".strip()


def join(path: str, name: str) -> str:
    """Put a key behind a dotted path."""
    return f"{path}.{name}" if path else name


def first_sentence(node: Schema) -> str:
    """Take the summary of a section's docstring."""
    return str(node.get("description", "")).split("\n\n", maxsplit=1)[0].replace("\n", " ")


def values_of(node: Schema) -> list[str]:
    """List the values of a node that has only some: constants, choices, true and false, null."""
    if "const" in node:
        return [write_value(node["const"])]
    if "enum" in node:
        return [write_value(value) for value in node["enum"]]
    return {"boolean": ["true", "false"], "null": ["null"]}.get(str(node.get("type")), [])


def describe_range(node: Schema) -> str:
    """Write the bounds of a number: `>= 1`, `0..1`, `> 0, <= 1`."""
    if "minimum" in node and "maximum" in node:
        return f"{write_value(node['minimum'])}..{write_value(node['maximum'])}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {write_value(node[name])}" for name, sign in signs.items() if name in node]
    if "multipleOf" in node:
        bounds.append(f"multiple of {write_value(node['multipleOf'])}")
    return ", ".join(bounds)


def unit_by_name(name: str, leaves: list[Schema]) -> str | None:
    """Read a unit off the last word of a key; None if the word names none."""
    last = name.rpartition("_")[2]
    if last in UNITS:
        return UNITS[last]
    counts = all(leaf.get("type") != "number" for leaf in leaves)
    return last if counts and last.endswith("s") and not last.endswith("ss") else None


def write_value(value: Any) -> str:
    """Write a value as it is typed behind `key=`: text bare, the rest as YAML reads it."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= SHORTEST_GROUPED:
        return f"{value:_}"
    if isinstance(value, float):
        return write_value(int(value)) if value.is_integer() else f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(write_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {write_value(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value)
