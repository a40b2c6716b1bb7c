"""Contract 5, the figures: what a run measured, in one JSON file beside its report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import Field

from fusionray import __version__
from fusionray.config import Section
from fusionray.data import storage

FIGURES_NAME = "figures.json"


class Figure(Section):
    """One measured value; `goal` is what was wanted of it, `holds` whether it is reached (null without a goal)."""

    value: float
    unit: str
    goal: str | None = None
    holds: bool | None = None


class Figures(Section):
    """Everything that one run measured, where, and with which code."""

    name: str
    machine: str
    code_version: str
    figures: dict[str, Figure]
    not_measured: dict[str, str] = Field({}, description="keys that could not be measured there, and why")


def at_least(value: float, goal: float, unit: str) -> Figure:
    """State a figure that is to reach a goal."""
    return Figure(value=value, unit=unit, goal=f">= {goal:g}", holds=value >= goal)


def at_most(value: float, goal: float, unit: str) -> Figure:
    """State a figure that is not to exceed a goal."""
    return Figure(value=value, unit=unit, goal=f"<= {goal:g}", holds=value <= goal)


def above(value: float, goal: float, unit: str, what: str) -> Figure:
    """State a figure that is to lie above another one, which is called `what`."""
    return Figure(value=value, unit=unit, goal=f"> {what} ({goal:.4f})", holds=value > goal)


def describe_machine() -> str:
    """Describe what the figures were measured on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = len(os.sched_getaffinity(0))
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{platform.machine()}, {cores} cores, {device}, {versions}"


def write_figures(
    folder: Path, name: str, figures: dict[str, Figure], not_measured: Mapping[str, str] | None = None
) -> Figures:
    """Write `figures.json` into a folder."""
    written = Figures(
        name=name,
        machine=describe_machine(),
        code_version=__version__,
        figures=figures,
        not_measured=dict(not_measured or {}),
    )
    storage.write_atomic(str(folder / FIGURES_NAME), written.model_dump_json(indent=1).encode())
    return written
