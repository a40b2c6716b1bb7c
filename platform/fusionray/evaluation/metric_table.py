"""The metrics of an evaluation with their descriptions and goals, from the YAML tables in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Literal

import yaml
from pydantic import model_validator

from fusionray.config import Section
from fusionray.metrics.confidence import Interval
from fusionray.reporting.figures import MeasuredFigure, above, at_least, at_most, within

FUSION_TABLE, PICTURES_TABLE = "face_fusion.yaml", "pictures.yaml"

GoalSet = Literal["none", "paired", "unpaired", "photographs"]


class Goal(Section):
    """A goal for a value: bounds, or to exceed the values of other keys."""

    at_least: float | None = None
    at_most: float | None = None
    above: tuple[str, ...] = ()

    @model_validator(mode="after")
    def check_goal(self) -> Goal:
        if bool(self.above) == (self.at_least is not None or self.at_most is not None):
            raise ValueError("a goal is either bounds (at_least, at_most) or a comparison (above)")
        return self

    def check(self, figure: MeasuredFigure, values: Mapping[str, float]) -> MeasuredFigure:
        """Return the figure with this goal filled in; `values` holds all measured values by key."""
        value, unit = figure.value, figure.unit
        if self.above:
            checked = above(value, {key: values[key] for key in self.above if key in values}, unit)
        elif self.at_least is not None and self.at_most is not None:
            checked = within(value, self.at_least, self.at_most, unit)
        elif self.at_least is not None:
            checked = at_least(value, self.at_least, unit)
        else:
            assert self.at_most is not None
            checked = at_most(value, self.at_most, unit)
        copied = ("goal", "goal_low", "goal_high", "holds")
        return figure.model_copy(update={name: getattr(checked, name) for name in copied})


class MetricSpec(Section):
    """One metric: its theme, its unit, what it measures, and its goals, one for each set."""

    theme: str
    unit: str
    description: str
    paired: Goal | None = None
    unpaired: Goal | None = None
    photographs: Goal | None = None

    def goal(self, chosen: GoalSet) -> Goal | None:
        """Return the goal of a set, if there is one."""
        goals = {"none": None, "paired": self.paired, "unpaired": self.unpaired, "photographs": self.photographs}
        return goals[chosen]


class MetricTable(Section):
    """All metrics by key, in the order of the report; `themes` holds the question that each theme answers."""

    themes: dict[str, str]
    metrics: dict[str, MetricSpec]

    @model_validator(mode="after")
    def check_names(self) -> MetricTable:
        for key, metric in self.metrics.items():
            if metric.theme not in self.themes:
                raise ValueError(f"{key}: there is no theme '{metric.theme}'")
            for goal in (metric.paired, metric.unpaired, metric.photographs):
                unknown = [other for other in (goal.above if goal else ()) if other not in self.metrics]
                if unknown:
                    raise ValueError(f"{key}: its goal names {unknown[0]}, which is not a metric of the table")
        return self

    def check_goals(
        self, values: Mapping[str, float], intervals: Mapping[str, Interval], chosen: GoalSet
    ) -> dict[str, MeasuredFigure]:
        """Compare measured values with the goals of a set; return figures in the order of the table."""
        figures: dict[str, MeasuredFigure] = {}
        for key, metric in self.metrics.items():
            if key not in values:
                continue
            bounds, goal = intervals.get(key), metric.goal(chosen)
            low, high = (None, None) if bounds is None else bounds
            figure = MeasuredFigure(value=values[key], unit=metric.unit, low=low, high=high)
            figures[key] = goal.check(figure, values) if goal else figure
        return figures


def load_table(name: str = FUSION_TABLE) -> MetricTable:
    """Read one of the package's tables."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return MetricTable.model_validate(yaml.safe_load(text))
