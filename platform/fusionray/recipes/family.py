"""The interface of a model family to the platform: its settings, data, networks and export.

A second family is one module (or folder) that subclasses `RecipeFamily` and calls `registry.register`. Training,
tuning, dry runs, evaluation, export and serving call the family and name none. A family is pure torch: it gets objects
of Ray, pyarrow or ONNX only as arguments of its methods.

Shape suffixes: N rows, M draws, R roles (one: single rows; two: source and target), C channels, S side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fusionray.bundle.description import GENERATOR_NAME, describe_pictures
from fusionray.config import Section
from fusionray.errors import ConfigInvalid
from fusionray.recipes.recipe import Recipe
from fusionray.types import GROUP_NAMES, Batch, DecodedRows, ShardTask


class RecipeConfig(Section):
    """Base of every family's settings; a family narrows `name` to its own, with it as the default."""

    name: str = Field(description="Selects the recipe.")

    @classmethod
    def list_members(cls) -> tuple[type[RecipeConfig], ...]:
        """List the sections that may stand where this one is the type of a field: those of all registered families."""
        from fusionray.recipes.registry import find_family, list_families

        return tuple(find_family(name).Config for name in list_families()) if cls is RecipeConfig else ()


ConfigT = TypeVar("ConfigT", bound=RecipeConfig)


class RunSettings(Protocol):
    """The part of `run` in a training configuration that a family may read."""

    @property
    def seed(self) -> int: ...


class DataSettings(Protocol):
    """The part of `data` in a training configuration that a family may read."""

    @property
    def shards(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def template(self) -> str: ...


class ValidationSettings(Protocol):
    """The part of `validation` in a training configuration that a family may read."""

    @property
    def evaluator(self) -> str | None: ...

    @property
    def attributes(self) -> str | None: ...


class TrainSettings(Protocol):
    """What a family may read of a training configuration (`training.config.TrainConfig`)."""

    @property
    def run(self) -> RunSettings: ...

    @property
    def data(self) -> DataSettings: ...

    @property
    def recipe(self) -> RecipeConfig: ...

    @property
    def validation(self) -> ValidationSettings: ...


@dataclass(frozen=True)
class DataFacts:
    """What the networks are sized for: read from the manifest of the shards, or assumed by a dry run.

    `num_people`: people of the training split; 0 where rows show nobody. `synthetic`: rows carry what generated them.
    """

    size: int
    template: str
    num_people: int
    synthetic: bool


class HeldOutRows(Protocol):
    """The validation rows of a run, encoded; the input of a `Validator`."""

    @property
    def groups(self) -> Sequence[str]:
        """Name what each row [N] shows: a person, or in shards of pictures the picture that it is cut from."""

    def decode(self, rows: NDArray[np.int64]) -> Tensor:
        """Decode rows to uint8 [N,3,S,S] RGB on the CPU."""

    def batches(self, draws: NDArray[np.int64], size: int) -> Iterator[Any]:
        """Yield batches of at most `size` draws, as the family collates them, on the CPU; `draws` int64 [M,R]."""


class Validator(Protocol):
    """An independent validation of a recipe while it trains."""

    def validate(self, recipe: Any, networks: Mapping[str, nn.Module]) -> dict[str, float]:
        """Measure the networks on held-out rows: metrics by name."""


# Draws `count` rows of each input of a graph, float32, as they may come: no trained model is asked.
DrawInputs = Callable[[np.random.Generator, int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class GraphExport:
    """One network of a bundle: a torch module, in eval mode, that becomes one ONNX file.

    `inputs` and `outputs`: names, in the order of the module's arguments and of what it returns. All have the batch as
    axis 0, which may have any length. `draw`: rows by which torch and ONNX are compared.
    """

    file: str
    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    draw: DrawInputs


@dataclass(frozen=True)
class BundleExport:
    """The export of a family: the networks of a bundle, and their description in `bundle.json`.

    `task`: what runs the bundle (`runtime.tasks`). `graphs`: the first one makes the picture, as `generator.onnx`.
    `description`: fields of `bundle.json` beyond those that every bundle has; at least `size` and `tensors`.

    Variants in fewer bits are calibrated and measured on crops of the run's shards, uint8 [N,3,S,S]; `make_inputs`
    turns them into inputs of the first graph; its `output` lies in [-1,1]. Without it there are no variants. Where the
    shards are out of reach, `draw_crops` (number, seed) stands in for them, and `crops_are` says what it draws.
    """

    task: str
    graphs: tuple[GraphExport, ...]
    description: Mapping[str, Any]
    make_inputs: Callable[[Tensor], tuple[Tensor, ...]] | None = None
    draw_crops: Callable[[int, int], Tensor] | None = None
    crops_are: str = "crops that were drawn"


def draw_pictures(random: np.random.Generator, count: int, size: int) -> Tensor:
    """Draw pictures of noise, float32 [N,3,S,S] in [-1,1]."""
    return torch.from_numpy(random.uniform(-1, 1, (count, 3, size, size)).astype(np.float32))


def deliver_pictures(
    task: str,
    module: nn.Module,
    inputs: tuple[str, ...],
    size: int,
    make_inputs: Callable[[Tensor], tuple[Tensor, ...]],
) -> BundleExport:
    """Deliver a module from pictures [N,3,S,S] to one, all in [-1,1]: the runtime needs no code to run it."""

    def draw(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        return tuple(draw_pictures(random, count, size) for _ in inputs)

    graph = GraphExport(GENERATOR_NAME, module.eval(), inputs, ("output",), draw)
    return BundleExport(task, (graph,), {"size": size, "tensors": describe_pictures(size, inputs)}, make_inputs)


class RecipeFamily(ABC, Generic[ConfigT]):
    """One model family. The platform has one instance of each, which holds no state; see `registry`.

    `name`: `recipe.name` in configurations. `Config`: its settings. `task`: the shards it learns from. `num_roles`: 1
    samples single rows, 2 samples pairs (source, target) of rows. `fewest_images`: the smallest batch of a step.
    `counts_people`: the size of a network follows from the number of people. `evaluation`: the protocol by which
    `fusionray evaluate` measures its models: `pictures` compares with `reference`; None if there is none. `figures`:
    the table of that protocol's keys and goals, in the form of evaluation/report/pictures.yaml; None: that one.
    """

    name: ClassVar[str]
    Config: type[ConfigT]
    task: ClassVar[ShardTask]
    num_roles: ClassVar[Literal[1, 2]]
    fewest_images: ClassVar[int] = 1
    counts_people: ClassVar[bool] = False
    evaluation: ClassVar[str | None] = None
    figures: ClassVar[Mapping[str, Any] | None] = None

    # Settings.

    def check(self, config: TrainSettings) -> None:
        """Check the sections of a configuration against each other.

        Raises: ValueError naming the keys.
        """
        if config.validation.evaluator is not None:
            raise ValueError(
                f"validation.evaluator scores face fusions, and recipe.name={self.name} makes none; remove it"
            )

    def dependencies(self, config: TrainSettings) -> dict[str, str]:
        """Name the trained networks that a run needs, by the dotted key of the setting that says where each lies.

        A location is a checkpoint or run folder, or `preset:NAME`, which is trained first.
        """
        del config
        return {}

    def load_dependency(self, key: str, checkpoint: str) -> Any:
        """Load what `dependencies` named out of its checkpoint folder: plain data that travels to workers.

        Raises: CheckpointMissing.
        """
        raise NotImplementedError(f"recipe {self.name} names no dependency: {key}={checkpoint}")

    def build_untrained(self, key: str, preset: RecipeConfig) -> Any:
        """Build what `load_dependency` would load, untrained, for a dry run; `preset` is the recipe that trains it."""
        raise NotImplementedError(f"recipe {self.name} names no dependency: {key}, by the recipe {preset.name}")

    def check_dependencies(self, config: TrainSettings, loaded: Mapping[str, Any]) -> None:
        """Check what `load_dependency` loaded, by key.

        Raises: ValueError for networks that do not go together.
        """
        del config, loaded

    # Data.

    def needs_parameters(self, config: ConfigT) -> bool:
        """Return whether it trains on the parameters of each row, which only synthetic shards have."""
        del config
        return False

    def needs_regions(self, config: ConfigT, *, synthetic: bool) -> bool:
        """Return whether it needs the face region of each crop from the shards."""
        del config, synthetic
        return False

    @abstractmethod
    def collate(self, roles: Sequence[DecodedRows]) -> Batch:
        """Make a batch of decoded rows, one `DecodedRows` for each of `num_roles` (source first), all of one length."""

    def tell_missing(self, num_rows: int, num_groups: int) -> str:
        """Return what held-out rows lack for `Recipe.evaluate`, such as "at least two people"; "" if nothing.

        `num_groups`: people, or in shards of pictures the pictures that rows are cut from.
        """
        del num_rows
        return "" if self.num_roles == 1 or num_groups > 1 else f"at least two {GROUP_NAMES[self.task]}"

    # Networks.

    @abstractmethod
    def build(self, config: ConfigT, facts: DataFacts, dependencies: Mapping[str, Any]) -> Recipe[Any]:
        """Build the recipe; its networks draw their first weights from torch's global generator, seeded before."""

    def describe(self, recipe: Any) -> dict[str, Any]:
        """Return the JSON metadata that a checkpoint needs, besides the configuration, to rebuild the networks."""
        del recipe
        return {}

    def build_validator(
        self, config: TrainSettings, dependencies: Mapping[str, Any], held_out: HeldOutRows, device: torch.device
    ) -> Validator | None:
        """Build the independent validator of the run, if the configuration names one; it adds to `Recipe.evaluate`."""
        del config, dependencies, held_out, device
        return None

    # Dry run.

    @abstractmethod
    def draw_batch(self, config: TrainSettings, count: int) -> Batch:
        """Draw `count` rows of noise of `config.data.size` px, uint8 on the CPU, seeded by `config.run.seed`."""

    @abstractmethod
    def trace_inference(self, recipe: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Give the network that the recipe is for, and an input of one row, whose operations a dry run counts."""

    # Delivery.

    def load_model(self, checkpoint: str) -> nn.Module:
        """Load the EMA networks of a checkpoint folder as the model to evaluate: pictures in [-1,1] in and out.

        Takes `num_roles` tensors float32 [N,3,S,S]; frozen, in eval mode.

        Raises: ConfigInvalid if the family has no such model; CheckpointMissing.
        """
        raise ConfigInvalid(f"{checkpoint}: models of the recipe {self.name} cannot be evaluated on their own")

    def reference(self, pictures: Sequence[Tensor]) -> Tensor:
        """Return the reference output for pictures, float32 [N,3,S,S] in [-1,1], one for each of `num_roles`.

        Raises: ConfigInvalid if the family has no reference.
        """
        del pictures
        raise ConfigInvalid(f"the recipe {self.name} has no reference output, so there is nothing to compare with")

    def export(self, checkpoint: str) -> BundleExport:
        """Give the graphs of a checkpoint folder, and what describes them.

        Raises: ConfigInvalid if the family delivers none; CheckpointMissing.
        """
        raise ConfigInvalid(f"{checkpoint}: models of the recipe {self.name} cannot be exported")

    def deliver(self, recipe: Any, template: str) -> BundleExport:
        """Give the same of networks in memory, trained or not; `template` is that of the shards.

        Raises: ConfigInvalid if the family delivers none.
        """
        del recipe, template
        raise ConfigInvalid(f"models of the recipe {self.name} cannot be exported")
