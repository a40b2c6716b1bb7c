"""The demo behind `make demo`: from nothing to a fused face over HTTP, on synthetic people only.

Every stage is the function that the command line and `ray job submit` call; this file only strings them together.
"""

from __future__ import annotations

import socket
import sys
import time
import urllib.request
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from fusionray.config import load_config  # noqa: E402
from fusionray.environment import apply_defaults  # noqa: E402
from fusionray.errors import FusionRayError  # noqa: E402

OUTPUT = ROOT / "runs" / "demo"
NUM_PAIRS = 200
PICTURE_SIZE = 256
HTTP_SECONDS = 60.0
# Three seconds.
FILM_SIZE, FILM_FRAMES = 512, 75
# A content and a style that the training has not seen, and their size.
PAINTED_SEED, PAINTED_SIZE = 99, 256
PAINTED_CONTENT, PAINTED_STYLE = 1, 4


def main() -> int:
    """Run all stages; exit 1 with one line if one of them fails."""
    apply_defaults()
    from fusionray.ray_cluster.connection import cluster

    started = time.monotonic()
    try:
        with cluster():
            run_stages(started)
    except (FusionRayError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def run_stages(started: float) -> None:
    """prepare -> identity encoder -> fusion -> export -> evaluate -> film -> style -> serve -> report."""
    from fusionray.training.config import TrainConfig
    from fusionray.training.train import train

    config = load_config(TrainConfig, file=ROOT / "jobs/presets/demo.yaml", overrides=[f"run.output={OUTPUT}"])
    fusion = train(config)
    bundle = export_bundle(fusion, OUTPUT / "bundle", "fusionray-demo")
    evaluated = evaluate_bundle(config, bundle.folder)
    parity = bundle.description.parity
    assert parity is not None, "what was exported here was compared with torch"
    fuse_film(str(bundle.folder))
    painting = paint_picture()
    milliseconds = answer_over_http(str(bundle.folder))
    figures = write_demo_figures(
        evaluated,
        {
            "train_seconds": (fusion.seconds, "s"),
            "train_images": (fusion.images_seen, "images"),
            "images_per_second": (fusion.images_seen / fusion.seconds, "images/s"),
            "parity_difference": (parity.largest_difference, "absolute"),
            "style_train_seconds": (painting.seconds, "s"),
            "http_milliseconds": (milliseconds, "ms"),
            "total_seconds": (time.monotonic() - started, "s"),
        },
    )
    report(OUTPUT, evaluated.report, figures, fusion)
    tell(figures)


def export_bundle(trained: Any, folder: Path, name: str) -> Any:
    """Export what was trained into a folder."""
    from fusionray.export.export import ExportConfig, export

    with stage("export", 1, "bundle") as bar:
        bundle = export(
            ExportConfig(
                checkpoint=trained.checkpoint,
                output=str(folder),
                name=name,
                licence="Apache-2.0",
                tracking_uri=trained.tracking_uri,
                tracking_run=trained.tracking_run,
            )
        )
        bar.update()
    return bundle


def paint_picture() -> Any:
    """Train the second family for a minute, and paint a rendered content in a rendered style; return the training."""
    from fusionray.cli import main as run_verb
    from fusionray.data.synthetic.pictures import draw_contents, draw_style
    from fusionray.faces.image_files.decode import encode_image
    from fusionray.training.config import TrainConfig
    from fusionray.training.train import train

    place = OUTPUT / "style"
    trained = train(
        load_config(TrainConfig, file=ROOT / "jobs/presets/demo-style.yaml", overrides=[f"run.output={place}"])
    )
    bundle = export_bundle(trained, place / "bundle", "fusionray-demo-style")
    drawn = {
        "content": next(iter(draw_contents(PAINTED_SEED, [PAINTED_CONTENT], PAINTED_SIZE))),
        "style": draw_style(PAINTED_SEED, PAINTED_STYLE, PAINTED_SIZE),
    }
    for name, picture in drawn.items():
        (OUTPUT / f"{name}.png").write_bytes(encode_image(picture))
    places = [str(OUTPUT / f"{name}.png") for name in ("content", "style", "stylised")]
    if run_verb(["stylize", *places, "--bundle", str(bundle.folder)]) != 0:
        raise ValueError("the picture could not be painted; see the line above")
    return trained


def evaluate_bundle(config: Any, bundle: Path) -> Any:
    """Evaluate the bundle on the test split, with an independent encoder that is trained first; without attributes."""
    from fusionray.evaluation.config import EvaluateConfig, FaceFusionEvalConfig
    from fusionray.evaluation.evaluate import evaluate

    return evaluate(
        EvaluateConfig(
            model=str(bundle),
            data=str(OUTPUT / "shards"),
            output=str(OUTPUT / "evaluation"),
            pairs=NUM_PAIRS,
            face_fusion=FaceFusionEvalConfig(attributes=None),
            workers=config.workers,
            runs=str(OUTPUT),
        )
    )


def write_demo_figures(evaluated: Any, run: dict[str, tuple[float, str]]) -> Any:
    """Compare the evaluation with the demo's own goals, and write it with the figures of the run itself."""
    from fusionray.evaluation.metric_table import Goal
    from fusionray.reporting.figures import MeasuredFigure, write_figures

    figures = dict(evaluated.figures.figures)
    values = {key: figure.value for key, figure in figures.items()}
    goals = {"nearer_to_source": Goal(at_least=0.9), "ssim_to_truth": Goal(above=("ssim_target",))}
    figures |= {key: goal.check(figures[key], values) for key, goal in goals.items()}
    figures |= {key: MeasuredFigure(value=value, unit=unit) for key, (value, unit) in run.items()}
    return write_figures(OUTPUT, "demo", figures, evaluated.figures.not_measured)


def fuse_film(bundle: str) -> None:
    """Render a film of a person who speaks and turns, with sound, and fuse a picture of another one into it."""
    from fusionray.cli import main as run_verb
    from fusionray.evaluation.rendered_film import RenderedFilm
    from fusionray.faces.image_files.decode import encode_image

    film = RenderedFilm(width=FILM_SIZE, height=FILM_SIZE, num_frames=FILM_FRAMES)
    with stage("render", 1, "film") as bar:
        film.write(OUTPUT / "film.mp4")
        (OUTPUT / "film-source.png").write_bytes(encode_image(film.draw_source()))
        bar.update()
    places = [str(OUTPUT / name) for name in ("film-source.png", "film.mp4", "fused.mp4")]
    if run_verb(["fuse-video", *places, "--bundle", bundle, "--report", str(OUTPUT / "film")]) != 0:
        raise ValueError("the film could not be fused; see the line above")


def stage(title: str, total: int, unit: str) -> Any:
    """Make the progress bar of a stage."""
    from tqdm import tqdm

    return tqdm(total=total, desc=title, unit=unit)


def answer_over_http(bundle: str) -> float:
    """Serve the bundle, send two pictures of people it never saw, keep the answer; return its milliseconds."""
    from ray import serve

    from fusionray.data import synthetic
    from fusionray.faces.image_files.decode import encode_image
    from fusionray.nets.pixels import to_uint8
    from fusionray.serving.application import APP_NAME, run
    from fusionray.serving.config import ModelConfig, ServeConfig

    people = synthetic.sample_identities(2, seed=99)
    looks = synthetic.sample_attributes(2, seed=99)
    pictures = to_uint8(synthetic.render(people, looks, PICTURE_SIZE) * 2 - 1).permute(0, 2, 3, 1).numpy()
    for name, picture in zip(("source", "target"), pictures, strict=True):
        (OUTPUT / f"{name}.png").write_bytes(encode_image(picture))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with stage("serve", 3, "step") as bar:
        run(ServeConfig(models=(ModelConfig(bundle=bundle),)), port=port, blocking=False)
        bar.update()
        fuse_request(port)  # the first request of a connection pays for what later ones find ready
        bar.update()
        started = time.monotonic()
        (OUTPUT / "fused.png").write_bytes(fuse_request(port))
        milliseconds = (time.monotonic() - started) * 1000
        bar.update()
    serve.delete(APP_NAME)
    return milliseconds


def fuse_request(port: int) -> bytes:
    """POST source and target as a form, as `curl -F` does."""
    boundary = uuid.uuid4().hex
    parts = []
    for name in ("source", "target"):
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.png"\r\n'
        picture = (OUTPUT / f"{name}.png").read_bytes()
        parts.append(f"{head}Content-Type: image/png\r\n\r\n".encode() + picture + b"\r\n")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/fuse",
        data=b"".join(parts) + f"--{boundary}--\r\n".encode(),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    with urllib.request.urlopen(request, timeout=HTTP_SECONDS) as answer:  # noqa: S310 - our own port
        data: bytes = answer.read()
    return data


def report(folder: Path, evaluation: Any, figures: Any, fusion: Any) -> None:
    """Write `report.html` into a folder: the evaluation's report, losses from the tracker, and the HTTP answer."""
    from fusionray.evaluation.report.charts import draw_curves
    from fusionray.evaluation.report.documents import write_report
    from fusionray.reporting.page import PageSection
    from fusionray.reporting.parts import PageImage
    from fusionray.tracking.runs import metric_history

    names = ("truth", "structure", "identity", "mask", "adversarial", "discriminator", "feature_matching")
    losses = {
        f"loss_{name}": metric_history(fusion.tracking_uri, fusion.tracking_run, f"loss_{name}") for name in names
    }

    def show(words_by_name: dict[str, str]) -> list[PageImage]:
        return [
            PageImage(name, f"{name} picture", (folder / f"{name}.png").read_bytes(), words)
            for name, words in words_by_name.items()
        ]

    answer = show(
        {"source": "Source", "target": "Target", "fused": "The target with the source's identity, pasted back"}
    )
    painted = show({"content": "Content", "style": "Style", "stylised": "The content, painted in the style"})
    strip = PageImage("film", "frames of the film before and after", (folder / "film" / "strip.png").read_bytes())
    later = (
        PageSection("A film, before and after", [strip], "fused.mp4, with its sound; film/report.html has more."),
        PageSection(
            "A picture in the style of another",
            painted,
            "The second family, after a minute of training: colours more than strokes.",
            columns=True,
        ),
        PageSection("The answer over HTTP", answer, "Two people that the model never saw.", columns=True),
        PageSection("Losses over the images seen", draw_curves(losses), columns=True),
        *evaluation.later,
    )
    write_report(folder, replace(evaluation, title="fusionray demo", figures=figures, later=later))


def tell(figures: Any) -> None:
    """Print what was found, what was made and what to try next."""
    from fusionray.evaluation.report.documents import write_text

    print(write_text(figures))
    print(
        f"""
Made in {OUTPUT.relative_to(ROOT)}/: report.html, grid.png, fused.png, fused.mp4, stylised.png, figures.json, bundle/,
mlflow.db; in evaluation/ the scores of every pair, in style/ the second family

Next, serve what was made, with a page at http://127.0.0.1:8000:
  .venv/bin/fusionray serve --bundle runs/demo/bundle
  curl -F source=@runs/demo/source.png -F target=@runs/demo/target.png http://127.0.0.1:8000/v1/fuse -o fused.png
then train a larger model, stage by stage: "The path" in README.md"""
    )


if __name__ == "__main__":
    raise SystemExit(main())
