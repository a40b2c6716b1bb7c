"""What a film is made of: sources with consent, targets that the policy permits, people, URIs; and the report of it."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import (
    ConsentRefused,
    FusionRayError,
    ImageRejected,
    JobNotFinished,
    TargetRefused,
    UnknownJob,
    VideoNotWritten,
)
from fusionray.safety.consent import ConsentConfig
from fusionray.safety.target_policy import TargetPolicyConfig
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import ServeConfig
from fusionray.serving.config_sections.videos import VideoConfig
from fusionray.serving.jobs.films import MadeFilm
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.pipeline.picture_codec import name_picture
from fusionray.serving.schema import Problem
from fusionray.serving.videos.audit import FilmRequest
from fusionray.serving.videos.fusion_film import FusionFilmMaker
from fusionray.serving.videos.results import find_film_file
from fusionray.serving.videos.task import FilmAnswer, describe_refusal, make_film
from fusionray.video.files.reader import VideoReader
from tests.serving.videos.film_jobs import SOURCE
from tests.serving.videos.orders import OWNER, create, open_store, order, write_config
from tests.support.pictures import draw_person
from tests.support.serving import SEGMENT_SECONDS, encode
from tests.support.target_classifier import IN_RANGE, write_classifier
from tests.video.films import film

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")


def make(config: ServeConfig, folder: JobFolder) -> MadeFilm:
    """Make the film of a job, in this process."""
    return FusionFilmMaker(order(folder, config), config, 1, threading.Event()).make()


def test_a_film_that_is_named_by_a_uri_is_copied_once(tmp_path: Path, talk: Path) -> None:
    config = write_config(tmp_path)
    (tmp_path / "talk").write_bytes(talk.read_bytes())
    store = open_store(config)
    folder = create(store, talk, (tmp_path / "talk").as_uri(), faces="all", mark=True)
    made = make(config, folder)
    assert folder.film is not None
    assert made.inputs_sha256["target"] == hashlib.sha256(talk.read_bytes()).hexdigest()
    assert made.output_sha256 == hashlib.sha256((folder.film.path / made.file).read_bytes()).hexdigest()
    assert made.inputs_sha256["source"] == hashlib.sha256(SOURCE).hexdigest()
    assert (made.num_frames, made.media_type) == (40, "video/mp4")
    assert find_film_file(store, folder.record.job, OWNER, "report.html").stat().st_size > 1000
    with pytest.raises(UnknownJob):
        find_film_file(store, folder.record.job, "bob", "report.html")
    with pytest.raises(JobNotFinished, match="not there"):
        find_film_file(store, folder.record.job, OWNER, "missing")
    # A second task finds it, whatever has become of its inputs.
    (tmp_path / "talk").unlink()
    assert make_film(order(folder, config), config, 1.0) == FilmAnswer(made)


def test_a_film_of_quicktime_stays_one(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    path = Path(film(tmp_path / "talk.mov", num_frames=12))
    store = open_store(config)
    folder = create(store, path)
    made = make(config, folder)
    assert folder.film is not None
    assert (made.file, made.media_type, made.extension) == ("fused.mov", "video/quicktime", "mov")
    assert VideoReader(folder.film.path / made.file).description.num_frames == 12


REFUSED: dict[str, dict[str, Any]] = {
    "consent_missing": {"consent": ConsentConfig(policy="token", file="secret")},
    "source_not_permitted": {"consent": ConsentConfig(policy="allow-list", file="list")},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_the_consent_policy_is_asked_for_the_source(tmp_path: Path, talk: Path, reason: str) -> None:
    consent = REFUSED[reason]["consent"]
    (tmp_path / "secret").write_text("a-secret-that-is-long-enough-for-anybody-to-use\n")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "list").write_text("")
    config = write_config(tmp_path, consent=consent.model_copy(update={"file": str(tmp_path / consent.file)}))
    folder = create(open_store(config), talk)
    with pytest.raises(ConsentRefused) as refused:
        make(config, folder)
    assert refused.value.reason == reason
    assert describe_refusal(refused.value, "target").status == 403
    assert folder.film is not None
    assert list(folder.film.path.glob(".*.work")) == []


@pytest.mark.parametrize("on", ["picture", "face"])
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_the_target_policy_is_asked_about_the_frames(tmp_path: Path, talk: Path, on: Any, seconds: float) -> None:
    model = str(write_classifier(tmp_path / "policy.onnx"))
    videos = VideoConfig(cpus=1, segment_seconds=SEGMENT_SECONDS, policy_seconds=seconds)

    def with_least(least: float) -> ServeConfig:
        policy = TargetPolicyConfig(model=model, on=on, refuse={"red": least}, **IN_RANGE)
        return write_config(tmp_path, target_policy=policy).model_copy(update={"videos": videos})

    store = open_store(with_least(0.01))
    folder = create(store, talk)
    with pytest.raises(TargetRefused) as refused:
        make(with_least(0.01), folder)
    assert describe_refusal(refused.value, "target").rule == "red"
    assert folder.film is not None
    # Nothing was fused.
    assert list(folder.film.path.glob(".*.work/segment-*")) == []
    assert make(with_least(0.99), folder).num_frames == 40


def test_nobody_is_similar_to_the_reference(tmp_path: Path, talk: Path) -> None:
    config = write_config(tmp_path)
    chosen = create(open_store(config), talk, reference=encode(draw_person(2), "PNG"), faces="reference")
    with pytest.raises(ImageRejected, match="in the video nobody has a similarity of 1 with the reference") as refused:
        make(config, chosen)
    assert refused.value.reason == "no_such_face"


@pytest.mark.parametrize(
    ("error", "status", "reason", "detail"),
    [
        (
            VideoNotWritten("mp4 cannot hold stream 2 of /a/b/target (subtitle, ass): leave out subtitle streams"),
            422,
            "not_written",
            "target film: mp4 cannot hold stream 2 of target (subtitle, ass): leave out subtitle streams",
        ),
        (ImageRejected("no_face", "/a/b/target: no face"), 422, "no_face", "target: no face"),
        (ImageRejected("uri_missing", "source picture: no file"), 422, "uri_missing", "source picture: no file"),
    ],
)
def test_refusals_are_problems_without_paths(error: FusionRayError, status: int, reason: str, detail: str) -> None:
    problem = describe_refusal(error, "target")
    assert (problem.status, problem.reason, problem.detail) == (status, reason, detail)


def test_a_line_of_the_audit_log_has_the_hashes_of_a_film() -> None:
    made = MadeFilm("fused.mp4", FACE_FUSION, "tiny", "5e", 3, 4, {"source": "aa", "target": "bb"}, "cc", "dd")
    request = FilmRequest(Caller("ann", request="job-1"), time.time() - 60)
    assert 59 < time.perf_counter() - request.asked_at < 120
    common = {"request": "job-1", "status": 200, "reason": "", "duration_ms": 1.0, "model": "default", "bundle": ""}
    entry = request.write_entry(made, {**common, "who": "ann", "output_sha256": None})
    assert (entry.source_sha256, entry.target_sha256, entry.output_sha256) == ("aa", "bb", "cc")
    assert (entry.num_faces, entry.bundle) == (3, "5e")
    assert request.write_entry(Problem(422, "no_face", "", ""), common).output_sha256 is None


@pytest.mark.parametrize("said", ["its pixels are damaged", "source picture: its pixels are damaged"])
def test_a_picture_beside_the_film_is_refused_by_its_own_name(said: str) -> None:
    with pytest.raises(ImageRejected) as caught, name_picture("source"):
        raise ImageRejected("damaged", said)
    problem = describe_refusal(caught.value, "target")
    assert (problem.picture, problem.detail) == ("source", "source picture: its pixels are damaged")
