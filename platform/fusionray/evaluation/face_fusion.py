"""The protocol of face fusion: fuse pairs of held-out people, measure them with evaluators, report the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.checkpoint.models import load_encoder
from fusionray.data.shards import Manifest, check_shards, read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import DetectorUnavailable
from fusionray.evaluation.clips import Clip, RecordedClip, RenderedClip
from fusionray.evaluation.config import ClipsConfig, EvaluateConfig
from fusionray.evaluation.dataset import EvalDataset, check_split, load_dataset
from fusionray.evaluation.dependency_config import build_dependency_config
from fusionray.evaluation.distributed import measure_items
from fusionray.evaluation.fusion_model import ModelInfo, is_bundle, open_fusion_model, resolve_model
from fusionray.evaluation.metric_table import load_table
from fusionray.evaluation.report.documents import write_text
from fusionray.evaluation.report.missing_metrics import AvailableInputs, explain_missing_metrics
from fusionray.evaluation.report.output import EvalRun, write_output
from fusionray.evaluation.report.summary import EvalSummary, summarise_evaluation
from fusionray.evaluation.result import EvaluateResult
from fusionray.evaluation.work_items import EvalSpec, split_work
from fusionray.faces.align import load_template
from fusionray.metrics.feature_network import is_same_encoder
from fusionray.metrics.fusion_metrics import FusionModel
from fusionray.metrics.landmarks import CropLandmarks
from fusionray.ray_cluster.connection import decide_use_gpu
from fusionray.reporting.figures import write_figures
from fusionray.training.config import TrainConfig
from fusionray.training.train import ensure_trained

NAME = "evaluate"
CPU = torch.device("cpu")


def evaluate_fusion(config: EvaluateConfig) -> EvaluateResult:
    """Evaluate a model on the connected Ray cluster; train evaluators that a preset names first.

    Equal settings, model and shards give equal pairs and figures. A call replaces the results of an earlier one.

    Raises: ShardMismatch for shards of another size or template, or an empty split; ValueError for an evaluator that
        supervised the model, or a size that does not divide the model's; any FusionRayError of its parts.
    """
    config = resolve_paths(config)
    uri = config.choose_tracker()
    model, info = open_fusion_model(config.model, tracking_uri=uri, device=CPU, threads=None)
    manifest = read_manifest(config.data)
    check_shards(config.data, manifest, size=info.size, template=info.template)
    check_split(config.data, manifest, config.split)
    check_compare_size(config.face_fusion.compare_size, info.size)
    dependency_run = build_dependency_config(config, manifest, uri)
    config = train_evaluators(config, manifest, dependency_run)
    evaluators, landmarks_error = resolve_evaluators(config, manifest)
    check_evaluators(config, evaluators, info, model)
    eval_run = EvalRun(config, uri, info, manifest, load_dataset(config, manifest), model)
    clips = list(plan_clips(config.face_fusion.clips, eval_run.dataset))
    summary = measure_model(eval_run, evaluators, clips, use_gpu=decide_use_gpu(dependency_run.workers))
    available = AvailableInputs(
        synthetic=manifest.synthetic,
        with_reader=evaluators.reader is not None,
        with_features=evaluators.features is not None,
        landmarks_error=landmarks_error,
        num_clips=len(clips),
    )
    table, measured = load_table(), summary.summary
    figures = write_figures(
        config.output,
        NAME,
        table.check_goals(measured.values, measured.intervals, config.goals),
        explain_missing_metrics(table, measured.values, available),
    )
    report = write_output(eval_run, summary, figures, table)
    return EvaluateResult(figures, config.output, write_text(figures), report)


def check_compare_size(compare_size: int | None, size: int) -> None:
    """Check that pictures can be reduced by averaging whole pixels.

    Raises: ValueError.
    """
    if compare_size is not None and size % compare_size:
        raise ValueError(
            f"face_fusion.compare_size={compare_size}: pictures of {size} px are not reduced to it by a whole number; "
            f"give {size // 2}, or another divisor"
        )


def measure_model(
    eval_run: EvalRun, evaluators: EvaluatorPaths, clips: list[tuple[Clip, int]], *, use_gpu: bool
) -> EvalSummary:
    """Fuse and measure all pairs, crops and clips on the workers, and summarise the columns."""
    config = eval_run.config
    spec = EvalSpec(
        model=config.model,
        tracking_uri=eval_run.tracking_uri,
        evaluators=evaluators,
        template=eval_run.info.template,
        size=eval_run.info.size,
        batch_size=config.batch_size,
        num_workers=config.workers.num_workers,
        threads=config.workers.threads,
        use_gpu=use_gpu,
        compare_size=config.face_fusion.compare_size,
    )
    items = list(split_work(eval_run.dataset, clips, config.batch_size))
    return summarise_evaluation(
        eval_run.dataset,
        measure_items(spec, items, config.workers),
        with_features=evaluators.features is not None,
        rounds=config.bootstrap_rounds,
        seed=config.seed,
    )


def resolve_paths(config: EvaluateConfig) -> EvaluateConfig:
    """Make every path absolute, since workers have other working folders, and replace a run by its checkpoint.

    Raises: CheckpointMissing.
    """
    settings = config.face_fusion
    features = settings.features
    if features is not None:
        features = features.model_copy(update={"file": resolve_location(features.file)})
    clips = settings.clips.model_copy(update={"files": tuple(map(resolve_location, settings.clips.files))})
    return config.model_copy(
        update={
            "model": resolve_model(config.model),
            "data": resolve_location(config.data),
            "output": resolve_location(config.output),
            "runs": None if config.runs is None else resolve_location(config.runs),
            "face_fusion": settings.model_copy(update={"features": features, "clips": clips}),
        }
    )


def train_evaluators(config: EvaluateConfig, manifest: Manifest, dependency_run: TrainConfig) -> EvaluateConfig:
    """Replace the names of evaluators by the paths of their checkpoints; train presets that have none yet."""
    settings = config.face_fusion
    attributes = None
    # Photographs have no true attributes to compare readings with.
    if settings.attributes and manifest.synthetic:
        attributes = ensure_trained(dependency_run, settings.attributes)
    trained = {"evaluator": ensure_trained(dependency_run, settings.evaluator), "attributes": attributes}
    return config.model_copy(update={"face_fusion": settings.model_copy(update=trained)})


def resolve_evaluators(config: EvaluateConfig, manifest: Manifest) -> tuple[EvaluatorPaths, str]:
    """Return the paths of the evaluators; and why the face mesh is unavailable, empty if it is available."""
    landmarks_error = ""
    try:
        CropLandmarks(load_template(manifest.template), manifest.size)
    except DetectorUnavailable as error:
        landmarks_error = str(error)
    settings = config.face_fusion
    paths = EvaluatorPaths(settings.evaluator, settings.attributes, settings.features, not landmarks_error)
    return paths, landmarks_error


def check_evaluators(config: EvaluateConfig, paths: EvaluatorPaths, info: ModelInfo, model: FusionModel) -> None:
    """Check the evaluators before any worker starts; none may have supervised the model.

    Raises: ValueError for an evaluator that supervised the model; CheckpointMissing, InputMissing.
    """
    encoder = paths.build(CPU, template=info.template, size=info.size).encoder
    known: list[Callable[[Tensor], Tensor]] = [model.embed]
    if not is_bundle(config.model):
        # The encoder of the generator's input may differ from the one that supervised the training.
        known.append(load_encoder(config.model).build())
    if is_same_encoder(encoder, known):
        raise ValueError(
            f"face_fusion.evaluator={config.face_fusion.evaluator}: is the encoder that supervised {config.model}, so "
            "its scores are not independent; use another one, such as preset:identity-evaluator"
        )


def plan_clips(config: ClipsConfig, dataset: EvalDataset) -> Iterator[tuple[Clip, int]]:
    """Yield the clips to fuse, each with the index of its source crop; the list of pairs determines both."""
    pairs = dataset.plan.pairs.tolist()
    truth = dataset.crops.truth
    if truth:
        for number, (source, target) in enumerate(pairs[: config.number]):
            # The head moves from its pose in this pair's target to that in the next pair's target.
            end = pairs[(number + 1) % len(pairs)][1]
            yield (
                RenderedClip(
                    f"rendered-{number}",
                    truth["identity_parameters"][source],
                    truth["identity_parameters"][target],
                    truth["attribute_parameters"][target],
                    truth["attribute_parameters"][end],
                    config.frames,
                ),
                source,
            )
    for number, file in enumerate(config.files):
        yield RecordedClip(Path(file).name, file, config.frames), pairs[number % len(pairs)][0]
