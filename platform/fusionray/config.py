"""The configuration tree: frozen pydantic sections, YAML files, dotted overrides.

Each package owns the section that it reads (`PrepareConfig`, `TrainConfig`, ...). This module builds a section from a
preset, a file and overrides; the later one wins, key by key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.config import JsonDict

from fusionray.config_faults import describe_faults
from fusionray.config_presets import list_presets, read_preset_text
from fusionray.errors import ConfigInvalid
from fusionray.spelling import suggest


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys.

    The root of a tree names in `listed_by` the command that lists its keys.
    """

    listed_by: ClassVar[str] = ""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


# User and password of what follows "://", as in postgresql://mlflow:secret@db/mlflow. Source: RFC 3986, 3.2.
USER_OF_URI, USER_OF_DATABASE = re.compile(r"^[^/?#]*@"), re.compile(r"^.*@")
# Source: MLflow's tracking stores; SQLite has no users.
DATABASES = ("postgres", "mysql", "mssql")
SectionT = TypeVar("SectionT", bound=Section)


def hide_passwords(tree: Any) -> Any:
    """Copy a tree of settings without the user and password of its URIs: what is stored or shown is read by others."""
    if isinstance(tree, Mapping):
        return {key: hide_passwords(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [hide_passwords(value) for value in tree]
    return hide_password(tree) if isinstance(tree, str) else tree


def hide_password(text: str) -> str:
    """Take user and password out of a URI; other texts stay."""
    scheme, separator, rest = text.partition("://")
    # The addresses of databases may have a password with any character but "@".
    pattern = USER_OF_DATABASE if scheme.startswith(DATABASES) else USER_OF_URI
    return f"{scheme}{separator}{pattern.sub('', rest)}"


def in_unit(name: str) -> JsonDict:
    """Name the unit of a number where its key does not, as `json_schema_extra`; "" for a number without a unit."""
    return {"unit": name}


def load_config(
    section: type[SectionT],
    *,
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    preset: str | None = None,
) -> SectionT:
    """Build a section from preset, YAML file and `dotted.key=value` overrides; the later one wins.

    The file (`preset: tiny-64`) or an override may also name the preset.

    Raises: ConfigInvalid naming the file or override and the key.
    """
    named, tree = read_settings(file=file, overrides=overrides, preset=preset)
    where = str(file) if file is not None else f"preset {named}" if named else "the command line"
    return validate(section, tree, where)


def read_settings(
    *, file: str | Path | None = None, overrides: Sequence[str] = (), preset: str | None = None
) -> tuple[str | None, dict[str, Any]]:
    """Read the name of the preset, if there is one, and the unchecked tree that `load_config` builds a section from.

    Raises: ConfigInvalid naming the file, override or preset that cannot be read.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    from_overrides = parse_overrides(overrides)
    named = from_overrides.pop("preset", None) or preset or from_file.get("preset")
    from_file.pop("preset", None)
    tree = {} if named is None else read_preset(str(named))
    return None if named is None else str(named), merge_trees(merge_trees(tree, from_file), from_overrides)


def validate(section: type[SectionT], tree: Mapping[str, Any], where: str) -> SectionT:
    """Check a plain tree against its section.

    Raises: ConfigInvalid with one line that names every wrong key.
    """
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        faults = describe_faults(section, error.errors(), section.listed_by)
        raise ConfigInvalid(f"{where}: {'; '.join(faults)}") from None


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
        raise ConfigInvalid(f"{path}: expected `key: value` lines at the top level, found a {type(tree).__name__}")
    return tree


def read_preset(name: str) -> dict[str, Any]:
    """Read a preset of the package; it may name another preset that it extends.

    Raises: ConfigInvalid naming the presets.
    """
    if name not in list_presets():
        known = list_presets()
        raise ConfigInvalid(f"no preset '{name}'{suggest(name, known)} (presets: {', '.join(known)})")
    tree = yaml.safe_load(read_preset_text(name))
    assert isinstance(tree, dict)
    base = tree.pop("preset", None)
    return tree if base is None else merge_trees(read_preset(base), tree)


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Turn `a.b=1` items into a nested tree; values are parsed as YAML.

    Raises: ConfigInvalid for an item without `=` or with a value that is not YAML.
    """
    tree: dict[str, Any] = {}
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator or not all(key.split(".")):
            where = "" if separator else "; options name files and folders, see --help"
            raise ConfigInvalid(f"override '{item}': write dotted.key=value, for example run.seed=1{where}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigInvalid(f"override '{item}': the value is not valid YAML; quote special characters") from None
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
