"""The configuration tree: frozen pydantic sections, YAML files, dotted overrides.

Each room owns the section that it reads (`PrepareConfig`, `TrainConfig`, ...). This module only knows how a section is
put together: preset, then file, then overrides, the later one winning key by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fusionray.errors import ConfigInvalid

PRESET_PACKAGE = "fusionray.recipes"
PRESET_FOLDER = "presets"


class Section(BaseModel):
    """A frozen part of the configuration that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def find_section(cls, field: str, value: Any) -> Any:
        """Find the type that reads `value` as a field: its annotation, where the value does not decide it."""
        del value
        return cls.model_fields[field].annotation


SectionT = TypeVar("SectionT", bound=Section)


def list_presets() -> list[str]:
    """Name the presets that the package carries."""
    folder = resources.files(PRESET_PACKAGE) / PRESET_FOLDER
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_config(
    section: type[SectionT],
    *,
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    preset: str | None = None,
) -> SectionT:
    """Build a section from preset, YAML file and `dotted.key=value` overrides, the later winning.

    The preset may also be named inside the file (`preset: tiny-64`) or in an override.

    Raises: ConfigInvalid naming the file or override and the key.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    from_overrides = parse_overrides(overrides)
    named = from_overrides.pop("preset", None) or preset or from_file.get("preset")
    from_file.pop("preset", None)
    tree: dict[str, Any] = {}
    if named is not None:
        tree = read_preset(str(named))
    tree = merge_trees(merge_trees(tree, from_file), from_overrides)
    where = str(file) if file is not None else f"preset {named}" if named else "the command line"
    return validate(section, tree, where)


def validate(section: type[SectionT], tree: Mapping[str, Any], where: str) -> SectionT:
    """Check a plain tree against its section.

    Raises: ConfigInvalid with one line that names every key at fault.
    """
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        faults = [describe_fault(section, tree, detail) for detail in error.errors()]
        raise ConfigInvalid(f"{where}: {'; '.join(faults)}") from None


def describe_fault(section: type[Section], tree: Mapping[str, Any], detail: Any) -> str:
    """Say in the words of the file which key is at fault, and for an unknown one which keys there are."""
    owner: Any = section
    value: Any = tree
    path: list[str] = []
    known = ""
    for part in detail["loc"]:
        path.append(str(part))
        fields = getattr(owner, "model_fields", {})
        known = f" (known here: {', '.join(sorted(fields))})" if fields else ""
        value = value.get(part) if isinstance(value, Mapping) else None
        owner = owner.find_section(part, value) if part in fields and issubclass(owner, Section) else None
    key = ".".join(path)
    return (
        f"unknown key '{key}'{known}" if detail["type"] == "extra_forbidden" else f"{key or 'value'}: {detail['msg']}"
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises: ConfigInvalid if the file is missing, is not YAML or is not a mapping.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot read the configuration ({error.strerror}); check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigInvalid(f"{path}: expected `key: value` lines at the top, found a {type(tree).__name__}")
    return tree


def read_preset(name: str) -> dict[str, Any]:
    """Read a preset that the package carries, on top of the one that it names as its own `preset`.

    Raises: ConfigInvalid naming the presets there are.
    """
    if name not in list_presets():
        raise ConfigInvalid(f"no preset '{name}'; there are: {', '.join(list_presets())}")
    text = (resources.files(PRESET_PACKAGE) / PRESET_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    assert isinstance(tree, dict)
    base = tree.pop("preset", None)
    return tree if base is None else merge_trees(read_preset(base), tree)


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Turn `a.b=1` items into a nested tree; values are read as YAML.

    Raises: ConfigInvalid for an item without `=` or with a value that is not YAML.
    """
    tree: dict[str, Any] = {}
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator or not all(key.split(".")):
            raise ConfigInvalid(f"override '{item}': write dotted.key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigInvalid(f"override '{item}': the value is not valid YAML") from None
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        tree = merge_trees(tree, nested)
    return tree


def replace_setting(section: SectionT, key: str, value: Any) -> SectionT:
    """Copy a section with another value of a dotted key."""
    first, _, rest = key.partition(".")
    return section.model_copy(update={first: replace_setting(getattr(section, first), rest, value) if rest else value})


def merge_trees(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; values of `over` win, mappings merge key by key."""
    merged = dict(base)
    for key, value in over.items():
        both_mappings = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_trees(merged[key], value) if both_mappings else value
    return merged
