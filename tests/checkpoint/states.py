"""What the tests of checkpoints save, compare and damage; used in children too, so it lies apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusionray.checkpoint.info import INFO_NAME, CheckpointInfo, read_info
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.storage import filesystem as storage


def plain_state(number: int) -> dict[str, Tensor]:
    """Build a state of every kind of plain tensor, whose values follow from a number."""
    generator = torch.Generator().manual_seed(number)
    weight = torch.randn(8, 4, 3, 3, generator=generator)
    return {
        "networks.generator.weight": weight.to(memory_format=torch.channels_last),
        "averages.generator.weight": weight.flip(0),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "transposed": torch.randn(5, 3, generator=generator).double().t(),
        "expanded": torch.randn(1, generator=generator).expand(4),
        "flags": torch.rand(9, generator=generator) > 0.5,
        "empty": torch.zeros(0, 4),
        "counts": torch.arange(number, number + 6),
        "step": torch.tensor(float(number)),
    }


def blank_state() -> dict[str, Tensor]:
    """Build what a plain state is loaded into."""
    return {name: torch.zeros_like(value) for name, value in plain_state(0).items()}


def describe(number: int, **changes: Any) -> CheckpointInfo:
    settings = {
        "config": {"a": {"b": 1}},
        "num_people": 3,
        "data_digest": "d",
        "images_seen": number,
        "seconds": 1.5,
        "metrics": {"loss": 0.5},
    }
    return CheckpointInfo(**{**settings, **changes})


def save_plain(run: Path | str, number: int = 1, *, keep: int = 9, **changes: Any) -> str:
    writer = CheckpointWriter(str(run), keep=keep)
    writer.begin(plain_state(number), describe(number, **changes))
    folder = writer.wait()
    writer.close()
    assert folder is not None
    return folder


def file_of(folder: str, kind: str) -> Path:
    """Give the file of a checkpoint whose name ends so."""
    (found,) = (path for path in Path(folder).iterdir() if path.name.endswith(kind))
    return found


def rewrite(folder: str, **changes: Any) -> None:
    """Change the description, as an attacker may who can write the folder."""
    path = Path(folder) / INFO_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def vouch(folder: str, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    files = {**read_info(folder).files, path.name: len(data)}
    rewrite(folder, files=files, **({"table_sha256": storage.sha256_hex(data)} if "tensors" in path.name else {}))


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name
