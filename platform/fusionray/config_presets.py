"""The presets of the package: YAML files of settings. This module imports no YAML, so that a help costs no time."""

from __future__ import annotations

from pathlib import Path

PRESET_FOLDER = Path(__file__).parent / "recipes" / "presets"


def list_presets() -> list[str]:
    """Name the presets of the package."""
    return sorted(file.stem for file in PRESET_FOLDER.glob("*.yaml"))


def read_preset_text(name: str) -> str:
    """Read the YAML text of a preset that `list_presets` names."""
    return (PRESET_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
