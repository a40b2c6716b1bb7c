"""The prepare stage: plan, make the missing shards on Ray Data, vouch for all of them in a manifest."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import Counter

from tqdm import tqdm

from fusionray import __version__
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.contact_sheet import collect_crops, draw_contact_sheet
from fusionray.data.prepare.inputs import open_source
from fusionray.data.prepare.output import Output, compute_fingerprint
from fusionray.data.prepare.plan import Chunk, plan_chunks
from fusionray.data.prepare.source import Dropped
from fusionray.data.prepare.worker import Job, ShardMaker, ShardReport
from fusionray.data.shards import SPLITS, Manifest, SplitInfo, write_manifest
from fusionray.errors import InputMissing
from fusionray.faces.decode import encode_image
from fusionray.faces.detect import build_detector
from fusionray.ray_cluster.actor_pool import work_through
from fusionray.shard_task import GROUP_NAMES


def prepare(config: PrepareConfig) -> Manifest:
    """Turn the pictures of `config.input` into shards, a manifest and a contact sheet below `config.output`.

    Runs on the Ray that is there. Done shards are kept when a run is interrupted, and the next run makes the missing
    ones; when nothing is missing it says so and does nothing.

    Raises:
        InputMissing: the input is not there, holds no pictures, or none of them could be used.
        ConfigInvalid: the synthetic:// address is malformed, or the output lies inside the input.
        ShardMismatch: the output holds shards of other input or settings, and `overwrite` is false.
        DetectorUnavailable: the detector cannot be loaded.
    """
    source = open_source(config)
    detector = build_detector(config.detector) if config.task == "faces" else None
    settings, fingerprint = compute_fingerprint(config, source.signature())
    output = Output(config.output)
    output.claim(settings, fingerprint, overwrite=config.overwrite)
    finished = output.finished_manifest(fingerprint)
    if finished is not None:
        _say(f"prepare: {config.output} is complete ({_in_words(finished)}); nothing to do")
        return finished
    listing = source.list_entries()
    entries = listing.entries
    if config.task == "pictures":
        # Splits are of pictures: what lies in one folder need not stay together.
        entries = [entry._replace(identity=entry.source) for entry in entries]
    chunks = plan_chunks(
        entries,
        seed=config.seed,
        validation_fraction=config.validation_fraction,
        test_fraction=config.test_fraction,
        rows_per_shard=config.rows_per_shard,
    )
    done = output.done_files(chunks, fingerprint)
    missing = [chunk for chunk in chunks if chunk.file not in done]
    if done and missing:
        _say(f"prepare: {len(done)} of {len(chunks)} shards were made before; going on with the others")
    _make_shards(Job(config, source, detector, fingerprint), missing, num_done=_count(chunks) - _count(missing))
    reports = [output.read_report(chunk) for chunk in chunks]
    # What a renderer knows of its faces is no column of pictures.
    synthetic = source.synthetic and config.task == "faces"
    manifest = _build_manifest(config, fingerprint, chunks, reports, listing.dropped, synthetic=synthetic)
    _publish(config, output, manifest, listing.dropped, reports)
    _say(f"prepare: {config.output}: {_in_words(manifest)}")
    if config.test_fraction and not manifest.splits["test"].identities:
        _say(
            f"prepare: nobody is held out for the test, since {manifest.num_identities} {GROUP_NAMES[config.task]} are "
            f"too few for test_fraction={config.test_fraction:g}; add some, or raise it until its share is two of them"
        )
    return manifest


def _make_shards(job: Job, chunks: list[Chunk], *, num_done: int) -> None:
    """Work through chunks in a pool of actors, showing how many pictures were tried."""
    if not chunks:
        return
    size = job.config.workers or _count_cpus()
    with tqdm(
        desc="prepare", total=num_done + _count(chunks), initial=num_done, unit=" pictures", file=sys.stderr
    ) as bar:
        for batch in work_through(ShardMaker, job, chunks, size=size, num_cpus=1):
            bar.update(int(batch["pictures"].sum()))
            for fault in filter(None, batch["fault"]):
                raise pickle.loads(fault)  # noqa: S301 - written by the workers of this very run


def _count_cpus() -> int:
    """Count the CPUs of the cluster; a machine of our own may be told of more than it has."""
    import ray

    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return min(cpus, len(os.sched_getaffinity(0))) if len(ray.nodes()) == 1 else cpus


def _build_manifest(
    config: PrepareConfig,
    fingerprint: str,
    chunks: list[Chunk],
    reports: list[ShardReport],
    refused: list[Dropped],
    *,
    synthetic: bool,
) -> Manifest:
    reasons = Counter(drop.reason for report in reports for drop in report.dropped)
    reasons.update(drop.reason for drop in refused)
    splits: dict[str, SplitInfo] = {}
    for split in SPLITS:
        parts = [report for chunk, report in zip(chunks, reports, strict=True) if chunk.split == split]
        people = {identity for part in parts for identity in part.identities}
        splits[split] = SplitInfo(rows=sum(part.shard.rows for part in parts if part.shard), identities=len(people))
    shards = [report.shard for report in reports if report.shard is not None]
    if not shards:
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        raise InputMissing(f"{config.input}: none of its pictures can be used ({counts}); see the reasons, check INPUT")
    return Manifest(
        task=config.task,
        template=config.template if config.task == "faces" else "",
        size=config.size,
        image_format=config.image_format,
        seed=config.seed,
        input=config.input,
        fingerprint=fingerprint,
        code_version=__version__,
        synthetic=synthetic,
        num_images=sum(shard.rows for shard in shards),
        num_identities=sum(split.identities for split in splits.values()),
        splits=splits,
        shards=shards,
        num_dropped=reasons.total(),
        dropped=dict(sorted(reasons.items())),
    )


def _publish(
    config: PrepareConfig, output: Output, manifest: Manifest, refused: list[Dropped], reports: list[ShardReport]
) -> None:
    """Write what describes the shards, the manifest last."""
    drops = sorted([*refused, *(drop for report in reports for drop in report.dropped)])
    lines = [json.dumps(drop._asdict(), ensure_ascii=False) for drop in drops]
    output.write("dropped.jsonl", "".join(f"{line}\n" for line in lines).encode())
    summary = {
        "images": manifest.num_images,
        "identities": manifest.num_identities,
        "dropped": manifest.dropped,
    }
    if config.task == "faces":
        summary["images_with_several_faces"] = sum(report.num_several_faces for report in reports)
    output.write("summary.json", json.dumps(summary, indent=1).encode())
    if config.contact_sheet:
        sheet = draw_contact_sheet(collect_crops(config.output, manifest))
        output.write("contact_sheet.png", encode_image(sheet, "png"))
    output.remove_leftovers()
    write_manifest(config.output, manifest)


def _count(chunks: list[Chunk]) -> int:
    return sum(len(chunk.entries) for chunk in chunks)


def _in_words(manifest: Manifest) -> str:
    validation, test = (manifest.splits[split].identities for split in ("validation", "test"))
    shown = GROUP_NAMES[manifest.task]
    return (
        f"{manifest.num_images} crops of {manifest.num_identities} {shown} ({validation} held out for validation, "
        f"{test} for the test) "
        f"in {len(manifest.shards)} shards, {manifest.num_dropped} pictures dropped"
    )


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
