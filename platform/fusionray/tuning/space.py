"""The search space: the settings to try and their ranges. Does not import Ray."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from fusionray.config import Section, in_unit, merge_trees, validate
from fusionray.errors import ConfigInvalid
from fusionray.training.config import TrainConfig

# Settings that make trials incomparable, or that belong to the search itself.
NOT_SEARCHABLE = ("run", "budget", "tracking", "validation", "workers", "data.shards", "data.validation_images")
# Largest number of combinations of extremes that are all checked; in larger spaces each extreme is checked on its own.
MAX_CORNERS = 1024
# Significant digits of a sampled number, so that users can type a reported value.
DIGITS = 4

Settings = dict[str, Any]


class Range(Section):
    """The values that one setting may take; exactly one of choice, uniform, loguniform and integer is set."""

    choice: tuple[Any, ...] | None = Field(None, min_length=2, description="A list of values to choose from.")
    uniform: tuple[float, float] | None = Field(
        None, description="Lowest and highest number; numbers are drawn uniformly.", json_schema_extra=in_unit("")
    )
    loguniform: tuple[float, float] | None = Field(
        None,
        description="Lowest and highest number; numbers are drawn uniformly on a logarithmic scale.",
        json_schema_extra=in_unit(""),
    )
    integer: tuple[int, int] | None = Field(
        None, description="Lowest and highest integer, both included.", json_schema_extra=in_unit("")
    )
    also: tuple[str, ...] = Field((), description="Further dotted keys that take the same value.")

    @model_validator(mode="after")
    def check_kind(self) -> Range:
        kinds = [name for name in ("choice", "uniform", "loguniform", "integer") if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError("give one of choice, uniform, loguniform and integer")
        if self.choice is None:
            low, high = self.bounds
            if not low < high:
                raise ValueError(f"{kinds[0]}: {low:g} must lie below {high:g}")
            if self.loguniform and low <= 0:
                raise ValueError(f"loguniform: {low:g} has no logarithm; begin above 0")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the lowest and the highest value of a range of numbers."""
        bounds = self.uniform or self.loguniform or self.integer
        assert bounds is not None, "choices have no bounds"
        return bounds

    def extremes(self) -> tuple[Any, ...]:
        """List the values that a configuration must accept: all choices, or both bounds."""
        return self.choice if self.choice is not None else self.bounds

    def contains(self, value: Any) -> bool:
        """Return whether a value lies in the range."""
        if self.choice is not None:
            return value in self.choice
        low, high = self.bounds
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and low <= value <= high and (self.integer is None or value == int(value))

    def sample(self, random: np.random.Generator) -> Any:
        """Sample a value."""
        if self.choice is not None:
            return self.choice[int(random.integers(len(self.choice)))]
        low, high = self.bounds
        if self.integer is not None:
            return int(random.integers(self.integer[0], self.integer[1] + 1))
        if self.loguniform is not None:
            return self.round_to_range(math.exp(random.uniform(math.log(low), math.log(high))))
        return self.round_to_range(random.uniform(low, high))

    def perturb(self, value: Any, random: np.random.Generator) -> Any:
        """Return a value near another: a fifth more or less, or the neighbouring choice."""
        up = bool(random.integers(2))
        if self.choice is not None:
            place = self.choice.index(value) + (1 if up else -1)
            return self.choice[min(max(place, 0), len(self.choice) - 1)]
        changed = self.round_to_range(value * (1.2 if up else 0.8))
        if self.integer is not None and changed == value:
            # A fifth of a small number is less than one.
            changed = self.round_to_range(value + (1 if up else -1))
        return changed

    def round_to_range(self, value: float) -> float | int:
        """Round a number to DIGITS significant digits, within the range."""
        low, high = self.bounds
        if self.integer is not None:
            return int(min(max(round(value), low), high))
        return min(max(float(f"{value:.{DIGITS}g}"), low), high)

    def position(self, value: Any) -> float:
        """Return the position of a value in the range, 0 at the low end, 1 at the high end."""
        if self.choice is not None:
            return self.choice.index(value) / (len(self.choice) - 1)
        low, high = self.bounds
        if self.loguniform is not None:
            return math.log(value / low) / math.log(high / low)
        return float((value - low) / (high - low))


Space = Mapping[str, Range]


def check_space(space: Space, train: TrainConfig) -> None:
    """Check that every key is a setting of the training, and that the training accepts every extreme of the space.

    Raises: ConfigInvalid naming the key.
    """
    keys = [name for key, values in space.items() for name in (key, *values.also)]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigInvalid(f"space: {key} occurs twice; name each setting once, also in `also`")
        excluded = next((name for name in NOT_SEARCHABLE if key == name or key.startswith(f"{name}.")), None)
        if excluded:
            raise ConfigInvalid(f"space: {key} cannot be searched: trials that differ in {excluded} cannot be compared")
    for settings in corners(space):
        configure(train, space, settings, f"space, at {format_settings(settings)}")
    first = next(corners(space), {})
    for key, values in space.items():
        if values.integer is None and values.choice is None:
            # Between the ends, which a setting of whole numbers may accept.
            low, high = values.bounds
            settings = {**first, key: low + (high - low) / math.sqrt(7)}
            configure(train, space, settings, f"space, at {format_settings(settings)}")
    check_default(space, train)


def corners(space: Space) -> Iterator[Settings]:
    """Yield every combination of extremes; in a large space, each extreme with the first extremes of the others."""
    ends = {key: values.extremes() for key, values in space.items()}
    if math.prod(len(values) for values in ends.values()) <= MAX_CORNERS:
        for chosen in itertools.product(*ends.values()):
            yield dict(zip(ends, chosen, strict=True))
        return
    lowest = {key: values[0] for key, values in ends.items()}
    for key, values in ends.items():
        yield from ({**lowest, key: value} for value in values)


def check_default(space: Space, train: TrainConfig) -> None:
    """Check that the unchanged training lies in the space: it is the first trial, the baseline of all others.

    Raises: ConfigInvalid naming the key.
    """
    tree = train.model_dump(mode="json")
    for key, values in space.items():
        default = read_setting(tree, key)
        if not values.contains(default):
            raise ConfigInvalid(
                f"space: {key} is {default} in the unchanged training, outside its range; widen the range, or set "
                f"train.{key}"
            )
        for other in values.also:
            if read_setting(tree, other) != default:
                raise ConfigInvalid(
                    f"space: {other} must equal {key}, but in the unchanged training they are "
                    f"{read_setting(tree, other)} and {default}; set both to one value in train"
                )


def default_settings(space: Space, train: TrainConfig) -> Settings:
    """Read the searched settings of the unchanged training."""
    tree = train.model_dump(mode="json")
    return {key: read_setting(tree, key) for key in space}


def configure(train: TrainConfig, space: Space, settings: Settings, where: str) -> TrainConfig:
    """Apply the settings of a trial to a training.

    Raises: ConfigInvalid naming `where` and the key.
    """
    return validate(TrainConfig, merge_trees(train.model_dump(mode="json"), build_tree(space, settings)), where)


def build_tree(space: Space, settings: Settings) -> dict[str, Any]:
    """Turn settings by dotted key into a tree, with the further keys of `also`."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        for name in (key, *space[key].also):
            nested: Any = value
            for part in reversed(name.split(".")):
                nested = {part: nested}
            tree = merge_trees(tree, nested)
    return tree


def read_setting(tree: Mapping[str, Any], key: str) -> Any:
    """Read a setting of a tree by its dotted key.

    Raises: ConfigInvalid if the tree has no such part.
    """
    value: Any = tree
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigInvalid(f"space: {key} is not part of the unchanged training; set train.{key} first")
        value = value[part]
    return value


def short_names(space: Space) -> dict[str, str]:
    """Shorten each key to the fewest last parts that are unique."""
    names = {}
    for key in space:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            short = ".".join(parts[-count:])
            if sum(other == short or other.endswith(f".{short}") for other in space) == 1:
                break
        names[key] = short
    return names


def format_value(value: Any) -> str:
    """Format a setting for people."""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def format_settings(settings: Settings) -> str:
    """Format settings in one line."""
    return ", ".join(f"{key}={format_value(value)}" for key, value in settings.items())
