"""The served task of style transfer: contents, single or in jobs, painted in the style of other pictures."""

from __future__ import annotations

from collections.abc import Mapping

from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.runtime.style_transfer.stylizer import BYTES_PER_PIXEL, WHOLE_PIXELS, name_pictures
from fusionray.serving.auth.callers import Caller
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.pipeline.memory_budget import count_pixels
from fusionray.serving.pipeline.request_service import PictureRequest
from fusionray.serving.schema import PictureOptions, Problem
from fusionray.serving.tasks.parts import Parts
from fusionray.serving.tasks.pictures import PictureTask


class StyleTransfer(PictureTask):
    """Make pictures with bundles of style transfer. The answer is like the content: its format, its profile."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(STYLE_TRANSFER, ("content", "style"), parts)
        assert parts.jobs is not None
        self.jobs = parts.jobs
        self.jobs.tasks[STYLE_TRANSFER] = self

    def estimate_bytes(self, pictures: Mapping[str, bytes]) -> int:
        """Estimate the memory of a request: its decoded pictures, and the activations of what is painted whole."""
        painted = min(WHOLE_PIXELS, count_pixels(pictures["content"]))
        return super().estimate_bytes(pictures) + BYTES_PER_PIXEL * painted

    async def make_outcome(self, request: PictureRequest) -> ItemOutcome:
        """Make one picture of a job."""
        reply = await self.make(request)
        if isinstance(reply, Problem):
            return ItemOutcome(problem=reply.document())
        return ItemOutcome.of(reply.data, reply.media_type, model=reply.model, bundle=reply.bundle)

    def read_item(self, item: JobItem, caller: Caller) -> PictureRequest:
        """Build the request for one picture of a job, on the calling thread; a URI is read only now.

        Raises: ImageRejected for a URI that cannot be read; OSError.
        """
        pictures = name_pictures(self.jobs.read_target(item, "content"), item.inputs.styles)
        options = PictureOptions(**{**item.options["picture"], "consent": item.inputs.consent})
        return PictureRequest(
            STYLE_TRANSFER, caller, pictures, options, item.options["model"], item.options["painting"]
        )
