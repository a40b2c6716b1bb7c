"""The output of an evaluation: the list of pairs with their scores, the report, and a run in the tracker."""

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
from fusionray.data.synthetic import render_true_fusion
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.dataset import EvalDataset
from fusionray.evaluation.fusion_model import ModelInfo
from fusionray.evaluation.metric_table import MetricTable
from fusionray.evaluation.report.charts import draw_operating_curve
from fusionray.evaluation.report.documents import Report, write_report
from fusionray.evaluation.report.examples import rank_pairs, show_examples
from fusionray.evaluation.report.summary import EvalSummary
from fusionray.evaluation.report.training_curves import draw_training_curves
from fusionray.metrics.aggregate import Summary
from fusionray.metrics.fusion_metrics import TRUTH_OVERSAMPLING, FusionModel
from fusionray.metrics.pair_plan import RowIndices
from fusionray.nets.pixels import to_uint8
from fusionray.reporting.figures import FIGURES_NAME, Figures
from fusionray.reporting.page import PageSection, PageTable
from fusionray.storage import filesystem as storage
from fusionray.tracking.runs import RunTracker, closed_run, open_run

PAIRS_NAME = "pairs.csv"
GALLERY_NAME = "gallery.csv"


@dataclass(frozen=True, eq=False)
class EvalRun:
    """One evaluation: settings, model and dataset; this process loads `model` too, to draw the examples."""

    config: EvaluateConfig
    tracking_uri: str
    info: ModelInfo
    manifest: Manifest
    dataset: EvalDataset
    model: FusionModel


def write_output(eval_run: EvalRun, summary: EvalSummary, figures: Figures, table: MetricTable) -> Report:
    """Write pairs.csv, gallery.csv and the report to the output folder, and log all files to the tracker."""
    folder = eval_run.config.output
    storage.write_atomic(storage.join(folder, PAIRS_NAME), list_pairs(eval_run.dataset, summary).encode())
    storage.write_atomic(storage.join(folder, GALLERY_NAME), list_gallery(eval_run.dataset).encode())
    report = build_report(eval_run, summary, figures, table)
    files = [FIGURES_NAME, PAIRS_NAME, GALLERY_NAME, *write_report(folder, report)]
    track(eval_run.config, eval_run.tracking_uri, eval_run.info, eval_run.manifest, figures=figures, files=files)
    return report


def build_report(eval_run: EvalRun, summary: EvalSummary, figures: Figures, table: MetricTable) -> Report:
    """Build the report: fused pairs, training curves, figures, and the evaluator's ROC curve."""
    curves, curve_warnings = draw_training_curves(eval_run.info.training, eval_run.tracking_uri, table)
    later = []
    if summary.verification is not None:
        title = "Face verification by the evaluator"
        later.append(PageSection(title, [draw_operating_curve(summary.verification)], narrow=True))
    return Report(
        f"{eval_run.info.name} on held-out people",
        figures,
        table,
        (*describe_eval(eval_run), *curve_warnings),
        describe_command(eval_run.config),
        [list_groups(summary.summary)] if summary.summary.groups else [],
        (*show_examples(rank_pairs(summary.scores, partial(fuse_examples, eval_run))), *curves),
        later,
    )


def list_pairs(dataset: EvalDataset, summary: EvalSummary) -> str:
    """List the pairs as CSV: shard file, row and person of source and target, then the scores."""
    columns = [f"{role}_{what}" for role in ("source", "target") for what in ("file", "row", "person")]
    rows = (
        [
            *dataset.locate(source),
            *dataset.locate(target),
            *(f"{column[number]:.6g}" for column in summary.scores.values()),
        ]
        for number, (source, target) in enumerate(dataset.plan.pairs.tolist())
    )
    return write_csv([*columns, *summary.scores], rows)


def list_gallery(dataset: EvalDataset) -> str:
    """List the gallery pictures of each person, as CSV."""
    return write_csv(["file", "row", "person"], (list(dataset.locate(crop)) for crop in dataset.plan.gallery.tolist()))


def write_csv(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def fuse_examples(eval_run: EvalRun, rows: RowIndices) -> list[torch.Tensor]:
    """Fuse some pairs again; return source, target, fused and, if known, true fusion, uint8 [R,3,S,S] each."""
    decoder = CropDecoder(eval_run.info.size, threads=1)
    batch = collate_pairs([SampledPairs(eval_run.dataset.crops, eval_run.dataset.plan.pairs[rows])], decoder)
    decoder.close()
    columns = [batch.source, batch.target, eval_run.model.fuse(batch.source, batch.target)]
    if batch.truth is not None:
        columns.append(to_uint8(render_true_fusion(batch, TRUTH_OVERSAMPLING)[0]))
    return columns


def list_groups(summary: Summary) -> PageTable:
    """List the figure of each group of people, and mark the worst one."""
    rows = []
    for key, groups in summary.groups.items():
        for name, count in groups.num_rows.items():
            value = groups.by_group.get(name)
            shown = "too few pairs" if value is None else f"{value:.3f}"
            rows.append((key, name, str(count), shown, "worst" if name == groups.worst else ""))
    return PageTable(
        "by group",
        ("key", "group", "pairs", "value", ""),
        rows,
        "fairness: sources, in thirds of true parameters of the synthetic world. skin_difference, seam_step: tone of "
        "source on tone of target, both measured in the crops (individual typology angle). All others: hard cases "
        "beside all pairs; 'people alike' is the fifth most alike to the evaluator, dark and soft are fifths, too.",
    )


def describe_eval(eval_run: EvalRun) -> Iterator[str]:
    """Describe the model, the data and the evaluators."""
    config, info, plan = eval_run.config, eval_run.info, eval_run.dataset.plan
    yield (
        f"Model {info.name} ({info.digest[:12]}), {info.size} px, aligned to {info.template}. Evaluated on the "
        f"{config.split} split of {config.data} ({eval_run.manifest.digest()[:12]}): {len(plan.pairs)} pairs of "
        f"{plan.num_people} people, with {len(plan.gallery)} other pictures as their gallery; seed {config.seed}."
    )
    if config.face_fusion.compare_size is not None:
        yield f"Pictures were reduced to {config.face_fusion.compare_size} px before they were compared."
    if config.split != "test":
        yield "These people are not of the test split: the model may have been trained on them, or chosen by them."
    settings = config.face_fusion
    data_digests = {"model": info.data_digest, "evaluator": read_info(settings.evaluator).data_digest}
    for who, digest in data_digests.items():
        if digest != eval_run.manifest.digest():
            yield f"The {who} was trained on other shards: it is unknown whether they contain these people."
    if len(plan.pairs) < config.pairs:
        yield f"{config.pairs} pairs were requested, but there are no more different ones."
    if plan.num_single:
        yield f"{plan.num_single} people have one picture each, which is in the gallery and is also fused."
    yield f"Evaluator: {settings.evaluator}. Attribute reader: {settings.attributes or 'none'}."
    if settings.features is not None:
        content = storage.read_bytes(settings.features.file)
        yield f"Features: {Path(settings.features.file).name}, sha256 {storage.sha256_hex(content)}."


def describe_command(config: EvaluateConfig) -> str:
    """Return the command that repeats the evaluation, with every setting that is not the default."""
    plain = EvaluateConfig(model=config.model, data=config.data, output=config.output)
    settings = list_changes(plain, config)
    words = ["fusionray", "evaluate", config.model, "--data", config.data, "--output", config.output]
    return shlex.join([*words, *(f"{key}={json.dumps(value)}" for key, value in settings)])


def list_changes(plain: Section | None, changed: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys in which a section differs from another one; all keys if there is none."""
    for name in type(changed).model_fields:
        before, after = getattr(plain, name, None), getattr(changed, name)
        if isinstance(after, Section):
            yield from list_changes(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name}", after


def track(
    config: EvaluateConfig,
    uri: str,
    info: ModelInfo,
    manifest: Manifest,
    *,
    figures: Figures,
    files: Iterable[str],
) -> None:
    """Log the evaluation and its files to the tracker; the same model, shards and settings share one run."""
    params = {
        "model_name": info.name,
        "model_digest": info.digest,
        "data_digest": manifest.digest(),
        **config.model_dump(mode="json"),
    }
    key = storage.sha256_hex(json.dumps(params, sort_keys=True).encode())
    run_id = open_run(uri, config.experiment, f"evaluate {info.name}", params, key=key)
    with closed_run(uri, run_id):
        tracker = RunTracker(uri, run_id)
        tracker.log(0, {name: figure.value for name, figure in figures.figures.items()})
        for name in files:
            tracker.log_file(storage.join(config.output, name))
