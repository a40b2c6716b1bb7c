"""The demo behind `make demo`: from nothing to a fused face over HTTP, on synthetic people only.

Every stage is the function that the command line and `ray job submit` call; this file only strings them together.
"""

from __future__ import annotations

import socket
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

from fusionray.config import load_config  # noqa: E402
from fusionray.errors import FusionRayError  # noqa: E402
from fusionray.ops.environment import apply_defaults  # noqa: E402

OUTPUT = ROOT / "runs" / "demo"
NUM_PAIRS = 200
GRID_ROWS = 8
PICTURE_SIZE = 256
HTTP_SECONDS = 60.0


def main() -> int:
    """Run all stages; exit 1 with one line if one of them fails."""
    apply_defaults()
    from fusionray.ops.cluster import cluster

    started = time.monotonic()
    try:
        with cluster(python_path=[ROOT, ROOT / "platform"]):
            run_stages(started)
    except (FusionRayError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def run_stages(started: float) -> None:
    """prepare -> identity encoders -> fusion -> export -> evaluate -> serve -> report."""
    from fusionray.evaluation.figures import Figure, above, at_least, write_figures
    from fusionray.export.onnx import ExportConfig, export
    from fusionray.training.settings import TrainConfig
    from fusionray.training.train import train, train_encoder

    config = load_config(TrainConfig, file=ROOT / "jobs/presets/demo.yaml", overrides=[f"run.output={OUTPUT}"])
    fusion = train(config)
    judge = train_encoder(config, "identity-judge")
    with stage("export", 1, "bundle") as bar:
        bundle = export(
            ExportConfig(
                checkpoint=fusion.checkpoint,
                output=str(OUTPUT / "bundle"),
                name="fusionray-demo",
                licence="Apache-2.0",
                tracking_uri=fusion.tracking_uri,
                tracking_run=fusion.tracking_run,
            )
        )
        bar.update()
    score = evaluate(fusion.checkpoint, judge.checkpoint)
    milliseconds = answer_over_http(str(bundle.folder))
    assert score.ssim_fused_to_truth is not None
    assert score.ssim_target_to_truth is not None
    figures = write_figures(
        OUTPUT,
        "demo",
        {
            "nearer_to_source": at_least(score.nearer_to_source, 0.9, "fraction"),
            "ssim_fused_to_truth": above(
                score.ssim_fused_to_truth, score.ssim_target_to_truth, "SSIM", "ssim_target_to_truth"
            ),
            "ssim_target_to_truth": Figure(value=score.ssim_target_to_truth, unit="SSIM"),
            "cosine_to_source": Figure(value=score.cosine_to_source, unit="cosine"),
            "cosine_to_target": Figure(value=score.cosine_to_target, unit="cosine"),
            "held_out_pairs": Figure(value=score.num_pairs, unit="pairs"),
            "verification_accuracy": Figure(value=judge.metrics["verification_accuracy"], unit="fraction"),
            "verification_auc": Figure(value=judge.metrics["verification_auc"], unit="area"),
            "train_seconds": Figure(value=fusion.seconds, unit="s"),
            "train_images": Figure(value=fusion.images_seen, unit="images"),
            "images_per_second": Figure(value=fusion.images_seen / fusion.seconds, unit="images/s"),
            "parity_difference": Figure(value=bundle.description.parity.largest_difference, unit="absolute"),
            "http_milliseconds": Figure(value=milliseconds, unit="ms"),
            "total_seconds": Figure(value=time.monotonic() - started, unit="s"),
        },
    )
    report(figures, fusion)
    tell(figures)


def stage(title: str, total: int, unit: str) -> Any:
    """Make the progress bar of a stage."""
    from tqdm import tqdm

    return tqdm(total=total, desc=title, unit=unit)


def held_out(checkpoint: Any) -> Iterator[Any]:
    """Yield the held-out pairs of a fusion run in batches, with their progress."""
    from fusionray.data.decoding import CropDecoder, collate_pairs
    from fusionray.data.pairs import crops_from_tables, draw_held_out_pairs, regroup
    from fusionray.data.reading import read_split
    from fusionray.data.shards import read_manifest

    shards = checkpoint.config.data.shards
    crops = crops_from_tables([read_split(shards, read_manifest(shards), "validation")])
    decoder = CropDecoder(checkpoint.config.data.size, threads=2)
    with stage("evaluate", NUM_PAIRS, "pair") as bar:
        for group in regroup([draw_held_out_pairs(crops, NUM_PAIRS, seed=1)], 50):
            yield collate_pairs(group, decoder)
            bar.update(sum(len(draws) for draws in group))
    decoder.close()


def evaluate(fusion: str, judge: str) -> Any:
    """Score the fusion on held-out people with the encoder that did not train it; draw `grid.png`."""
    import torch

    from fusionray.evaluation.fusion import score_fusion
    from fusionray.faces.decode import encode_image
    from fusionray.recipes.face_fusion import render_truth
    from fusionray.recipes.identity import FaceWindow
    from fusionray.recipes.recipe import tile, to_float, to_uint8
    from fusionray.training.build import face_view, load_encoder, load_fusion

    trained = load_fusion(fusion)
    window = FaceWindow(face_view(trained.config.data.template))
    batches = list(held_out(trained))
    first = batches[0].head(GRID_ROWS)
    with torch.no_grad():
        fused = trained.generator(trained.encoder(window(to_float(first.source))), to_float(first.target))
    columns = [first.source, first.target, to_uint8(fused.output), to_uint8(render_truth(first)[0])]
    large = [column.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3) for column in columns]
    (OUTPUT / "grid.png").write_bytes(encode_image(tile(torch.stack(large, dim=1))))
    return score_fusion(trained.generator, trained.encoder, load_encoder(judge).build(), window, batches)


def answer_over_http(bundle: str) -> float:
    """Serve the bundle, send two pictures of people it never saw, keep the answer; return its milliseconds."""
    from ray import serve as ray_serve

    import serve.app
    from fusionray.data import synthetic
    from fusionray.faces.decode import encode_image
    from fusionray.recipes.recipe import to_uint8
    from serve.schema import ServeConfig

    people = synthetic.sample_identities(2, seed=99)
    looks = synthetic.sample_attributes(2, seed=99)
    pictures = to_uint8(synthetic.render(people, looks, PICTURE_SIZE) * 2 - 1).permute(0, 2, 3, 1).numpy()
    for name, picture in zip(("source", "target"), pictures, strict=True):
        (OUTPUT / f"{name}.png").write_bytes(encode_image(picture))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with stage("serve", 3, "step") as bar:
        serve.app.run(ServeConfig(bundle=bundle), port=port, blocking=False)
        bar.update()
        fuse_request(port)  # the first request of a connection pays for what later ones find ready
        bar.update()
        started = time.monotonic()
        (OUTPUT / "fused.png").write_bytes(fuse_request(port))
        milliseconds = (time.monotonic() - started) * 1000
        bar.update()
    ray_serve.delete(serve.app.APP_NAME)
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


def report(figures: Any, fusion: Any) -> None:
    """Write `report.html` with curves from the tracker, the grid and the HTTP answer."""
    from fusionray.evaluation.report import Picture, draw_curves, write_report
    from fusionray.ops.tracking import metric_history

    names = ("truth", "identity", "reconstruction", "mask", "adversarial", "discriminator", "feature_matching")
    curves = {name: metric_history(fusion.tracking_uri, fusion.tracking_run, f"loss_{name}") for name in names}
    pictures = [
        Picture("Fusions", "Source | target | fused | true fusion; people that were not trained on.", read("grid.png")),
        Picture("Losses", "Over the images seen.", draw_curves(curves)),
        Picture("The answer over HTTP", "The target with the identity of the source, pasted back.", read("fused.png")),
    ]
    write_report(OUTPUT / "report.html", "fusionray demo", figures, pictures)


def read(name: str) -> bytes:
    return (OUTPUT / name).read_bytes()


def tell(figures: Any) -> None:
    """Print what was made and what to try next."""
    width = max(map(len, figures.figures))
    for key, figure in figures.figures.items():
        verdict = "" if figure.holds is None else f"  goal {figure.goal}: {'holds' if figure.holds else 'FAILS'}"
        print(f"  {key:<{width}}  {figure.value:10.4f} {figure.unit}{verdict}")
    print(
        f"""
Made in {OUTPUT.relative_to(ROOT)}/: report.html, grid.png, fused.png, figures.json, shards/, bundle/, mlflow.db

Next, on your own pictures (FACES/<person>/<picture>):
  .venv/bin/fusionray prepare FACES runs/mine/shards
  .venv/bin/fusionray train --preset fast-128 --output runs/mine data.shards=runs/mine/shards run.name=first
  .venv/bin/fusionray export runs/mine/first --output runs/mine/bundle
  .venv/bin/fusionray serve --bundle runs/mine/bundle
  curl -F source=@runs/demo/source.png -F target=@runs/demo/target.png http://127.0.0.1:8000/v1/fuse -o fused.png"""
    )


if __name__ == "__main__":
    raise SystemExit(main())
