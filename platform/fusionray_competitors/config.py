"""Settings of a competitor. Servers start their workers by import, so the environment carries the settings."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from fusionray.faces.image_files.headers.image_header import PictureFormat

VARIABLE = "FUSIONRAY_COMPETITOR"


@dataclass(frozen=True)
class CompetitorConfig:
    """The bundle, the port, processes, threads of a process, requests of a batch, and the format of the answers."""

    bundle: str
    port: int
    workers: int
    threads: int
    max_batch: int
    picture_format: PictureFormat

    def dump(self) -> str:
        """Encode the settings for the environment variable."""
        return json.dumps(asdict(self))


def read_config() -> CompetitorConfig:
    """Read the settings from the environment."""
    return CompetitorConfig(**json.loads(os.environ[VARIABLE]))
