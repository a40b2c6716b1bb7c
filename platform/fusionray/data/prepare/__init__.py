"""The prepare stage: read pictures, crop them, and write shards and a manifest, on Ray Data."""

from __future__ import annotations

from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.run import prepare

__all__ = ["PrepareConfig", "prepare"]
