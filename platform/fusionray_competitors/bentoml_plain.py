"""BentoML without batches: the threads of one service do the whole work, which saves the hop to a second service.

Source: docs.bentoml.com, "Parallelize requests handling".
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import bentoml
from bentoml.validators import ContentType

from fusionray_competitors.config import read_config
from fusionray_competitors.pipeline import Pipeline

SETTINGS = read_config()


@bentoml.service(workers=SETTINGS.workers, threads=SETTINGS.threads, traffic={"timeout": 300})
class PlainPipeline:
    """The whole work of a request."""

    def __init__(self) -> None:
        self.pipeline = Pipeline(SETTINGS)

    @bentoml.api(route="/v1/fuse")  # type: ignore[untyped-decorator]
    def fuse(self, source: Path, target: Path, context: bentoml.Context) -> Annotated[bytes, ContentType("image/jpeg")]:
        """Make one picture."""
        context.response.headers["content-type"] = self.pipeline.media_type
        return self.pipeline.answer(source.read_bytes(), target.read_bytes())
