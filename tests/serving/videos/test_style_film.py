"""What a painted film is made of: styles and film with consent, and as the policy for targets permits."""

from __future__ import annotations

import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.data.synthetic.pictures import draw_style
from fusionray.errors import ConsentRefused, FusionRayError, ImageRejected, TargetRefused
from fusionray.faces.image_files.decode import encode_image
from fusionray.safety.consent import ConsentConfig
from fusionray.safety.target_policy import TargetPolicyConfig
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.videos import VideoConfig
from fusionray.serving.jobs.films import MadeFilm
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.videos.style_film import StyleFilmMaker
from fusionray.serving.videos.task import FilmAnswer, describe_refusal, make_film
from tests.serving.videos.orders import OWNER, open_store, order, write_config
from tests.support.serving import SEGMENT_SECONDS
from tests.support.target_classifier import IN_RANGE, write_classifier

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
STYLES = [encode_image(draw_style(0, number, 64), "png") for number in (1, 2)]


def build_config(tmp_path: Path, style_folder: Path, **settings: Any) -> ServeConfig:
    models = (ModelConfig(name="default", bundle=str(style_folder / "bundle")),)
    return write_config(tmp_path, **settings).model_copy(update={"models": models})


def create(store: JobStore, film: Path, styles: list[bytes]) -> JobFolder:
    """Create the job of a film, of which it takes a copy."""
    copy = store.tmp / "upload"
    shutil.copy(film, copy)
    options = {
        "task": STYLE_TRANSFER,
        "picture": {"picture_format": None, "mark": False, "consent": None},
        "painting": {"weights": None, "strength": 1.0},
        "model": "default",
        "leave_out": [],
    }
    new = NewJob(options, None, [copy], film_bytes=film.stat().st_size, styles=styles)
    return store.find(store.create(OWNER, new).status.job, OWNER)


def make(config: ServeConfig, folder: JobFolder) -> MadeFilm:
    return StyleFilmMaker(order(folder, config), config, 1, threading.Event()).make()


def test_the_record_of_a_painted_film_names_all_that_went_in(tmp_path: Path, style_folder: Path, talk: Path) -> None:
    config = build_config(tmp_path, style_folder)
    folder = create(open_store(config), talk, STYLES)
    made = make(config, folder)
    wanted = {"content": talk.read_bytes(), "style": STYLES[0], "style_2": STYLES[1]}
    assert made.inputs_sha256 == {name: hashlib.sha256(data).hexdigest() for name, data in wanted.items()}
    assert (made.file, made.task, made.num_faces, made.num_frames) == ("painted.mp4", STYLE_TRANSFER, None, 40)
    # A second task finds it.
    assert make_film(order(folder, config), config, 1.0) == FilmAnswer(made)


def test_consent_is_asked_for_film_and_styles(tmp_path: Path, style_folder: Path, talk: Path) -> None:
    hashes = [hashlib.sha256(data).hexdigest() for data in (talk.read_bytes(), *STYLES)]
    allowed = tmp_path / "list"

    def attempt(permitted: list[str]) -> MadeFilm:
        allowed.write_text("\n".join(permitted))
        consent = ConsentConfig(policy="allow-list", file=str(allowed))
        config = build_config(tmp_path, style_folder, consent=consent)
        return make(config, create(open_store(config), talk, STYLES))

    for missing in hashes:
        with pytest.raises(ConsentRefused):
            attempt([each for each in hashes if each != missing])
    assert attempt(hashes).num_frames == 40


def test_the_target_policy_is_asked_about_frames_and_styles(tmp_path: Path, style_folder: Path, talk: Path) -> None:
    model = str(write_classifier(tmp_path / "policy.onnx"))

    def with_least(least: float) -> ServeConfig:
        policy = TargetPolicyConfig(model=model, refuse={"red": least}, **IN_RANGE)
        videos = VideoConfig(cpus=1, segment_seconds=SEGMENT_SECONDS, policy_seconds=0.5)
        return build_config(tmp_path, style_folder, target_policy=policy).model_copy(update={"videos": videos})

    folder = create(open_store(with_least(0.01)), talk, STYLES[:1])
    with pytest.raises(TargetRefused):
        make(with_least(0.01), folder)
    assert folder.film is not None
    assert list(folder.film.path.glob(".*.work/segment-*")) == []
    assert make(with_least(0.999), folder).num_frames == 40


def test_a_style_that_is_no_picture_is_named(tmp_path: Path, style_folder: Path, talk: Path) -> None:
    config = build_config(tmp_path, style_folder)
    error: FusionRayError
    with pytest.raises(ImageRejected) as raised:
        make(config, create(open_store(config), talk, [STYLES[0], b"no picture"]))
    error = raised.value
    problem = describe_refusal(error, "content")
    assert (problem.status, problem.picture) == (415, "style_2")
