"""Jobs whose target is a film, over HTTP: the real service, and a task of its cluster."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from fusionray.cli import main
from fusionray.client import FusionClient
from fusionray.errors import InputMissing
from fusionray.faces.image_files.decode import decode_image
from fusionray.safety.verify import verify
from fusionray.video.files.reader import VideoReader
from tests.serving.http.test_job_routes import Receiver, read_events
from tests.serving.videos.conftest import NUM_FRAMES
from tests.serving.videos.film_jobs import (
    END_SECONDS,
    SOURCE,
    job_folder,
    look,
    reason_of,
    start,
    start_one,
    wait_for_end,
    wait_for_stage,
)
from tests.serving.videos.orders import find_tasks
from tests.support.serving import SEGMENT_SECONDS, WEBHOOK_HOST, OpenService
from tests.support.videos import list_kinds, read_packets
from tests.support.waiting import wait_for
from tests.video.films import HEIGHT, WIDTH, film
from tests.video.test_resume import film_hash

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")


def fetch(client: httpx.Client, job: str, what: str = "result") -> httpx.Response:
    answer = client.get(f"/v1/jobs/{job}/{what}")
    assert answer.status_code == 200, answer.text
    return answer


def read_frames(path: Path) -> list[np.ndarray]:
    return [frame.to_ndarray(format="rgb24") for frame in VideoReader(path).read_frames()]


@pytest.mark.slow(seconds=40)
def test_a_film_is_that_of_the_command(
    client: httpx.Client, open_service: OpenService, talk: Path, tmp_path: Path
) -> None:
    job = start_one(client, talk.read_bytes())
    ended = wait_for_end(client, job)
    assert (ended["status"], ended["total"], ended["done"], ended["failed"]) == ("done", 1, 1, 0), ended
    assert (ended["video"]["stage"], ended["video"]["frames_total"]) == ("made", NUM_FRAMES)
    answer, result = fetch(client, job), tmp_path / "result.mp4"
    assert answer.headers["content-type"] == "video/mp4"
    assert f"{job}.mp4" in answer.headers["content-disposition"]
    result.write_bytes(answer.content)
    (tmp_path / "source.png").write_bytes(SOURCE)
    command = ["fuse-video", str(tmp_path / "source.png"), str(talk), str(tmp_path / "made.mp4")]
    bundle = ["--bundle", str(open_service.folder / "bundle"), "--segment-seconds", str(SEGMENT_SECONDS)]
    assert main([*command, *bundle]) == 0
    # A signature is another each time; before it, the films are the same byte for byte.
    assert film_hash(tmp_path / "made.mp4") in fetch(client, job, "report").text
    made, talked = read_frames(tmp_path / "made.mp4"), read_frames(talk)
    assert np.array_equal(read_frames(result), made)
    assert not np.array_equal(made[5], talked[5])
    assert read_packets(result, "audio") == read_packets(talk, "audio")
    assert verify(result.read_bytes()).ai_made
    # Parts of the film, as players ask for them.
    part = client.get(f"/v1/jobs/{job}/items/1", headers={"Range": "bytes=4-11"})
    assert (part.status_code, part.content) == (206, answer.content[4:12])
    figures = fetch(client, job, "figures").json()["figures"]
    assert (figures["frames"]["value"], figures["segments"]["value"]) == (NUM_FRAMES, 5)
    assert decode_image(fetch(client, job, "preview").content).shape == (HEIGHT, WIDTH, 3)
    assert verify(fetch(client, job, "preview").content).ai_made
    left = {path.name for path in job_folder(open_service.folder, job).glob("film-*/*")}
    assert left <= {"fused.mp4", "preview.png", "report.html", "figures.json", "made.json", "progress.json", "order"}
    items = client.get(f"/v1/jobs/{job}/items").json()["items"]
    assert [(item["index"], item["status"], item["model"]) for item in items] == [(1, "done", "tiny")]


def test_events_tell_how_far_the_film_is(client: httpx.Client, talk: Path) -> None:
    with Receiver() as receiver:
        job = start_one(client, talk.read_bytes(), webhook=f"http://{WEBHOOK_HOST}/hook", mark="true", faces="all")
        # Before the film is made there is nothing to fetch.
        for what in ("result", "report", "figures", "items/1"):
            assert reason_of(client.get(f"/v1/jobs/{job}/{what}")) == (409, "not_finished")
        with client.stream("GET", f"/v1/jobs/{job}/events", timeout=END_SECONDS) as stream:
            events = list(read_events(stream.iter_lines()))
        wait_for(lambda: look(client, job)["webhook"]["state"] != "waiting")
    name, last = events[-1]
    assert (name, last["status"]) == ("end", "done"), last
    stages = ["waiting", "reading", "finding", "fusing", "joining", "made"]
    seen = [stages.index(data["video"]["stage"]) for _, data in events]
    assert seen == sorted(seen)
    for _, data in events:
        assert data["video"]["frames_done"] <= (data["video"]["frames_total"] or 0)
    document = json.loads(receiver.messages[-1][1])
    assert (document["type"], document["data"]["video"]) == ("job.done", last["video"])


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("stage", ["finding", "fusing"])
@pytest.mark.parametrize("remove", [False, True])
def test_a_film_is_cancelled_or_removed_in_the_middle(
    client: httpx.Client, open_service: OpenService, long_talk: Path, stage: str, remove: bool
) -> None:
    job = start_one(client, long_talk.read_bytes())
    wait_for_stage(client, job, stage)
    assert find_tasks()
    if remove:
        assert client.delete(f"/v1/jobs/{job}").status_code == 204
    else:
        for _ in range(2):
            assert client.post(f"/v1/jobs/{job}/cancel").json()["status"] == "cancelled"
    wait_for(lambda: not find_tasks(), END_SECONDS)
    if remove:
        assert reason_of(client.get(f"/v1/jobs/{job}/preview")) == (404, "unknown_job")
        assert not job_folder(open_service.folder, job).exists()
        assert list((open_service.folder / "runs" / "jobs" / "trash").iterdir()) == []
    else:
        assert reason_of(client.get(f"/v1/jobs/{job}/result")) == (409, "not_finished")
        assert look(client, job)["status"] == "cancelled"
        assert list(job_folder(open_service.folder, job).glob("film-*/*.mp4")) == []
        assert client.delete(f"/v1/jobs/{job}").status_code == 204


def test_the_client_sends_a_film_and_fetches_what_is_made(
    open_service: OpenService, talk: Path, tmp_path: Path
) -> None:
    with FusionClient(open_service.url, timeout=200) as asked:
        job = asked.create_job(SOURCE, video=talk, leave_out=["audio"], steady_colours=True).job
        *_, last = asked.follow_job(job)
        assert last.video is not None
        assert (last.status, last.video.stage, last.video.frames_total) == ("done", "made", NUM_FRAMES)
        asked.fetch_result(job, tmp_path / "fused.mp4")
        assert list_kinds(tmp_path / "fused.mp4") == []
        assert asked.fetch_figures(job)["figures"]["frames"]["value"] == NUM_FRAMES
        assert decode_image(asked.fetch_preview(job)).shape == (HEIGHT, WIDTH, 3)
        assert b"</html>" in asked.fetch_report(job)
        asked.remove_job(job)
        with pytest.raises(InputMissing, match="name the file of a film"):
            asked.create_job(SOURCE, video=tmp_path / "missing.mp4")


def test_the_same_request_gets_the_same_job(client: httpx.Client, talk: Path, tmp_path: Path) -> None:
    key = {"Idempotency-Key": '"a film"'}
    first, second = (start(client, talk.read_bytes(), key) for _ in range(2))
    assert (first.status_code, first.json()["job"]) == (202, second.json()["job"])
    other = Path(film(tmp_path / "other.mp4", seeds=(5,)))
    assert reason_of(start(client, other.read_bytes(), key)) == (422, "idempotency_key_reused")
    assert reason_of(start(client, talk.read_bytes(), key, leave_out="audio")) == (422, "idempotency_key_reused")
    assert [job["job"] for job in client.get("/v1/jobs").json()["jobs"]] == [first.json()["job"]]


@pytest.fixture
def folder(open_service: OpenService) -> Path:
    """The folder from which jobs may read."""
    place = open_service.folder / "in"
    place.mkdir(exist_ok=True)
    return place


def test_a_film_is_read_by_uri_and_the_face_is_a_stored_one(
    client: httpx.Client, folder: Path, talk: Path, tmp_path: Path
) -> None:
    (folder / "talk").write_bytes(talk.read_bytes())
    secret = Path(film(tmp_path / "secret.mp4"))
    (folder / "outside.mp4").symlink_to(secret)
    kept = client.post("/v1/identities", files={"source": SOURCE}).json()["identity"]
    job = start_one(client, None, identity=kept, target_uri=(folder / "talk").as_uri())
    assert look(client, job)["video"] is not None
    assert wait_for_end(client, job)["status"] == "done"
    # A link that leads out of the folder is a file that is not there, as for pictures.
    outside = start_one(client, None, identity=kept, target_uri=(folder / "outside.mp4").as_uri())
    wait_for_end(client, outside)
    (item,) = client.get(f"/v1/jobs/{outside}/items").json()["items"]
    assert item["problem"]["reason"] == "uri_missing"


def test_what_cannot_be_made_is_told_by_the_job(client: httpx.Client, tmp_path: Path) -> None:
    empty = Path(film(tmp_path / "empty.mp4", faces=False))
    job = start_one(client, empty.read_bytes())
    ended = wait_for_end(client, job)
    assert (ended["status"], ended["done"], ended["failed"]) == ("failed", 0, 1)
    assert "no face" in ended["reason"]
    assert "/" not in ended["reason"]
    (item,) = client.get(f"/v1/jobs/{job}/items").json()["items"]
    assert (item["status"], item["problem"]["reason"]) == ("failed", "no_face")
    assert reason_of(client.get(f"/v1/jobs/{job}/items/1")) == (409, "item_failed")
    assert reason_of(client.get(f"/v1/jobs/{job}/report")) == (409, "not_finished")


@pytest.mark.parametrize("what", ["preview", "report", "figures"])
def test_jobs_of_pictures_have_no_film(client: httpx.Client, what: str) -> None:
    job = start_one(client, SOURCE)
    assert look(client, job)["video"] is None
    assert reason_of(client.get(f"/v1/jobs/{job}/{what}")) == (409, "not_finished")
    assert reason_of(client.get(f"/v1/jobs/job_{'0' * 32}/{what}")) == (404, "unknown_job")
