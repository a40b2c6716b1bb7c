"""The layouts of published face swappers, for `fusionray import --like NAME`: parts of the tree of `ImportConfig`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from fusionray.errors import ConfigInvalid


def read_layouts() -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = yaml.safe_load(
        files("fusionray.export").joinpath("import_layouts.yaml").read_text("utf-8")
    )
    return tree


def list_layouts() -> list[str]:
    """Return the names of the layouts, sorted."""
    return sorted(read_layouts())


def read_layout(name: str) -> dict[str, Any]:
    """Read a layout as a part of the tree of `ImportConfig`.

    Raises: ConfigInvalid if there is no layout of that name.
    """
    table = read_layouts()
    if name not in table:
        raise ConfigInvalid(f"--like {name}: not known; there are {', '.join(sorted(table))}")
    return {key: value for key, value in table[name].items() if key not in ("facts", "encoder_note")}
