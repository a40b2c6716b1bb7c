"""How the images of a step are divided: shares of the ranks, nearly equal, and parts of a share computed at once.

Where memory runs out the parts are halved and what was interrupted is computed again, so that no step is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fusionray.errors import TrainingFailed
from fusionray.training.config import EngineConfig
from fusionray.training.engine.memory import even_chunks, is_out_of_memory
from fusionray.training.engine.microbatching import recut
from fusionray.training.engine.running_statistics import RunningStatistics

ResultT = TypeVar("ResultT")


class BatchPartition:
    """Own the sizes of one rank, all in images; 0 while they are still to be found (`auto`)."""

    def __init__(
        self,
        config: EngineConfig,
        statistics: RunningStatistics,
        device: torch.device,
        *,
        rank: int,
        num_ranks: int,
        fewest: int,
    ) -> None:
        """Divide as the settings say, down to `fewest` images at once.

        `statistics`: what is taken back where memory runs out.
        """
        self.config = config
        self.statistics = statistics
        self.device = device
        self.rank = rank
        self.num_ranks = num_ranks
        self.fewest = fewest
        # What the user is to hear.
        self.notes: list[str] = []
        self.global_batch = self.batch_size = 0
        if isinstance(config.global_batch, int):
            self.set_global_batch(config.global_batch)

    @property
    def share_images(self) -> int:
        """Most images of a step that this rank computes; one less in some steps where ranks take turns."""
        return -(-self.global_batch // self.num_ranks)

    def set_global_batch(self, images: int) -> None:
        """Fix the images of a step over all ranks.

        Raises: ValueError if they are too few for the ranks.
        """
        if images < self.num_ranks * self.fewest:
            raise ValueError(
                f"engine.global_batch={images} is less than {self.fewest} image(s) for each of {self.num_ranks} workers"
            )
        self.global_batch = images
        wanted = self.config.batch_size
        self.set_batch_size(wanted if isinstance(wanted, int) else self.share_images)

    def set_batch_size(self, images: int) -> None:
        """Fix the images that this rank computes at once; its share is cut into equal parts of at most so many."""
        self.batch_size = even_chunks(self.share_images, images)

    def retry(self, name: str, given: Any, compute: Callable[[Any], ResultT], *, together: bool = False) -> ResultT:
        """Compute something; where memory runs out, halve this rank's batch size and compute it again.

        Ranks may differ in it: parts weigh by their rows. Micro-batches that are `given` are
        cut anew. `together`: the computation exchanges data with other ranks, which wait where this one cannot go on.

        Raises: TrainingFailed if the fewest images do not fit, or memory ran out in mid-exchange.
        """
        while True:
            failure: BaseException
            try:
                return compute(given)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # its frames hold the tensors that filled the memory
            if together and self.num_ranks > 1:
                raise TrainingFailed(
                    f"memory ran out in '{name}' on rank {self.rank} while gradients were exchanged; the run goes on "
                    f"from its last checkpoint: set engine.batch_size={max(self.fewest, self.batch_size // 2)}, or auto"
                ) from failure
            self.halve(name, failure)
            self.statistics.take_back()
            if isinstance(given, list):
                given = recut(given, self.batch_size)

    def halve(self, name: str, failure: BaseException) -> None:
        """Go on with half as many images at once."""
        former = self.batch_size
        if former <= self.fewest:
            raise TrainingFailed(
                f"memory ran out in '{name}' with {former} image(s) at a time; set engine.recompute=true, use "
                "engine.parallel.strategy=fsdp with more workers, or a smaller preset"
            ) from failure
        self.set_batch_size(max(self.fewest, former // 2))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.notes.append(
            f"memory ran out in '{name}' with {former} images at once: going on with {self.batch_size}, the same "
            "global batch"
        )


def fewest_images(networks: Iterable[nn.Module]) -> int:
    """Return the fewest images that networks can be trained with at once: a batch norm finds no variance in one."""
    modules = (module for network in networks for module in network.modules())
    return 2 if any(isinstance(module, _BatchNorm) for module in modules) else 1
