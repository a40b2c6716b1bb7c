"""Prepare: pictures of a folder, an archive or the synthetic world -> aligned crops in shards, on Ray Data."""

from __future__ import annotations

from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.run import prepare

__all__ = ["PrepareConfig", "prepare"]
