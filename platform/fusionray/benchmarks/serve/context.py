"""What all parts of the benchmark share: the bundle, the pictures, the request, the right answer, and the logs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fusionray.benchmarks.serve.baseline import PlainFuser
from fusionray.benchmarks.serve.clients import Checker, ServerAnswer
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.inputs import Body, draw_person, write_form
from fusionray.benchmarks.serve.servers import Server
from fusionray.bundle.bundle import Bundle
from fusionray.errors import ServiceFailed
from fusionray.faces.image_files.decode import decode_image

LOGS = "logs"
SOURCE_SEED, TARGET_SEED = 0, 5


@dataclass(frozen=True)
class ServeBenchContext:
    """Shared state of one running benchmark."""

    config: ServeBenchConfig
    bundle: Bundle

    @property
    def logs(self) -> Path:
        """Return the folder of the servers' logs."""
        return Path(self.config.output) / LOGS

    @cached_property
    def pictures(self) -> dict[str, bytes]:
        """Draw the source and the target person."""
        pixels = self.config.picture_pixels
        return {"source": draw_person(SOURCE_SEED, pixels), "target": draw_person(TARGET_SEED, pixels)}

    @cached_property
    def form(self) -> Body:
        """Write the request as a form."""
        return write_form(self.pictures, {"format": self.config.picture_format})

    @cached_property
    def plain(self) -> PlainFuser:
        """Load the models into this process."""
        return PlainFuser(self.bundle, self.pictures["source"], self.pictures["target"], self.config.picture_format)

    @cached_property
    def checker(self) -> Checker:
        """Compute the right answer in this process."""
        return Checker(decode_image(self.plain.answer()))

    def check(self, server: Server, *, other_code: bool = False) -> ServerAnswer:
        """Send one request to a server; `other_code`: its face code is not that of this process.

        Raises: ServiceFailed if the answer is not the right picture.
        """
        client = server.client()
        answer = client.ask()
        client.close()
        target = self.pictures["target"]
        if not (self.checker.is_near(answer, target) if other_code else self.checker.is_right(answer)):
            raise ServiceFailed(f"{server.name} gave a wrong picture (status {answer.status}); see {server.log}")
        return answer
