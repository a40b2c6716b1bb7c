"""What the bench tells a competitor. Servers start their workers by import, so that it travels in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from fusionray.safety.provenance import PictureFormat

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
        """Write as the environment carries it."""
        return json.dumps(asdict(self))


def read_config() -> CompetitorConfig:
    """Read what the bench told this competitor."""
    return CompetitorConfig(**json.loads(os.environ[VARIABLE]))
