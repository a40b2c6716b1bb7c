"""LitServe with batching: a short wait for a batch to fill, and several worker processes.

Source: lightning.ai/docs/litserve, "Batching" and "Speed up serving by 200x".
"""

# LitServe compares annotations with classes: `from __future__ import annotations` would make them strings.
from typing import Any

import litserve
from fastapi import Request, Response

from fusionray_competitors.config import read_config
from fusionray_competitors.pipeline import Pipeline, PreparedRequest

BATCH_TIMEOUT_SECONDS = 0.01


class FuseAPI(litserve.LitAPI):  # type: ignore[misc]
    """The work of a request, in LitServe's steps."""

    def setup(self, device: str) -> None:
        """Load the models in a worker process."""
        del device
        self.pipeline = Pipeline(read_config())

    def decode_request(self, request: Request) -> PreparedRequest:
        """Prepare one request; LitServe passes its form."""
        form: Any = request
        return self.pipeline.prepare(form["source"].file.read(), form["target"].file.read())

    def batch(self, inputs: list[PreparedRequest]) -> list[PreparedRequest]:
        """Return the list unchanged; the pipeline stacks its arrays."""
        return inputs

    def predict(self, batch: list[PreparedRequest]) -> list[bytes]:
        """Fuse a batch and finish each of its pictures."""
        return [
            self.pipeline.finish(prepared, fused)
            for prepared, fused in zip(batch, self.pipeline.fuse(batch), strict=True)
        ]

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        """Return the list unchanged."""
        return output

    def encode_response(self, output: bytes) -> Response:
        """Answer with the picture."""
        return Response(output, media_type=self.pipeline.media_type)


if __name__ == "__main__":
    settings = read_config()
    api = FuseAPI(max_batch_size=settings.max_batch, batch_timeout=BATCH_TIMEOUT_SECONDS, api_path="/v1/fuse")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=settings.workers, timeout=300)
    server.run(port=settings.port, host="127.0.0.1", generate_client_file=False, log_level="warning")
