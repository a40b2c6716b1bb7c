"""Run the prepare stage: plan the shards, make the missing ones on Ray Data, write the manifest last."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import Counter

from tqdm import tqdm

from fusionray import __version__
from fusionray.data.person_labels import write_labels
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.contact_sheet import collect_crops, draw_contact_sheet
from fusionray.data.prepare.open_input import open_input
from fusionray.data.prepare.output import OutputFolder, compute_fingerprint
from fusionray.data.prepare.picture_input import DroppedPicture
from fusionray.data.prepare.plan import PlannedShard, plan_shards
from fusionray.data.prepare.skin_region import SkinRegion
from fusionray.data.prepare.worker import PrepareContext, ShardReport, ShardWorker
from fusionray.data.shards import SPLITS, Manifest, SplitInfo, write_manifest
from fusionray.environment import REGISTRY_PREFIX, resolve_location
from fusionray.errors import InputMissing
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.image_files.decode import encode_image
from fusionray.ray_cluster.actor_pool import actor_pool
from fusionray.ray_cluster.connection import require_cluster
from fusionray.shard_task import GROUP_NAMES

# Shards that a set has by default: of at least so many pictures, and so few that 100 million fit in a manifest of 2 MB.
FEWEST_ROWS, MOST_SHARDS = 512, 10_000


def prepare(config: PrepareConfig) -> Manifest:
    """Turn the pictures of `config.input` into shards, a manifest and a contact sheet below `config.output`.

    Uses the Ray cluster that the process is connected to. Finished shards are kept: after an interruption the next run
    makes only the missing ones; if the set is complete, it does nothing.

    Raises:
        InputMissing: the input does not exist, holds no pictures, or none of them can be used.
        ConfigInvalid: the synthetic:// address is malformed, or the output is inside the input.
        ShardMismatch: the output holds shards of other input or settings, and `overwrite` is false.
        DetectorUnavailable: the detector cannot be loaded.
        BundleInvalid: the bundle of `parser` is damaged, or has none.
    """
    picture_input = open_input(config)
    detector = build_detector(config.detector) if config.task == "faces" else None
    if config.parser is not None and config.task == "faces":
        named = config.parser
        parser = named if named.startswith(REGISTRY_PREFIX) else resolve_location(named)
        config = config.model_copy(update={"parser": parser})
        # Each worker opens it again: a bundle without a parser is refused before they start.
        SkinRegion(parser)
    settings, fingerprint = compute_fingerprint(config, picture_input.signature())
    output = OutputFolder(config.output)
    output.record_settings(settings, fingerprint, overwrite=config.overwrite)
    finished = output.complete_manifest(fingerprint)
    if finished is not None:
        _print_line(f"prepare: {config.output} is complete ({_summarize(finished)}); nothing to do")
        return finished
    listing = picture_input.list_entries()
    entries = listing.entries
    if config.task == "pictures":
        # Each picture is its own group: pictures of a folder may be in different splits.
        entries = entries.with_own_identities()
    planned_shards = plan_shards(
        entries,
        seed=config.seed,
        validation_fraction=config.validation_fraction,
        test_fraction=config.test_fraction,
        rows_per_shard=config.rows_per_shard or choose_rows_per_shard(len(entries)),
    )
    done = output.list_finished(planned_shards, fingerprint)
    missing = [planned for planned in planned_shards if planned.file not in done]
    if done and missing:
        _print_line(f"prepare: {len(done)} of {len(planned_shards)} shards were made before; making the others")
    _make_shards(
        PrepareContext(config, picture_input, entries, detector, fingerprint),
        missing,
        num_done=_count_pictures(planned_shards) - _count_pictures(missing),
    )
    reports = [output.read_report(planned) for planned in planned_shards]
    # Shards of pictures have no columns for parameters.
    synthetic = picture_input.synthetic and config.task == "faces"
    manifest = _build_manifest(config, fingerprint, planned_shards, reports, listing.dropped, synthetic=synthetic)
    _write_results(config, output, manifest, listing.dropped, reports)
    _print_line(f"prepare: {config.output}: {_summarize(manifest)}")
    if config.test_fraction and not manifest.splits["test"].identities:
        _print_line(
            f"prepare: nobody is held out for the test, since {manifest.num_identities} {GROUP_NAMES[config.task]} are "
            f"too few for test_fraction={config.test_fraction:g}; add more, or raise it until it covers two of them"
        )
    return manifest


def choose_rows_per_shard(num_pictures: int) -> int:
    """Choose how many pictures a shard has, if the settings do not say."""
    return max(FEWEST_ROWS, -(-num_pictures // MOST_SHARDS))


def _make_shards(context: PrepareContext, planned_shards: list[PlannedShard], *, num_done: int) -> None:
    """Make shards in a pool of actors, with a progress bar over pictures."""
    if not planned_shards:
        return
    require_cluster()
    size = context.config.workers or _count_cpus()
    total = num_done + _count_pictures(planned_shards)
    with (
        tqdm(desc="prepare", total=total, initial=num_done, unit=" pictures", file=sys.stderr) as bar,
        actor_pool(ShardWorker, context, planned_shards, size=size, num_cpus=1) as answers,
    ):
        for batch in answers:
            bar.update(int(batch["pictures"].sum()))
            for error in filter(None, batch["error"]):
                raise pickle.loads(error)  # noqa: S301 - written by the workers of this very run


def _count_cpus() -> int:
    """Count the CPUs of the cluster; on a single node, at most those that this process may use."""
    import ray

    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return min(cpus, len(os.sched_getaffinity(0))) if len(ray.nodes()) == 1 else cpus


def _build_manifest(
    config: PrepareConfig,
    fingerprint: str,
    planned_shards: list[PlannedShard],
    reports: list[ShardReport],
    refused: list[DroppedPicture],
    *,
    synthetic: bool,
) -> Manifest:
    reasons = Counter(drop.reason for report in reports for drop in report.dropped)
    reasons.update(drop.reason for drop in refused)
    splits: dict[str, SplitInfo] = {}
    for split in SPLITS:
        parts = [report for planned, report in zip(planned_shards, reports, strict=True) if planned.split == split]
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
        skin_regions=config.parser is not None and config.task == "faces" and not synthetic,
        num_images=sum(shard.rows for shard in shards),
        num_identities=sum(split.identities for split in splits.values()),
        splits=splits,
        shards=shards,
        num_dropped=reasons.total(),
        dropped=dict(sorted(reasons.items())),
    )


def _write_results(
    config: PrepareConfig,
    output: OutputFolder,
    manifest: Manifest,
    refused: list[DroppedPicture],
    reports: list[ShardReport],
) -> None:
    """Write dropped.jsonl, summary.json, the contact sheet, the labels of people, and last the manifest."""
    drops = sorted([*refused, *(drop for report in reports for drop in report.dropped)])
    lines = [json.dumps(drop._asdict(), ensure_ascii=False) for drop in drops]
    output.write("dropped.jsonl", "".join(f"{line}\n" for line in lines).encode())
    summary = {
        "images": manifest.num_images,
        "identities": manifest.num_identities,
        "dropped": manifest.dropped,
    }
    output.write("summary.json", json.dumps(summary, indent=1).encode())
    if config.contact_sheet:
        sheet = draw_contact_sheet(collect_crops(config.output, manifest))
        output.write("contact_sheet.png", encode_image(sheet, "png"))
    output.remove_partial_files()
    if config.task == "faces":
        train = [report for report in reports if report.shard is not None and report.shard.split == "train"]
        write_labels(config.output, {identity for report in train for identity in report.identities})
    write_manifest(config.output, manifest)


def _count_pictures(planned_shards: list[PlannedShard]) -> int:
    return sum(len(planned.rows) for planned in planned_shards)


def _summarize(manifest: Manifest) -> str:
    validation, test = (manifest.splits[split].identities for split in ("validation", "test"))
    shown = GROUP_NAMES[manifest.task]
    return (
        f"{manifest.num_images} crops of {manifest.num_identities} {shown} ({validation} held out for validation, "
        f"{test} for the test) "
        f"in {len(manifest.shards)} shards, {manifest.num_dropped} pictures dropped"
    )


def _print_line(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
