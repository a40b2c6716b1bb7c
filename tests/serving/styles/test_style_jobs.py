"""Jobs of style transfer: pictures and films, behind the service that has two families side by side."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest

from fusionray.bundle.bundle import read_bundle
from fusionray.client import FusionClient
from fusionray.errors import ServiceRefused
from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import ImageLimits, decode_image, encode_image
from fusionray.runtime.tasks import open_runner
from fusionray.safety.verify import verify
from fusionray.video.files.reader import VideoReader
from tests.support.videos import read_packets
from tests.video.films import film

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")]
ANY_SIZE = ImageLimits(min_side=1)
END_SECONDS = 250.0


@pytest.mark.slow(seconds=20)
def test_contents_of_a_job_are_painted_as_one_by_one(
    client: FusionClient, style_folder: Path, pictures: dict[str, Image], tmp_path: Path
) -> None:
    runner = open_runner(read_bundle(str(style_folder / "bundle")))
    contents = [pictures["content"], np.ascontiguousarray(pictures["content"][::-1])]
    styles = [encode_image(pictures[name], "png") for name in ("style", "style_2")]
    sent = [encode_image(content, "png") for content in contents]
    started = client.create_style_job(
        styles, [*sent, b"no picture"], weights=[0.2, 0.8], strength=0.7, idempotency_key="paint"
    )
    again = client.create_style_job(
        styles, [*sent, b"no picture"], weights=[0.2, 0.8], strength=0.7, idempotency_key="paint"
    )
    assert again.job == started.job
    with pytest.raises(ServiceRefused, match="another request"):
        client.create_style_job(styles[::-1], [*sent, b"no picture"], weights=[0.2, 0.8], idempotency_key="paint")
    ended = client.wait_for_job(started.job, END_SECONDS)
    assert (ended.status, ended.total, ended.done, ended.failed) == ("done", 3, 2, 1)
    client.fetch_result(started.job, tmp_path / "made.zip")
    with zipfile.ZipFile(tmp_path / "made.zip") as archive:
        entries = json.loads(archive.read("results.json"))
        for entry, content in zip(entries, contents, strict=False):
            named = {"content": content, "style": pictures["style"], "style_2": pictures["style_2"]}
            wanted = runner.run(named, weights=[0.2, 0.8], strength=0.7)  # type: ignore[call-arg]
            made = archive.read(entry["file"])
            # Beside another one, a picture is painted by fewer threads, which may round another way.
            assert np.abs(decode_image(made, ANY_SIZE).astype(int) - wanted).max() <= 1
            assert verify(made).ai_made
    assert entries[2]["problem"]["picture"] == "content"
    assert [item.boxes for item in client.list_items(started.job)] == [None, None, None]
    client.remove_job(started.job)


@pytest.mark.slow(seconds=40)
def test_a_film_is_painted_by_a_job(client: FusionClient, pictures: dict[str, Image], tmp_path: Path) -> None:
    # Long enough that its stages are seen from outside.
    content = film(tmp_path / "walk.mp4", num_frames=80, key_frames=8)
    style = encode_image(pictures["style"], "png")
    started = client.create_style_job(style, video=content, strength=0.8, mark=True)
    stages = {state.video.stage for state in client.follow_job(started.job) if state.video is not None}
    ended = client.wait_for_job(started.job, END_SECONDS)
    assert (ended.status, ended.done) == ("done", 1)
    assert stages & {"measuring", "painting"}
    client.fetch_result(started.job, tmp_path / "made.mp4")
    made = VideoReader(tmp_path / "made.mp4")
    assert sum(1 for _ in made.read_frames()) == 80
    assert read_packets(tmp_path / "made.mp4", "audio") == read_packets(Path(content), "audio")
    assert verify((tmp_path / "made.mp4").read_bytes()).ai_made
    figures = client.fetch_figures(started.job)["figures"]
    assert figures["frames"]["value"] == 80
    assert "painted in 1 style(s)" in client.fetch_report(started.job).decode()
    client.remove_job(started.job)


@pytest.mark.slow(seconds=10)
def test_what_a_job_of_styles_cannot_do_is_told_at_once(
    client: FusionClient, pictures: dict[str, Image], tmp_path: Path
) -> None:
    content = Path(film(tmp_path / "walk.mp4", num_frames=4)).read_bytes()
    style = encode_image(pictures["style"], "png")
    parts = {"style": ("style", ("a", style)), "film": ("content", ("a", content)), "none": ("content", ("a", b"x"))}

    def ask(*names: str, **fields: str) -> tuple[int, str]:
        with httpx.Client(base_url=str(client.connection.http.base_url)) as plain:
            answer = plain.post("/v1/stylize/jobs", files=[parts[name] for name in names], data=fields)
        return answer.status_code, answer.json()["detail"]

    for names, fields, status, words in (
        (("style",), {}, 422, "content: send one or more of `content`"),
        (("none",), {}, 422, "style"),
        (("style", "film", "none"), {}, 422, "a job has one film, or pictures"),
        (("style", "film"), {"format": "png"}, 422, "only pictures have it"),
        (("style", "none"), {"leave_out": "audio"}, 422, "the content is no film"),
        (("style", "none"), {"weights": "1,2"}, 422, "weights"),
        (("style", "none"), {"model": "faces"}, 422, "faces"),
        (("style", "none"), {"model": "gone"}, 404, "gone"),
        (("style",), {"content_uri": "file:///etc/passwd"}, 403, "not below a folder"),
    ):
        found, detail = ask(*names, **fields)
        assert found == status, (names, fields, detail)
        assert words in detail
