"""What the tasks of an ingress replica work with."""

from __future__ import annotations

from dataclasses import dataclass

from ray.serve.handle import DeploymentHandle

from fusionray.serving.config import ServeConfig
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.memory_budget import MemoryBudget
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.tasks.job_service import JobService


@dataclass(frozen=True)
class Parts:
    """The parts of a replica that its tasks share.

    `budget`: the memory for decoded pictures. `jobs` is there if a task of `JOB_TASKS` is served. `faces` is the face
    stage if it has a deployment of its own.
    """

    config: ServeConfig
    requests: RequestService
    generators: GeneratorService
    budget: MemoryBudget
    jobs: JobService | None = None
    faces: DeploymentHandle | None = None
