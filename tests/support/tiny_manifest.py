"""The manifest of a set of shards that a test wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusionray.data.shards import SPLITS, Manifest, ShardInfo, SplitInfo


def build_manifest(shards: Sequence[ShardInfo], size: int, **changes: Any) -> Manifest:
    """Describe shards of photographs of faces; `changes` are other fields."""
    splits = {}
    for split in SPLITS:
        own = [shard for shard in shards if shard.split == split]
        splits[split] = SplitInfo(rows=sum(each.rows for each in own), identities=sum(each.identities for each in own))
    described = {
        "template": "arcface_128",
        "size": size,
        "image_format": "png",
        "seed": 0,
        "input": "tests",
        "fingerprint": "0" * 64,
        "code_version": "test",
        "synthetic": False,
        "num_images": sum(info.rows for info in splits.values()),
        "num_identities": sum(info.identities for info in splits.values()),
        "splits": splits,
        "shards": list(shards),
        "num_dropped": 0,
        "dropped": {},
    }
    return Manifest.model_validate(described | changes)
