"""The keys that an evaluation tells, what they mean, and what is wanted of them: the tables in YAML beside this."""

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
    """What is wanted of a value: bounds, or to lie above the values of other keys."""

    at_least: float | None = None
    at_most: float | None = None
    above: tuple[str, ...] = ()

    @model_validator(mode="after")
    def check_wish(self) -> Goal:
        if bool(self.above) == (self.at_least is not None or self.at_most is not None):
            raise ValueError("a goal is either bounds (at_least, at_most) or a comparison (above)")
        return self

    def judge(self, figure: Figure, values: Mapping[str, float]) -> Figure:
        """Put a figure beside the goal; `values` are those of all keys that were measured."""
        value, unit = figure.value, figure.unit
        if self.above:
            judged = above(value, {key: values[key] for key in self.above if key in values}, unit)
        elif self.at_least is not None and self.at_most is not None:
            judged = within(value, self.at_least, self.at_most, unit)
        elif self.at_least is not None:
            judged = at_least(value, self.at_least, unit)
        else:
            assert self.at_most is not None
            judged = at_most(value, self.at_most, unit)
        told = ("goal", "goal_low", "goal_high", "holds")
        return figure.model_copy(update={name: getattr(judged, name) for name in told})


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

    def judge(
        self, values: Mapping[str, float], intervals: Mapping[str, Interval], chosen: GoalSet
    ) -> dict[str, Figure]:
        """Judge measured values in the order of the table."""
        figures: dict[str, Figure] = {}
        for name, key in self.keys.items():
            if name not in values:
                continue
            bounds, goal = intervals.get(name), key.goal(chosen)
            low, high = (None, None) if bounds is None else bounds
            figure = Figure(value=values[name], unit=key.unit, low=low, high=high)
            figures[name] = goal.judge(figure, values) if goal else figure
        return figures


def load_table(name: str = FUSION_TABLE) -> Table:
    """Read a table that the package carries."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return Table.model_validate(yaml.safe_load(text))
