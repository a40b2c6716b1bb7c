"""What all parts of the benchmark share: the bundle, the pictures, the bodies, the right answer, and where logs go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fusionray.benchmarks.serve.baseline import PlainFuser
from fusionray.benchmarks.serve.clients import Answer, Checker
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.inputs import Body, draw_person, write_form
from fusionray.benchmarks.serve.servers import Server
from fusionray.bundle.bundle import Bundle
from fusionray.errors import ServiceFailed
from fusionray.faces.decode import decode_image

LOGS = "logs"
SOURCE_SEED, TARGET_SEED = 0, 5


@dataclass(frozen=True)
class ServeBenchContext:
    """What the parts of one running benchmark share."""

    config: ServeBenchConfig
    bundle: Bundle

    @property
    def logs(self) -> Path:
        """Locate what the servers say."""
        return Path(self.config.output) / LOGS

    @cached_property
    def pictures(self) -> dict[str, bytes]:
        """Draw who is carried over, and who receives."""
        pixels = self.config.picture_pixels
        return {"source": draw_person(SOURCE_SEED, pixels), "target": draw_person(TARGET_SEED, pixels)}

    @cached_property
    def form(self) -> Body:
        """Write the request as a form."""
        return write_form(self.pictures, {"format": self.config.picture_format})

    @cached_property
    def plain(self) -> PlainFuser:
        """Hold the models in this process."""
        return PlainFuser(self.bundle, self.pictures["source"], self.pictures["target"], self.config.picture_format)

    @cached_property
    def checker(self) -> Checker:
        """Know the right answer, as this process computes it."""
        return Checker(decode_image(self.plain.answer()))

    def check(self, server: Server) -> Answer:
        """Ask a server once.

        Raises: ServiceFailed if the answer is not the right picture.
        """
        client = server.client()
        answer = client.ask()
        client.close()
        if not self.checker.is_right(answer):
            raise ServiceFailed(f"{server.name} gave a wrong picture (status {answer.status}); see {server.log}")
        return answer
