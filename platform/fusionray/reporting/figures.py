"""The figures of a run: measured values with goals, in the file `figures.json` next to the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pydantic import Field

from fusionray import __version__
from fusionray.config import Section
from fusionray.hardware.device import describe_cpu, find_gpu
from fusionray.storage import filesystem as storage

FIGURES_NAME = "figures.json"


class MeasuredFigure(Section):
    """One measured value; `goal` is its goal in words, `holds` whether the value reaches it (null without a goal).

    `low` and `high` are the ends of the 95 % confidence interval, of a benchmark the lowest and the highest round; null
    if there is none. `goal_low` and `goal_high` are the bounds of the goal.
    """

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    goal: str | None = None
    goal_low: float | None = None
    goal_high: float | None = None
    holds: bool | None = None


class Figures(Section):
    """All figures of one run, with the machine and the version of the code."""

    name: str
    machine: str
    code_version: str
    figures: dict[str, MeasuredFigure]
    not_measured: dict[str, str] = Field({}, description="keys that could not be measured, and why")


def at_least(value: float, goal: float, unit: str) -> MeasuredFigure:
    """Build a figure whose goal is a lower bound."""
    return MeasuredFigure(value=value, unit=unit, goal=f">= {goal:g}", goal_low=goal, holds=value >= goal)


def at_most(value: float, goal: float, unit: str) -> MeasuredFigure:
    """Build a figure whose goal is an upper bound."""
    return MeasuredFigure(value=value, unit=unit, goal=f"<= {goal:g}", goal_high=goal, holds=value <= goal)


def within(value: float, low: float, high: float, unit: str) -> MeasuredFigure:
    """Build a figure whose goal is a range, both bounds included."""
    goal = f"{low:g} .. {high:g}"
    return MeasuredFigure(value=value, unit=unit, goal=goal, goal_low=low, goal_high=high, holds=low <= value <= high)


def above(value: float, others: Mapping[str, float], unit: str) -> MeasuredFigure:
    """Build a figure whose goal is to exceed other values, given by name."""
    goal = ", ".join(f"{name} ({other:.3f})" for name, other in others.items())
    holds = all(value > other for other in others.values())
    highest = max(others.values(), default=None)
    return MeasuredFigure(value=value, unit=unit, goal=f"> {goal}", goal_low=highest, holds=holds)


def describe_machine() -> str:
    """Describe the machine, and the versions of Python and torch, in one line."""
    gpu = find_gpu()
    device = gpu.name if gpu else "no GPU"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = f"{len(os.sched_getaffinity(0))} cores of {describe_cpu().model}"
    versions = f"Python {platform.python_version()}, torch {version('torch')}"
    return f"{platform.machine()}, {cores}, {memory:.0f} GiB, {device}, {versions}"


def write_figures(
    folder: str | Path, name: str, figures: dict[str, MeasuredFigure], not_measured: Mapping[str, str] | None = None
) -> Figures:
    """Write `figures.json` into a folder or URI, and return its content."""
    written = Figures(
        name=name,
        machine=describe_machine(),
        code_version=__version__,
        figures=figures,
        not_measured=dict(not_measured or {}),
    )
    storage.write_atomic(storage.join(str(folder), FIGURES_NAME), written.model_dump_json(indent=1).encode())
    return written
