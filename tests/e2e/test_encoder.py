"""An identity encoder is trained by its own command, and validated on people that it has not seen."""

from __future__ import annotations

from typing import Any

import pytest

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.cli import main
from tests.support.workspace import Workspace

ENCODER: dict[str, Any] = {
    "preset": "identity-small",
    "run": {"name": "encoder"},
    "recipe": {"encoder": {"channels": [8, 16], "blocks": [1, 1]}},
    "data": {"shuffle_buffer_rows": 32, "validation_images": 16},
    "engine": {"global_batch": 16, "schedule": {"warmup_images": 32}},
    "budget": {"images": 160, "checkpoint_every_images": 160, "log_every_images": 80, "validate_every_images": 160},
    "workers": {"num_workers": 1, "threads": 1, "warm_spares": False},
}


@pytest.mark.slow(seconds=35)
def test_encoder_is_validated_on_held_out_people(prepared: Workspace) -> None:
    output = prepared.folder / "trained"
    settings = prepared.settings("encoder", ENCODER)
    assert main(["train", "--config", settings, "--output", str(output), f"data.shards={prepared.shards}"]) == 0
    info = read_info(find_checkpoint(str(output / "encoder")))
    assert info.images_seen == ENCODER["budget"]["images"]
    assert 0 <= info.metrics["verification_accuracy"] <= 1
