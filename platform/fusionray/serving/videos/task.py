"""The Ray task that makes the film of an order. It leaves when the order is withdrawn; nothing else ends it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2

from fusionray.background import run_in_background
from fusionray.errors import (
    ConsentRefused,
    ImageRejected,
    TargetRefused,
    UnknownIdentity,
    VideoNotWritten,
    VideoRejected,
)
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.films import MadeFilm
from fusionray.serving.pipeline.picture_codec import describe_fault
from fusionray.serving.problems import explain
from fusionray.serving.replicas import use_reserved_gpus
from fusionray.serving.schema import Problem
from fusionray.serving.videos.checking import describe_film_fault
from fusionray.serving.videos.fusion_film import FusionFilmMaker
from fusionray.serving.videos.maker import FilmMaker
from fusionray.serving.videos.order import VideoOrder
from fusionray.serving.videos.progress import Withdrawn
from fusionray.serving.videos.style_film import StyleFilmMaker

logger = logging.getLogger("ray.serve")

# How soon a task notices that it must leave, and how long it may take: a process that hangs ends itself.
LOOK_SECONDS, LEAVE_SECONDS = 0.5, 20.0
MAKERS: dict[str, type[FilmMaker]] = {maker.task: maker for maker in (FusionFilmMaker, StyleFilmMaker)}
# Which of the pictures beside the film an error names.
NAMED_PICTURE = re.compile(r"\b(source|reference|style(?:_\d+)?) picture")
REFUSED = (VideoRejected, VideoNotWritten, ImageRejected, ConsentRefused, TargetRefused, UnknownIdentity)


@dataclass(frozen=True)
class FilmAnswer:
    """What came of an order: a film, or a problem. Neither: the task has left, because the order was withdrawn."""

    made: MadeFilm | None = None
    problem: Problem | None = None


def make_film(order: VideoOrder, config: ServeConfig, cpus: float) -> FilmAnswer:
    """Make the film of an order. An attempt is recorded first, so that the death of this process counts as one.

    Raises: whatever is nobody's fault, such as OSError; the attempt counts.
    """
    threads = max(1, math.floor(cpus))
    cv2.setNumThreads(threads)
    stop = threading.Event()
    film = order.folder.film
    assert film is not None
    maker = MAKERS[order.folder.record.options["task"]]
    try:
        # The job may have ended, or been removed, while this task waited for CPUs.
        if order.is_withdrawn():
            return FilmAnswer()
        # To find a film that is made is no attempt, however often its end could not be written down.
        made = film.read_made()
        if made is None and film.record_attempt() >= config.jobs.max_attempts:
            detail = "the work on this film ended its process, or broke, again and again; see the log of the service"
            return FilmAnswer(problem=Problem(500, "internal", "Internal error", detail))
        if made is None:
            with watch(order, stop):
                config = config.model_copy(update={"runtime": use_reserved_gpus(config.runtime)})
                made = maker(order, config, threads, stop).make()
        return FilmAnswer(made)
    except REFUSED as error:
        return FilmAnswer() if stop.is_set() else FilmAnswer(problem=describe_refusal(error, maker.role))
    except Withdrawn:
        film.clear_attempts()
        return FilmAnswer()
    except Exception:
        # What is removed under the hands of the work raises anything.
        if order.is_withdrawn():
            return FilmAnswer()
        raise


@contextlib.contextmanager
def watch(order: VideoOrder, stop: threading.Event) -> Iterator[None]:
    """Look during a block whether the order is withdrawn, and set `stop` then.

    A block that goes on for `LEAVE_SECONDS` after that hangs, and its process ends: the film may have another order.
    """

    def look(left: threading.Event) -> None:
        while not left.wait(LOOK_SECONDS):
            # The storage may be away for a moment.
            with contextlib.suppress(OSError):
                if order.is_withdrawn():
                    stop.set()
                    if not left.wait(LEAVE_SECONDS):
                        logger.error("job %s: the task of its film does not leave; its process ends", order.folder.path)
                        os._exit(1)
                    return

    with run_in_background(look, "order"):
        yield


def describe_refusal(error: Any, film: str) -> Problem:
    """Turn what a client must change into a problem; `film`: what the task calls the film."""
    if isinstance(error, VideoRejected):
        return describe_film_fault(error, film)
    if isinstance(error, ImageRejected):
        shown = ImageRejected(error.reason, hide_paths(str(error)))
        return describe_fault(shown, found[1] if (found := NAMED_PICTURE.search(str(shown))) else film)
    if isinstance(error, VideoNotWritten):
        return Problem(422, "not_written", "Film not made", f"{film} film: {hide_paths(str(error))}", picture=film)
    return explain(error)


def hide_paths(text: str) -> str:
    """Drop the folders from a text: where the service keeps its files is none of its clients' business."""
    words = [word.rpartition("/")[2] if word.startswith("/") else word for word in text.split(" ")]
    return " ".join(words)
