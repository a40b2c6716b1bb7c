"""The interface of a model family to the platform: its settings, data, networks and export.

A family is one module (or folder) that subclasses `RecipeFamily` and calls `registry.register`. Training, tuning, dry
runs, evaluation, export and serving use this interface and know no particular family. A family needs torch alone; it
does not import Ray, pyarrow or ONNX.

Shape suffixes: N rows, M draws, R roles (one: single rows; two: source and target), C channels, S side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section
from fusionray.errors import ConfigInvalid
from fusionray.recipes.bundle_export import BundleExport
from fusionray.recipes.measuring import HeldOutRows, PictureScorer, Validator
from fusionray.recipes.recipe import Recipe
from fusionray.shard_task import GROUP_NAMES, ShardTask
from fusionray.types import Batch, DecodedRows


class RecipeConfig(Section):
    """Base of every family's settings; a family narrows `name` to a literal of its own name."""

    name: str = Field(description="Selects the recipe.")

    # Lists the settings of all families. The registry, which knows them, sets it.
    list_registered: ClassVar[Callable[[], tuple[type[RecipeConfig], ...]]] = tuple

    @classmethod
    def list_members(cls) -> tuple[type[RecipeConfig], ...]:
        """List the sections that a field of this type may hold: the settings of all registered families."""
        return cls.list_registered() if cls is RecipeConfig else ()


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
    """The part of a training configuration (`training.config.TrainConfig`) that a family may read."""

    @property
    def run(self) -> RunSettings: ...

    @property
    def data(self) -> DataSettings: ...

    @property
    def recipe(self) -> RecipeConfig: ...

    @property
    def validation(self) -> ValidationSettings: ...


@dataclass(frozen=True)
class DatasetInfo:
    """Properties of the dataset that the networks depend on: from the manifest of the shards, or assumed by a dry run.

    `num_people`: people of the training split; 0 for shards of pictures. `synthetic`: rows hold the parameters from
    which they were rendered. `skin_regions`: the regions of photographs are all visible skin.
    """

    size: int
    template: str
    num_people: int
    synthetic: bool
    skin_regions: bool = False


class RecipeFamily(ABC, Generic[ConfigT]):
    """One model family. The registry holds one instance of each family, which has no state.

    `name`: `recipe.name` in configurations. `Config`: its settings. `task`: the task of the shards that it trains on.
    `num_roles`: 1 samples single rows, 2 samples pairs (source, target) of rows. `runner_inputs`: what the runner of a
    bundle calls them, in this order; empty: as the runner lists them. `source_folder`: in shards of
    pictures, the folder of the input whose pictures are sources, and all others targets; None, or without such a
    folder: any picture is either. `fewest_images`: the smallest batch of a step. `sized_by_people`: the size of a
    network depends on the number of people. `evaluation`: the protocol of `fusionray evaluate` for its models
    (`pictures` compares them with `reference`, or scores them by `build_scorer`); None: it has none. `evaluator`: the
    trained network by which `build_scorer` scores, unless the settings name another, in the form of `dependencies`;
    None: it needs none. `metric_table`: metrics and goals of the protocol, in the form of
    evaluation/pictures.yaml; None: that table.
    """

    name: ClassVar[str]
    Config: type[ConfigT]
    task: ClassVar[ShardTask]
    num_roles: ClassVar[Literal[1, 2]]
    runner_inputs: ClassVar[tuple[str, ...]] = ()
    source_folder: ClassVar[str | None] = None
    fewest_images: ClassVar[int] = 1
    sized_by_people: ClassVar[bool] = False
    evaluation: ClassVar[str | None] = None
    evaluator: ClassVar[str | None] = None
    metric_table: ClassVar[Mapping[str, Any] | None] = None

    # Settings.

    def check(self, config: TrainSettings) -> None:
        """Check the sections of a configuration against each other.

        Raises: ValueError naming the keys.
        """
        if config.validation.evaluator is not None:
            raise ValueError(
                f"validation.evaluator: no network scores models of recipe.name={self.name} while they train; remove it"
            )

    def dependencies(self, config: TrainSettings) -> dict[str, str]:
        """Return the locations of the trained networks that a run needs, by the dotted key of their setting.

        A location is a checkpoint or run folder, `preset:NAME`, which is trained first, or a file.
        """
        del config
        return {}

    def load_dependency(self, key: str, checkpoint: str) -> Any:
        """Load one of `dependencies` from its checkpoint folder, as plain data that can be sent to workers.

        Raises: CheckpointMissing.
        """
        raise NotImplementedError(f"recipe {self.name} has no dependency {key}={checkpoint}")

    def build_untrained(self, key: str, preset: RecipeConfig) -> Any:
        """Build one of `dependencies` untrained, for a dry run; `preset` holds the settings of its own recipe."""
        raise NotImplementedError(f"recipe {self.name} has no dependency {key} of the recipe {preset.name}")

    def check_dependencies(self, config: TrainSettings, loaded: Mapping[str, Any]) -> None:
        """Check the loaded dependencies, by key.

        Raises: ValueError for networks that do not fit together.
        """
        del config, loaded

    # Data.

    def needs_parameters(self, config: ConfigT) -> bool:
        """Return whether training needs the parameters of each row, which only synthetic shards have."""
        del config
        return False

    def needs_regions(self, config: ConfigT, *, synthetic: bool) -> bool:
        """Return whether training needs the face region of each crop from the shards."""
        del config, synthetic
        return False

    @abstractmethod
    def collate(self, roles: Sequence[DecodedRows]) -> Batch:
        """Batch decoded rows: one `DecodedRows` for each of `num_roles` (source first), all of one length."""

    def describe_shortage(self, num_rows: int, num_groups: int) -> str:
        """Return the requirement of a validation that held-out rows miss, such as "at least two people"; or "".

        `num_groups`: people, or in shards of pictures the pictures that rows are cut from.
        """
        del num_rows
        return "" if self.num_roles == 1 or num_groups > 1 else f"at least two {GROUP_NAMES[self.task]}"

    # Networks.

    @abstractmethod
    def build(self, config: ConfigT, dataset: DatasetInfo, dependencies: Mapping[str, Any]) -> Recipe[Any]:
        """Build the recipe; the caller has seeded torch's global generator, from which initial weights are drawn."""

    def describe(self, recipe: Any) -> dict[str, Any]:
        """Return the JSON metadata that a checkpoint needs, besides the configuration, to rebuild the networks."""
        del recipe
        return {}

    def build_validator(
        self, config: TrainSettings, dependencies: Mapping[str, Any], held_out: HeldOutRows, device: torch.device
    ) -> Validator | None:
        """Build the validator that the configuration names, if any; its metrics are added to `Recipe.evaluate`."""
        del config, dependencies, held_out, device
        return None

    # Dry run.

    @abstractmethod
    def dummy_batch(self, config: TrainSettings, count: int) -> Batch:
        """Draw `count` rows of noise, uint8 on the CPU, of `config.data.size` px, seeded by `config.run.seed`."""

    @abstractmethod
    def inference_example(self, recipe: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the network that serves after training, and inputs of one row: a dry run counts its operations."""

    # Export.

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
        raise ConfigInvalid(
            f"the recipe {self.name} has no reference output, so its models cannot be compared with one"
        )

    def check_evaluator(self, evaluator: str, checkpoint: str) -> None:
        """Check that an evaluator, a checkpoint folder or file, did not supervise the model of a checkpoint folder.

        Raises: ValueError if it did; CheckpointMissing.
        """
        del evaluator, checkpoint

    def build_scorer(self, evaluator: str, device: torch.device) -> PictureScorer:
        """Build the scorer of an evaluation, if the family has an `evaluator`: here, its checkpoint folder or file.

        Raises: CheckpointMissing.
        """
        raise NotImplementedError(f"recipe {self.name} scores nothing by {evaluator} on {device}")

    def export(self, checkpoint: str) -> BundleExport:
        """Return the graphs of a checkpoint folder, and their description.

        Raises: ConfigInvalid if the family has no export; CheckpointMissing.
        """
        raise ConfigInvalid(f"{checkpoint}: models of the recipe {self.name} cannot be exported")

    def export_recipe(self, recipe: Any, template: str) -> BundleExport:
        """Return the same for networks in memory, trained or not; `template` is that of the shards.

        Raises: ConfigInvalid if the family has no export.
        """
        del recipe, template
        raise ConfigInvalid(f"models of the recipe {self.name} cannot be exported")
