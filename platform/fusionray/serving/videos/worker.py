"""Have the films of jobs made: a replica holds the job, and a task of the cluster does the work."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, wait

import ray

from fusionray.errors import NotDecrypted
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.holder import NOTICE_SECONDS, JobHolder
from fusionray.serving.jobs.items import ItemOutcome
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.replicas import MAX_CPUS, NodeSize, list_nodes
from fusionray.serving.schema import Problem
from fusionray.serving.videos.order import VideoOrder, place_order
from fusionray.serving.videos.task import FilmAnswer, make_film
from fusionray.storage.lease import Lease

logger = logging.getLogger("ray.serve")

TASK_NAME = "make-film"
# How soon a film is tried again whose task failed.
RETRY_SECONDS = 5.0


class VideoWorker(JobHolder):
    """Take jobs of films from a store, and have each made by a task of the cluster, until `drain`.

    `choose` gives the version for the name of a model. `close` is told each end, for the audit log; what it returns
    tells, in the end, whether the end counts. A task that died is started again; attempts count in the film's folder,
    and the task itself refuses the one too many.
    """

    def __init__(
        self,
        store: JobStore,
        config: ServeConfig,
        choose: Callable[[str], ModelVersion | Problem],
        close: Callable[[JobFolder, FilmAnswer], Future[bool]],
    ) -> None:
        super().__init__(
            store,
            films=True,
            parallel_jobs=config.videos.parallel_jobs,
            lease_seconds=config.jobs.lease_seconds,
            poll_seconds=config.jobs.poll_seconds,
        )
        self.config = config
        self.choose = choose
        self.close = close

    def process(self, folder: JobFolder, lease: Lease) -> None:
        """Have the film of a job made, and end the job.

        Raises: OSError; NotDecrypted.
        """
        version = self.choose(folder.record.options["model"])
        if isinstance(version, Problem):
            self.end(folder, FilmAnswer(problem=version))
            return
        order = place_order(folder, version)
        try:
            answer = self.follow(order, lease)
        except BaseException:
            order.withdraw()
            raise
        if answer is None or self.stop.is_set() or not folder.is_open:
            return
        if self.is_closed(folder, answer):
            self.end(folder, answer)
        else:
            self.back_off(folder, RETRY_SECONDS)

    def is_closed(self, folder: JobFolder, answer: FilmAnswer) -> bool:
        """Wait until the end of a film is told; False if it does not count, or not before a shutdown.

        The event loop that writes it down may be waiting for this thread by then.
        """
        closed = self.close(folder, answer)
        while not wait([closed], NOTICE_SECONDS).done:
            if self.stop.is_set():
                return False
        return closed.result()

    def follow(self, order: VideoOrder, lease: Lease) -> FilmAnswer | None:
        """Wait for the task of an order; return None if it has left, died, or must leave.

        Raises: OSError that the task met.
        """
        future = self.submit(order)
        while not wait([future], NOTICE_SECONDS).done:
            if self.stop.is_set() or not lease.is_held or not order.folder.is_open:
                order.withdraw()
                if self.stop.is_set() and order.folder.film is not None:
                    # A shutdown does not count as an attempt.
                    order.folder.film.clear_attempts()
                return None
        error = future.exception()
        if error is None:
            answer = future.result()
            return None if answer == FilmAnswer() else answer
        # What Ray makes of the error of a task has neither its number nor its fields.
        cause = getattr(error, "cause", None)
        if isinstance(cause, OSError | NotDecrypted):
            raise cause from error
        logger.error("job %s: the task of its film failed", order.folder.record.job, exc_info=error)
        self.back_off(order.folder, RETRY_SECONDS)
        return None

    def submit(self, order: VideoOrder) -> Future[FilmAnswer]:
        """Start the task of an order. Ray itself must not repeat it: attempts are counted."""
        cpus = choose_cpus(self.config.videos.cpus, list_nodes())
        # Its process ends with it: models of a film are no use to the next task.
        hardware = {"num_cpus": cpus, "num_gpus": self.config.videos.gpus}
        task = ray.remote(max_retries=0, max_calls=1, **hardware)(make_film).options(name=TASK_NAME)
        future: Future[FilmAnswer] = task.remote(order, self.config, cpus).future()
        return future

    def end(self, folder: JobFolder, answer: FilmAnswer) -> None:
        """End a job with what was made of its film, unless it has ended meanwhile.

        Raises: OSError.
        """
        if answer.made is not None:
            made = answer.made
            folder.write_result(1, ItemOutcome(b"", made.extension, {"model": made.model, "bundle": made.bundle}))
            folder.end("done")
        elif answer.problem is not None:
            folder.write_result(1, ItemOutcome(problem=answer.problem.document()))
            folder.end("failed", answer.problem.detail)


def choose_cpus(wanted: float | None, nodes: list[NodeSize]) -> float:
    """Choose the CPUs of a task: what is wanted, or half of a node's, at most 4; never more than the largest has."""
    largest = max((node.cpus for node in nodes), default=1.0)
    return min(largest, wanted or float(min(MAX_CPUS, max(1, math.floor(largest / 2)))))
