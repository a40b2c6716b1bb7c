"""What a set of shards was prepared for. This module imports nothing: processes that only read rows import no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

# It decides which columns the shards have (data/shards.py).
ShardTask = Literal["faces", "pictures"]
# What rows are grouped by, in the words of messages.
GROUP_NAMES: Mapping[ShardTask, str] = {"faces": "people", "pictures": "pictures"}
