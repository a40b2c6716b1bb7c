"""What `serve run serve/config.yaml` starts: the application of `fusionray.serving`, built from the file's `args`."""

from __future__ import annotations

from fusionray.serving.application import build

__all__ = ["build"]
