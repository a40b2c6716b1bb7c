"""The check that members of a population can continue from each other's checkpoints. Does not import Ray."""

from __future__ import annotations

from fusionray.errors import ConfigInvalid
from fusionray.training.config import TrainConfig
from fusionray.tuning.space import Space, configure, format_settings


def check_population(space: Space, train: TrainConfig) -> None:
    """Check that no value of the space changes which tensors a checkpoint holds: members copy checkpoints.

    Raises: ConfigInvalid naming the key.
    """
    expected = list_state(train)
    for key, values in space.items():
        for value in values.extremes():
            chosen = format_settings({key: value})
            if list_state(configure(train, space, {key: value}, f"space, at {chosen}")) != expected:
                raise ConfigInvalid(
                    f"space: {chosen} changes the tensors of a checkpoint, and with search=pbt members continue from "
                    f"each other's checkpoints; remove {key} from the space, or search with tpe"
                )


def list_state(train: TrainConfig) -> dict[str, object]:
    """List what determines the tensors of a checkpoint: their shapes, and the optimiser of each network."""
    # Imports torch, which other searches do not need.
    from fusionray.training.dry_run.dry_run import build_dry_recipe

    recipe, _ = build_dry_recipe(train)
    found: dict[str, object] = {name: settings.kind for name, settings in recipe.optimizers.items()}
    for kind in (recipe.networks, recipe.frozen, recipe.adaptive):
        for name, module in kind.items():
            found |= {f"{name}.{key}": value.shape for key, value in module.state_dict().items()}
    return found
