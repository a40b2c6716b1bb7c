"""`ray job submit` against a Ray started by hand, with token authentication, as the README shows it.

The head has two CPUs, as `ray start --head` counts them on a two-core machine.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fusionray.data.synthetic.pictures import draw_style
from fusionray.faces.image_files.decode import encode_image
from fusionray.hardware.processes import find_processes
from fusionray.reporting.figures import Figures
from fusionray.safety.verify import verify
from fusionray.tuning.records import SearchRecords, repeated_images
from tests.faults.driver import wait_until
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.tiny_fusion import TINY_SOURCE, save_encoder
from tests.support.tiny_run import NAME, count_images, read_steps
from tests.support.tiny_world import save_fusion, write_world
from tests.support.videos import read_packets
from tests.tuning.tiny_search import write_search
from tests.video.films import film

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
START_SECONDS = 90
JOB_SECONDS = 280
# Two jobs a test, each with its own limit, which says more than a time-out of the test does.
pytestmark = [pytest.mark.starts_ray, pytest.mark.timeout(2 * JOB_SECONDS + START_SECONDS)]

CHECKPOINT_IMAGES, LOG_IMAGES = 32, 16
# Small enough for a test; with an encoder that is there, everything else of jobs/presets/demo.yaml is done.
SMALL = [
    "data.shards=synthetic://people=16,images=4,size=96,seed=5",
    "data.shuffle_buffer_rows=16",
    "data.validation_images=4",
    "recipe.generator.channels=[8,16,24]",
    f"recipe.generator.source={TINY_SOURCE.model_dump_json()}",
    "recipe.discriminator.channels=[8,16]",
    "engine.global_batch=8",
    # More than a test waits for.
    "budget.images=100000",
    f"budget.checkpoint_every_images={CHECKPOINT_IMAGES}",
    f"budget.log_every_images={LOG_IMAGES}",
    "budget.validate_every_images=1000000",
    "workers.warm_spares=false",
    f"run.name={NAME}",
]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head() -> Iterator[dict[str, str]]:
    """A Ray head with ports, folder and token of its own; yields the environment to reach it."""
    with tempfile.TemporaryDirectory(prefix="fr-head-", ignore_cleanup_errors=True) as folder:
        gcs, dashboard, agent, client, metrics = free_ports(5)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Nothing is left to be drained when the tests are through.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        command = [
            str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", f"--port={gcs}",
            f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
            f"--ray-client-server-port={client}", f"--metrics-export-port={metrics}",
            f"--temp-dir={folder}/ray", "--object-store-memory=200000000", "--node-ip-address=127.0.0.1",
        ]  # fmt: skip
        with (Path(folder) / "head.log").open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{dashboard}"
        try:
            wait_for_agent(dashboard, agent, process, Path(folder) / "head.log")
            yield environment
        finally:
            # The blocking command ends the processes that it started; only those.
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def wait_for_agent(dashboard: int, agent: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    for port in (dashboard, agent):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)


def ray_job(head: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "ray"), "job", *arguments],
        cwd=ROOT, env=head, capture_output=True, text=True, timeout=JOB_SECONDS, check=False,
    )  # fmt: skip


def submit(head: dict[str, str], *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    places = ("--working-dir", ".", "--runtime-env", "cluster/runtime-env.yaml")
    return ray_job(head, "submit", *places, *options, "--", *arguments)


def read_job(head: dict[str, str], path: str) -> str:
    """Read what the head says of a job: `ray job status` and `logs` ask the same, but import Ray each time."""
    token = {"Authorization": f"Bearer {head['RAY_AUTH_TOKEN']}"}
    answer = httpx.get(f"{head['RAY_API_SERVER_ADDRESS']}/api/jobs/{path}", headers=token, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.slow(seconds=75)
def test_demo_preset_is_trained_stopped_without_a_process_left_and_goes_on(
    head: dict[str, str], tmp_path: Path
) -> None:
    encoder, output = tmp_path / "encoder", tmp_path / "runs"
    save_encoder(encoder)
    demo = ("python", "jobs/train.py", "--config", "jobs/presets/demo.yaml", "--output", str(output))
    job = (*demo, f"recipe.identity_encoder={encoder}", *SMALL)
    started = submit(head, *job, options=("--no-wait", "--submission-id", "stopped"))
    assert started.returncode == 0, started.stderr
    wait_until("a checkpoint", lambda: count_images(output) > 0, JOB_SECONDS)
    assert (output / "shards" / "manifest.json").is_file()
    assert '"RUNNING"' in read_job(head, "stopped")
    before = count_images(output)
    stopped = ray_job(head, "stop", "stopped")
    assert stopped.returncode == 0, stopped.stderr
    assert '"STOPPED"' in read_job(head, "stopped")
    # A notice comes three seconds before the end; on a busy machine they may not suffice for a checkpoint.
    assert count_images(output) >= before
    assert "2 worker(s) x 4 images a step" in read_job(head, "stopped/logs")

    mark = f"RAY_TMPDIR={head['RAY_TMPDIR']}"
    for title in ("ray::RayTrainWorker", "ray::TrainController", "ray::SplitCoordinator", "jobs/train.py"):
        wait_until(f"the end of {title}", lambda title=title: not find_processes(title, variable=mark), 30)  # type: ignore[misc]
    reached = count_images(output)
    goal = reached + CHECKPOINT_IMAGES
    again = submit(head, *job, f"budget.images={goal}")
    assert again.returncode == 0, again.stdout[-4000:] + again.stderr[-2000:]
    assert count_images(output) == goal
    steps = read_steps(f"sqlite:///{output}/mlflow.db")
    assert steps == list(range(LOG_IMAGES, goal + 1, LOG_IMAGES))


@pytest.mark.slow(seconds=25)
def test_submitted_job_evaluates_a_run(head: dict[str, str], tmp_path: Path) -> None:
    write_world(tmp_path / "shards")
    save_fusion(tmp_path / "fusion")
    save_encoder(tmp_path / "evaluator")
    places = ("--data", str(tmp_path / "shards"), "--output", str(tmp_path / "out"))
    faces = (f"evaluator={tmp_path / 'evaluator'}", "attributes=null", "clips.number=0")
    small = (*(f"face_fusion.{each}" for each in faces), "pairs=8", "bootstrap_rounds=0", "workers.cpus_per_worker=0.5")
    done = submit(head, "python", "jobs/evaluate.py", str(tmp_path / "fusion"), *places, *small)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "ssim_gap_closed" in done.stdout
    figures = Figures.model_validate_json((tmp_path / "out" / "figures.json").read_bytes())
    assert figures.figures["held_out_pairs"].value == 8


@pytest.mark.slow(seconds=40)
def test_submitted_job_fuses_a_video_with_two_workers(head: dict[str, str], tmp_path: Path) -> None:
    bundle = str(write_tiny_bundle(tmp_path / "bundle").folder)
    source, output = tmp_path / "source.png", tmp_path / "fused.mp4"
    source.write_bytes(encode_image(draw_person(9, 160)))
    target = film(tmp_path / "talk.mp4", num_frames=40, key_frames=8)
    options = ("--bundle", bundle, "--segment-seconds", "0.3", "--workers", "2", "--cpus-per-worker", "0.5")
    done = submit(head, "python", "jobs/fuse_video.py", str(source), target, str(output), *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "40 faces in 40 of 40 frames" in done.stdout
    assert verify(output.read_bytes()).ai_made
    assert read_packets(output, "audio") == read_packets(Path(target), "audio")


@pytest.mark.slow(seconds=40)
def test_submitted_job_paints_a_video_with_two_workers(
    head: dict[str, str], style_folder: Path, tmp_path: Path
) -> None:
    style, output = tmp_path / "style.png", tmp_path / "painted.mp4"
    style.write_bytes(encode_image(draw_style(0, 3, 64)))
    content = film(tmp_path / "walk.mp4", num_frames=40, key_frames=8)
    options = ("--bundle", str(style_folder / "bundle"), "--segment-seconds", "0.3")
    workers = ("--workers", "2", "--cpus-per-worker", "0.5")
    done = submit(head, "python", "jobs/stylize.py", content, str(style), str(output), *options, *workers)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "40 frames, painted in 1 style(s)" in done.stdout
    assert verify(output.read_bytes()).ai_made
    assert read_packets(output, "audio") == read_packets(Path(content), "audio")


@pytest.mark.slow(seconds=120)
def test_stopped_search_halts_its_trials_and_the_same_job_goes_on(head: dict[str, str], tmp_path: Path) -> None:
    budget = {"images": 4096, "checkpoint_every_images": 256, "validate_every_images": 2048}
    search = write_search(tmp_path, train={"budget": budget})
    job = ("python", "jobs/tune.py", "--config", str(search))
    assert submit(head, *job, options=("--no-wait", "--submission-id", "search")).returncode == 0
    records = SearchRecords(str(tmp_path / "runs" / "tiny"))
    trials = tmp_path / "runs" / "tiny" / "trials"
    wait_until("a checkpoint of a trial", lambda: any(trials.glob("*/checkpoint-*/info.json")))
    assert ray_job(head, "stop", "search").returncode == 0
    mark = f"RAY_TMPDIR={head['RAY_TMPDIR']}"
    for title in ("ray::RayTrainWorker", "ray::_Inner", "jobs/tune.py"):
        wait_until(f"the end of {title}", lambda title=title: not find_processes(title, variable=mark), 30)  # type: ignore[misc]

    again = submit(head, *job)
    assert again.returncode == 0, again.stdout[-4000:] + again.stderr[-2000:]
    assert [record.status for record in records.trials()] == ["finished", "finished"]
    stopped, *_, last = records.attempts("tiny-000")
    assert last.first_images >= 256
    # Ray gives a stopped job three seconds: a trial that could not save in them goes on from the checkpoint before.
    assert max(repeated_images(records.attempts("tiny-000"))) <= 256 + 16
    assert stopped.run == last.run


@pytest.mark.slow(seconds=20)
def test_submitted_job_prepares_pictures(head: dict[str, str], tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    prepared = submit(head, "python", "jobs/prepare.py", "synthetic://people=6,images=4,size=96,seed=5", str(shards))
    assert prepared.returncode == 0, prepared.stdout[-4000:] + prepared.stderr[-2000:]
    assert (shards / "manifest.json").is_file()


@pytest.mark.slow(seconds=15)
def test_submitted_job_exports_a_bundle(head: dict[str, str], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    save_fusion(tmp_path / "fusion")
    exported = submit(head, "python", "jobs/export.py", str(tmp_path / "fusion"), "--output", str(bundle))
    assert exported.returncode == 0, exported.stdout[-4000:] + exported.stderr[-2000:]
    assert (bundle / "bundle.json").is_file()


@pytest.mark.slow(seconds=25)
def test_job_without_the_token_is_turned_away(head: dict[str, str], tmp_path: Path) -> None:
    stranger = {**head, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    refused = submit(stranger, "python", "jobs/train.py", "--config", "jobs/presets/demo.yaml")
    assert refused.returncode != 0
    assert not list(tmp_path.iterdir())
