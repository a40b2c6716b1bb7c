"""The partition of a step's images: nearly equal local batches, one for each rank, each cut into micro-batches.

After an out-of-memory error the micro-batches are halved and the interrupted computation is repeated: no step is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fusionray.errors import TrainingFailed
from fusionray.training.config import EngineConfig
from fusionray.training.engine.batches.microbatching import recut
from fusionray.training.engine.memory import even_chunks, is_out_of_memory
from fusionray.training.engine.running_statistics import RunningStatistics

ResultT = TypeVar("ResultT")


class BatchPartition:
    """Own the batch sizes of one rank, in images; 0 until the batch-size search has set them (`auto`)."""

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
        """Partition as the settings say, down to `fewest` images at once.

        `statistics`: the running statistics that are restored after an out-of-memory error.
        """
        self.config = config
        self.statistics = statistics
        self.device = device
        self.rank = rank
        self.num_ranks = num_ranks
        self.fewest = fewest
        # Messages for the user.
        self.notes: list[str] = []
        self.global_batch = self.batch_size = 0
        if isinstance(config.global_batch, int):
            self.set_global_batch(config.global_batch)

    @property
    def local_batch_images(self) -> int:
        """Largest local batch of this rank; one image less in some steps if the global batch is not divisible."""
        return -(-self.global_batch // self.num_ranks)

    def set_global_batch(self, images: int) -> None:
        """Fix the images of a step over all ranks.

        Raises: ValueError if there are too few images for the ranks.
        """
        if images < self.num_ranks * self.fewest:
            raise ValueError(
                f"engine.global_batch={images} is less than {self.fewest} image(s) for each of {self.num_ranks} workers"
            )
        self.global_batch = images
        wanted = self.config.batch_size
        self.set_batch_size(wanted if isinstance(wanted, int) else self.local_batch_images)

    def set_batch_size(self, images: int) -> None:
        """Fix the images that this rank computes at once, at most; the local batch is cut into equal parts."""
        self.batch_size = even_chunks(self.local_batch_images, max(images, self.fewest))

    def retry(self, name: str, given: Any, compute: Callable[[Any], ResultT], *, together: bool = False) -> ResultT:
        """Run `compute(given)`; after an out-of-memory error, halve this rank's batch size and run it again.

        Batch sizes may differ between ranks: micro-batches are weighted by their rows. If `given` is a list of
        micro-batches, it is cut again. `together`: the computation exchanges data with other ranks, which would wait
        for this one for ever, so it cannot be repeated.

        Raises: TrainingFailed if the fewest images do not fit, or if memory runs out during an exchange.
        """
        while True:
            failure: BaseException
            try:
                return compute(given)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # the frames hold the tensors that fill the memory
            if together and self.num_ranks > 1:
                raise TrainingFailed(
                    f"out of memory in '{name}' on rank {self.rank} while gradients were exchanged; the run continues "
                    f"from its last checkpoint: set engine.batch_size={max(self.fewest, self.batch_size // 2)}, or auto"
                ) from failure
            self.halve(name, failure)
            self.statistics.restore()
            if isinstance(given, list):
                given = recut(given, self.batch_size)

    def halve(self, name: str, failure: BaseException) -> None:
        """Continue with half as many images at once."""
        former = self.batch_size
        if former <= self.fewest:
            raise TrainingFailed(
                f"out of memory in '{name}' with {former} image(s) at a time; set "
                "engine.activation_checkpointing=true, use engine.parallel.strategy=fsdp with more workers, or use a "
                "smaller preset"
            ) from failure
        if self.config.parallel.static_graph and self.num_ranks > 1:
            # Micro-batches need passes without exchange, which the wrapper would count.
            raise TrainingFailed(
                f"out of memory in '{name}' with {former} images at once, and engine.parallel.static_graph=true does "
                f"not support less; set it to false, and engine.batch_size={former // 2}"
            ) from failure
        self.set_batch_size(max(self.fewest, former // 2))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.notes.append(
            f"out of memory in '{name}' with {former} images at once: continuing with {self.batch_size}; the global "
            "batch is unchanged"
        )


def fewest_images(networks: Iterable[nn.Module]) -> int:
    """Return the fewest images per forward pass: 2 with a batch norm, which needs a variance, else 1."""
    modules = (module for network in networks for module in network.modules())
    return 2 if any(isinstance(module, _BatchNorm) for module in modules) else 1
