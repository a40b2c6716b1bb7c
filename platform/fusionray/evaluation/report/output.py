"""What an evaluation leaves behind: the list of pairs with their scores, grids, the report, a run in the tracker."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fusionray.checkpoint.info import read_info
from fusionray.config import Section
from fusionray.data.decoding import CropDecoder, collate_pairs
from fusionray.data.pairs import SampledPairs
from fusionray.data.shards import Manifest
from fusionray.data.synthetic import render_truth
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.dataset import EvalDataset
from fusionray.evaluation.fusion_model import FusionModelInfo
from fusionray.evaluation.report.curves import show_quality
from fusionray.evaluation.report.documents import Report, write_report
from fusionray.evaluation.report.drawing import draw_operating_curve
from fusionray.evaluation.report.examples import rank_pairs, show_examples
from fusionray.evaluation.report.figures import FIGURES_NAME, Figures
from fusionray.evaluation.report.goals import Table
from fusionray.evaluation.report.summary import EvalSummary
from fusionray.metrics.aggregate import Summary
from fusionray.metrics.measure import TRUTH_OVERSAMPLING, FusionModel
from fusionray.metrics.protocol import Rows
from fusionray.nets.pixels import to_uint8
from fusionray.reporting.page import Block, Listing
from fusionray.storage import filesystem as storage
from fusionray.tracking import RunTracker, close_run, open_run

PAIRS_NAME = "pairs.csv"
GALLERY_NAME = "gallery.csv"


@dataclass(frozen=True, eq=False)
class EvalRun:
    """What is judged, by which settings, on which pictures; `subject` is loaded here to draw what it does."""

    config: EvaluateConfig
    tracking_uri: str
    facts: FusionModelInfo
    manifest: Manifest
    material: EvalDataset
    subject: FusionModel


def write_outcome(case: EvalRun, verdict: EvalSummary, figures: Figures, table: Table) -> Report:
    """Write the lists and the report into the output, and file all of it in the tracker."""
    folder = Path(case.config.output)
    storage.write_atomic(str(folder / PAIRS_NAME), list_pairs(case.material, verdict).encode())
    storage.write_atomic(str(folder / GALLERY_NAME), list_gallery(case.material).encode())
    report = build_report(case, verdict, figures, table)
    files = [FIGURES_NAME, PAIRS_NAME, GALLERY_NAME, *write_report(folder, report)]
    track(case.config, case.tracking_uri, case.facts, case.manifest, figures=figures, files=files)
    return report


def build_report(case: EvalRun, verdict: EvalSummary, figures: Figures, table: Table) -> Report:
    """Build the report: fused pairs, how the model got there, figures, and how far the judge can be trusted."""
    curves, complaints = show_quality(case.facts.training, case.tracking_uri, table)
    later = []
    if verdict.verification is not None:
        title = "How well the judge tells people apart"
        later.append(Block(title, [draw_operating_curve(verdict.verification)], narrow=True))
    return Report(
        f"{case.facts.name} on held-out people",
        figures,
        table,
        (*describe_case(case), *complaints),
        describe_command(case.config),
        [list_groups(verdict.summary)] if verdict.summary.groups else [],
        (*show_examples(rank_pairs(verdict.scores, partial(fuse_examples, case))), *curves),
        later,
    )


def list_pairs(material: EvalDataset, verdict: EvalSummary) -> str:
    """List the pairs with their scores, as CSV: where source and target lie, whose they are, what the judges found."""
    places = [f"{role}_{what}" for role in ("source", "target") for what in ("file", "row", "person")]
    rows = (
        [
            *material.place(source),
            *material.place(target),
            *(f"{column[number]:.6g}" for column in verdict.scores.values()),
        ]
        for number, (source, target) in enumerate(material.plan.pairs.tolist())
    )
    return write_csv([*places, *verdict.scores], rows)


def list_gallery(material: EvalDataset) -> str:
    """List the pictures that enrolled each person, as CSV."""
    return write_csv(["file", "row", "person"], (list(material.place(crop)) for crop in material.plan.gallery.tolist()))


def write_csv(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def fuse_examples(case: EvalRun, rows: Rows) -> list[torch.Tensor]:
    """Fuse some of the pairs again: columns source, target, fused and, where known, true fusion, uint8 [R,3,S,S]."""
    decoder = CropDecoder(case.facts.size, threads=1)
    batch = collate_pairs([SampledPairs(case.material.crops, case.material.plan.pairs[rows])], decoder)
    decoder.close()
    columns = [batch.source, batch.target, case.subject.fuse(batch.source, batch.target)]
    if batch.truth is not None:
        columns.append(to_uint8(render_truth(batch, TRUTH_OVERSAMPLING)[0]))
    return columns


def list_groups(summary: Summary) -> Listing:
    """List the figure of each group of people, and which is worst off."""
    rows = []
    for key, groups in summary.groups.items():
        for name, count in groups.num_rows.items():
            value = groups.by_group.get(name)
            told = "too few pairs" if value is None else f"{value:.3f}"
            rows.append((key, name, str(count), told, "worst" if name == groups.worst else ""))
    return Listing(
        "by group",
        ("key", "group", "pairs", "value", ""),
        rows,
        "Sources in thirds of the synthetic world's own parameters; nobody's skin or age is guessed.",
    )


def describe_case(case: EvalRun) -> Iterator[str]:
    """Say what was judged, on what and by whom."""
    config, facts, plan = case.config, case.facts, case.material.plan
    yield (
        f"Model {facts.name} ({facts.digest[:12]}), {facts.size} px, aligned to {facts.template}. Judged on the "
        f"{config.split} split of {config.data} ({case.manifest.digest()[:12]}): {len(plan.pairs)} pairs of "
        f"{plan.num_people} people, whom {len(plan.gallery)} other pictures enrol; seed {config.seed}."
    )
    if config.split != "test":
        yield "These are not the people of the test: models may have learned from them, or been chosen by them."
    learned = {"model": facts.data_digest, "evaluator": read_info(config.evaluator).data_digest}
    for who, digest in learned.items():
        if digest != case.manifest.digest():
            yield f"The {who} learned from other shards: whether it met these people cannot be told from here."
    if len(plan.pairs) < config.pairs:
        yield f"{config.pairs} pairs were asked for; there are no more different ones."
    if plan.num_single:
        yield f"{plan.num_single} of the people have one picture: it enrols them and is fused as well."
    yield f"Judge: {config.evaluator}. Attributes read by: {config.attributes or 'nobody'}."
    if config.features is not None:
        content = storage.read_bytes(config.features.file)
        yield f"Features: {Path(config.features.file).name}, sha256 {storage.sha256_hex(content)}."


def describe_command(config: EvaluateConfig) -> str:
    """Give the command that does the same again, with every setting that is not the default."""
    plain = EvaluateConfig(model=config.model, data=config.data, output=config.output)
    settings = list_changes(plain, config)
    words = ["fusionray", "evaluate", config.model, "--data", config.data, "--output", config.output]
    return shlex.join([*words, *(f"{key}={json.dumps(value)}" for key, value in settings)])


def list_changes(plain: Section | None, changed: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List the dotted keys in which a section differs from another one; all of them where there is no other."""
    for name in type(changed).model_fields:
        before, after = getattr(plain, name, None), getattr(changed, name)
        if isinstance(after, Section):
            yield from list_changes(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name}", after


def track(
    config: EvaluateConfig,
    uri: str,
    facts: FusionModelInfo,
    manifest: Manifest,
    *,
    figures: Figures,
    files: Iterable[str],
) -> None:
    """File the evaluation with its files: one run for the same model, shards and settings, however often it is made."""
    told = {
        "model_name": facts.name,
        "model_digest": facts.digest,
        "data_digest": manifest.digest(),
        **config.model_dump(mode="json"),
    }
    key = storage.sha256_hex(json.dumps(told, sort_keys=True).encode())
    run_id = open_run(uri, config.experiment, f"evaluate {facts.name}", told, key=key)
    failed = True
    try:
        tracker = RunTracker(uri, run_id)
        tracker.log(0, {name: figure.value for name, figure in figures.figures.items()})
        for name in files:
            tracker.log_file(Path(config.output) / name)
        failed = False
    finally:
        close_run(uri, run_id, failed=failed)
