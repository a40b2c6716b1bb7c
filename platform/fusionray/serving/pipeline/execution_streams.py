"""How many batches of a model are computed at the same time, of which size, and on how many threads each."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.runtime.crop_fuser import MAX_BATCH
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.engines.providers import CPU
from fusionray.serving.config_sections.stages import GeneratorStageConfig

# More streams leave too few threads to a face while some of the streams are idle.
MAX_STREAMS = 4


@dataclass(frozen=True)
class ExecutionStreams:
    """Batches computed in parallel: their number, their size in faces, and `threads` of each (None: the model's).

    `is_shared`: there are fewer while other replicas of the node use its cores.
    """

    count: int
    max_batch: int
    threads: int | None = None
    is_shared: bool = False


def plan_streams(settings: GeneratorStageConfig, report: EngineReport) -> ExecutionStreams:
    """Plan for the hardware: a GPU gains from large batches, a CPU from single faces in parallel.

    Measured with fast-128 on two cores: one face per thread gives 1.2 times the throughput of one face on both.
    """
    if report.provider != CPU:
        return ExecutionStreams(settings.num_streams or 1, settings.max_batch or MAX_BATCH)
    count = settings.num_streams or min(MAX_STREAMS, report.threads)
    threads = max(1, report.threads // count)
    narrow = threads if threads < report.threads else None
    return ExecutionStreams(count, settings.max_batch or 1, narrow, is_shared=settings.num_streams is None)
