"""The import path of `serve run serve/config.yaml`: `build` makes the application from the file's `args`."""

from __future__ import annotations

from fusionray.serving.application import build

__all__ = ["build"]
