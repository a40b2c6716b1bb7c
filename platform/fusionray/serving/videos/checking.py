"""Look at a film before it is accepted: whether it is one, whole, and within the limits.

FFmpeg reads it in a process of its own, a Ray task without CPUs: a film that ends or blocks a process must not take a
replica, and the requests inside it, along.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from fusionray.errors import FusionRayError, Overloaded, VideoRejected
from fusionray.serving.config_sections.limits import LimitConfig
from fusionray.serving.schema import Problem
from fusionray.serving.videos.progress import too_long
from fusionray.storage.filesystem import open_below
from fusionray.video.files.opening import VideoLimits
from fusionray.video.files.reader import VideoReader

# A film without a count of frames in its header is read as a whole, at hundreds of MB/s.
LOOK_SECONDS = 60.0
# How long the look may take to start.
START_SECONDS = 60.0
# Why a film is refused -> status and title.
VIDEO_PROBLEMS: dict[str, tuple[int, str]] = {
    "not_a_video": (415, "Not a film"),
    "no_video": (415, "Not a film"),
    "unknown_codec": (415, "Codec not read"),
    "too_large": (413, "Film too large"),
    "too_long": (413, "Film too long"),
    "truncated": (422, "Film cut off"),
    "no_frames": (422, "Damaged film"),
    "damaged": (422, "Damaged film"),
}


def count_frames(path: Path, limits: LimitConfig) -> int:
    """Check that a film is within the limits; return the number of its frames, as its header has it.

    Raises: VideoRejected.
    """
    reader = VideoReader(path, VideoLimits(max_pixels=limits.max_video_pixels))
    num_frames = reader.description.num_frames or sum(1 for _ in reader.list_packets())
    if num_frames > limits.max_video_frames:
        raise too_long(num_frames, limits.max_video_frames)
    return num_frames


def look_at(location: str, folder: str | None, limits: LimitConfig) -> int | FusionRayError | OSError:
    """Count the frames of a film, a local path; below an allowed `folder`, the URI of a local file. The Ray task.

    An error is returned: Ray would wrap one that is raised.
    """
    guard = threading.Timer(LOOK_SECONDS, os._exit, [1])
    guard.daemon = True
    guard.start()
    try:
        if folder is None:
            return count_frames(Path(location), limits)
        with open_below(location, folder) as (file, _):
            # What is open cannot be exchanged by a link that leads elsewhere.
            return count_frames(Path(f"/proc/self/fd/{file.fileno()}"), limits)
    except (FusionRayError, OSError) as error:
        return error
    finally:
        guard.cancel()


def check_film(location: str, folder: str | None, limits: LimitConfig) -> int:
    """Let a process of the cluster look at a film, see `look_at`; return the number of its frames.

    Raises: VideoRejected; OSError; Overloaded if no process of the cluster answers.
    """
    look = ray.remote(num_cpus=0, max_retries=0)(look_at).remote(location, folder, limits)
    try:
        answer: int | Exception = ray.get(look, timeout=START_SECONDS + LOOK_SECONDS)
    except GetTimeoutError:
        raise Overloaded("no process of the cluster looked at the film") from None
    except RayTaskError:
        raise
    except RayError:
        raise VideoRejected(
            "damaged", f"the process that looked at it ended, or took more than {LOOK_SECONDS:g} s; convert it"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def describe_film_fault(error: VideoRejected, role: str) -> Problem:
    """Turn the fault of a film into a problem; `role`: what its task calls it.

    Errors begin with the path of the film, which clients do not know.
    """
    # FFmpeg forgets a size that is over the limit.
    reason = "too_large" if error.reason == "no_size" else error.reason
    status, title = VIDEO_PROBLEMS.get(reason, (422, "Film refused"))
    text = str(error)
    detail = text.partition(": ")[2] if text.startswith("/") else text
    return Problem(status, reason, title, f"{role} film: {detail}", picture=role)
