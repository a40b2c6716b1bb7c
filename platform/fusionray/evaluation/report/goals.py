"""The keys of an evaluation with their meanings and goals, from the YAML tables in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Literal

import yaml
from pydantic import model_validator

from fusionray.config import Section
from fusionray.evaluation.report.figures import Figure, above, at_least, at_most, within
from fusionray.metrics.confidence import Interval

FUSION_TABLE, PICTURES_TABLE = "goals.yaml", "pictures.yaml"

GoalSet = Literal["none", "paired", "unpaired"]


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

    def check(self, figure: Figure, values: Mapping[str, float]) -> Figure:
        """Put a figure beside the goal; `values` are those of all keys that were measured."""
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


class Key(Section):
    """One row of the table."""

    theme: str
    unit: str
    what: str
    paired: Goal | None = None
    unpaired: Goal | None = None

    def goal(self, chosen: GoalSet) -> Goal | None:
        """Give the goal of a set, if there is one."""
        return {"none": None, "paired": self.paired, "unpaired": self.unpaired}[chosen]


class Table(Section):
    """All keys in their order; `themes` says in a sentence what the keys of each ask."""

    themes: dict[str, str]
    keys: dict[str, Key]

    @model_validator(mode="after")
    def check_names(self) -> Table:
        for name, key in self.keys.items():
            if key.theme not in self.themes:
                raise ValueError(f"{name}: there is no theme '{key.theme}'")
            for goal in (key.paired, key.unpaired):
                unknown = [other for other in (goal.above if goal else ()) if other not in self.keys]
                if unknown:
                    raise ValueError(f"{name}: is to lie above {unknown[0]}, which is no key")
        return self

    def check_goals(
        self, values: Mapping[str, float], intervals: Mapping[str, Interval], chosen: GoalSet
    ) -> dict[str, Figure]:
        """Compare measured values with the goals of a set; return figures in the order of the table."""
        figures: dict[str, Figure] = {}
        for name, key in self.keys.items():
            if name not in values:
                continue
            bounds, goal = intervals.get(name), key.goal(chosen)
            low, high = (None, None) if bounds is None else bounds
            figure = Figure(value=values[name], unit=key.unit, low=low, high=high)
            figures[name] = goal.check(figure, values) if goal else figure
        return figures


def load_table(name: str = FUSION_TABLE) -> Table:
    """Read a table that the package carries."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return Table.model_validate(yaml.safe_load(text))
