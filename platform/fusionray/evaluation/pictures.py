"""Evaluate an image-to-image model: by the scorer of its family, or against the reference output of its family.

Each draw is one input picture per role of the family (for example content and style). The module face_fusion.py
evaluates models that fuse faces.

Shape suffixes: N draws, R roles, S side in pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data.decoding import CropDecoder
from fusionray.data.held_out import HeldOutCrops
from fusionray.data.shards import Manifest, check_shards, read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import ShardMismatch
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.dependency_config import build_dependency_config
from fusionray.evaluation.fusion_model import ModelInfo, is_bundle, resolve_model
from fusionray.evaluation.metric_table import PICTURES_TABLE, MetricTable, load_table
from fusionray.evaluation.reference_scorer import ReferenceScorer
from fusionray.evaluation.report.documents import Report, write_report, write_text
from fusionray.evaluation.report.examples import Ranking, show_examples
from fusionray.evaluation.report.output import (
    PAIRS_NAME,
    describe_command,
    list_changes,
    track,
    write_csv,
)
from fusionray.evaluation.result import EvaluateResult
from fusionray.evaluation.scored_model import OpenedModel, ScoredModel, describe_baseline, open_baseline, open_model
from fusionray.metrics.aggregate import Statistic, Summary, mean, ratio
from fusionray.metrics.confidence import bootstrap
from fusionray.metrics.fusion_metrics import MetricColumns, join
from fusionray.recipes.family import RecipeFamily
from fusionray.recipes.measuring import PictureScorer
from fusionray.reporting.figures import FIGURES_NAME, write_figures
from fusionray.storage import filesystem as storage
from fusionray.training.train import ensure_trained

NAME = "evaluate"
DECODE_THREADS = 2
# Settings that only the evaluation of face fusion (face_fusion.py) reads.
FACE_FUSION_SETTINGS = ("face_fusion", "workers")


def evaluate_pictures(config: EvaluateConfig, family: RecipeFamily[Any]) -> EvaluateResult:
    """Measure a model on `config.split` of the shards `config.data`, in this process.

    A checkpoint runs on the GPU if torch sees one. Writes figures.json, pairs.csv (all draws) and the report into
    `config.output`, replacing those of an earlier call, and logs them to the tracker. Warns of settings that have no
    effect.

    Raises: ShardMismatch for shards of another size or task, or a split with too few rows; ConfigInvalid if the family
        has no reference output; any FusionRayError from loading the model, reading, or writing.
    """
    warn_unused(config)
    config = config.model_copy(
        update={
            "model": resolve_model(config.model),
            "data": resolve_location(config.data),
            "output": resolve_location(config.output),
            "runs": None if config.runs is None else resolve_location(config.runs),
        }
    )
    uri = config.choose_tracker()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = open_model(config.model, family, uri, device)
    info = model.info
    manifest = read_manifest(config.data)
    check_shards(config.data, manifest, size=info.size, task=family.task)
    check_extent(config, manifest, family)
    # Before the scorer, whose evaluator may have to be trained.
    baseline = open_baseline(config.baseline, model, uri, device)
    scorer = open_scorer(config, [model] if baseline is None else [model, baseline], manifest, uri, device)
    own_table = family.metric_table
    table = load_table(PICTURES_TABLE) if own_table is None else MetricTable.model_validate(own_table)
    scored = ScoredModel(
        model.network, scorer, device, None if baseline is None else baseline.network, frozenset(table.metrics)
    )
    with closing(CropDecoder(info.size, DECODE_THREADS)) as decoder:
        rows = HeldOutCrops(
            config.data, manifest, config.pairs, decoder, family.collate, with_regions=False, split=config.split
        )
        draws = rows.draw(family.num_roles, config.seed, family.source_folder)
        scores = join(measure_batches(scored, rows, draws, config.batch_size))
        groups = np.array(rows.groups)[draws[:, 0]]
        summary = summarise_draws(scores, groups, config, scorer.ratios)
        not_measured = {key: "not measured for pictures" for key in table.metrics if key not in summary.values}
        checked = table.check_goals(summary.values, summary.intervals, config.goals)
        figures = write_figures(config.output, NAME, checked, not_measured)
        pairs = list_draws(np.array(rows.groups)[draws], scores)
        storage.write_atomic(storage.join(config.output, PAIRS_NAME), pairs.encode())
        examples = list(show_examples(rank_draws(scored, rows, draws, scores)))
    title = f"{info.name} on held-out pictures"
    notes = list(describe(config, info, manifest, len(draws)))
    if baseline is not None:
        notes.extend(describe_baseline(model, baseline))
    report = Report(title, figures, table, notes, describe_command(config), blocks=examples)
    files = [FIGURES_NAME, PAIRS_NAME, *write_report(config.output, report)]
    track(config, uri, info, manifest, figures=figures, files=files)
    return EvaluateResult(figures, config.output, write_text(figures), report)


def open_scorer(
    config: EvaluateConfig, models: Sequence[OpenedModel], manifest: Manifest, uri: str, device: torch.device
) -> PictureScorer:
    """Return the scorer of the first model's family, whose evaluator is trained first if a preset names it.

    Without an evaluator it scores by references. `models`: the model, and the baseline if there is one.

    Raises: ValueError for an evaluator that supervised one of the models; any FusionRayError of its training.
    """
    family = models[0].family
    evaluator = config.evaluator or family.evaluator
    if family.evaluator is None or evaluator is None:
        if config.evaluator is not None:
            warnings.warn(f"evaluator: models of the recipe {family.name} are scored without one", stacklevel=3)
        return ReferenceScorer(family)
    trained = ensure_trained(build_dependency_config(config, manifest, uri), evaluator)
    for model in models:
        if not is_bundle(model.location):
            model.family.check_evaluator(trained, model.location)
    return family.build_scorer(trained, device)


def warn_unused(config: EvaluateConfig) -> None:
    """Warn (UserWarning) of settings that differ from their defaults but only affect face fusion."""
    plain = EvaluateConfig(model=config.model, data=config.data, output=config.output)
    unused = [key for key, _ in list_changes(plain, config) if key.partition(".")[0] in FACE_FUSION_SETTINGS]
    if unused:
        warnings.warn(f"{', '.join(unused)}: only for models that fuse faces; no effect on this one", stacklevel=3)


def check_extent(config: EvaluateConfig, manifest: Manifest, family: RecipeFamily[Any]) -> None:
    """Check that the split has rows, and as many groups (people, or original pictures) as the family needs.

    Raises: ShardMismatch.
    """
    held_out = manifest.splits.get(config.split)
    rows, groups = (held_out.rows, held_out.identities) if held_out else (0, 0)
    shortage = "at least one row" if rows == 0 else family.describe_shortage(rows, groups)
    if shortage:
        remedy = "more pictures" if config.split == "train" else f"a larger {config.split}_fraction"
        raise ShardMismatch(
            f"{config.data}: its {config.split} split has {rows} rows of {groups}, but {shortage} are needed; prepare "
            f"again with {remedy}"
        )


def decode_roles(rows: HeldOutCrops, draws: NDArray[np.int64]) -> list[Tensor]:
    """Decode draws int64 [N,R], which are row numbers: R tensors uint8 [N,3,S,S] RGB, one per role."""
    return [rows.decode(draws[:, role]) for role in range(draws.shape[1])]


def measure_batches(
    scored: ScoredModel, rows: HeldOutCrops, draws: NDArray[np.int64], batch: int
) -> Iterator[MetricColumns]:
    """Yield the scores of draws int64 [N,R], at most `batch` draws at a time, in order."""
    for start in range(0, len(draws), batch):
        yield scored.score(decode_roles(rows, draws[start : start + batch]))


def summarise_draws(
    scores: MetricColumns,
    groups: NDArray[np.str_],
    config: EvaluateConfig,
    ratios: Mapping[str, tuple[str, str]],
) -> Summary:
    """Average each score over the N draws, with a bootstrap interval unless `config.bootstrap_rounds` is 0.

    `ratios`: further metrics, each the mean of a score over the mean of another.

    `groups` [N]: name of the group of each draw's first input. The bootstrap resamples whole groups, because draws of
    one group are not independent.
    """
    summary = Summary()
    statistics: dict[str, tuple[Statistic, list[NDArray[np.float32]]]] = {
        **{name: (mean, [values]) for name, values in scores.items()},
        **{name: (ratio, [scores[above], scores[below]]) for name, (above, below) in ratios.items()},
    }
    for name, (statistic, columns) in statistics.items():
        bounds = None
        if config.bootstrap_rounds:
            interval = bootstrap(statistic, columns, config.seed, rounds=config.bootstrap_rounds, cluster_N=groups)
            bounds = {name: interval}
        summary.add({name: statistic(*columns)}, bounds)
    summary.add({"held_out_draws": len(groups)})
    return summary


def list_draws(groups_NR: NDArray[np.str_], scores: MetricColumns) -> str:
    """Return a CSV with a line per draw: the group names of its R inputs, `groups_NR` [N,R], then its scores."""
    head = [*(f"picture_{role}" for role in range(groups_NR.shape[1])), *scores]
    return write_csv(
        head,
        (
            [*groups.tolist(), *(f"{values[number]:.6g}" for values in scores.values())]
            for number, groups in enumerate(groups_NR)
        ),
    )


def rank_draws(scored: ScoredModel, rows: HeldOutCrops, draws: NDArray[np.int64], scores: MetricColumns) -> Ranking:
    """Rank draws int64 [N,R] for the examples in the report, which are shown as `ScoredModel.show` returns them."""

    def fuse(chosen: NDArray[np.int64]) -> list[Tensor]:
        return scored.show(decode_roles(rows, draws[chosen]))

    def describe_draw(row: int) -> str:
        return ", ".join(f"{name} {values[row]:.3g}" for name, values in scores.items())

    scorer = scored.scorer
    return Ranking(scorer.rank(scores), scorer.ranking_name, scored.heads, fuse, describe_draw)


def describe(config: EvaluateConfig, info: ModelInfo, manifest: Manifest, num_draws: int) -> Iterator[str]:
    """Yield the notes of the report: model, shards, number of draws and seed, then caveats."""
    yield (
        f"Model {info.name} ({info.digest[:12]}), {info.size} px. Measured on the {config.split} split of "
        f"{config.data} ({manifest.digest()[:12]}): {num_draws} draws; seed {config.seed}."
    )
    if config.split != "test":
        yield "These pictures are not of the test split: the model may have been trained on them, or chosen by them."
    if info.data_digest != manifest.digest():
        yield "The model was trained on other shards: it is unknown whether they contain these pictures."
