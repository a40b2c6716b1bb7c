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
from fusionray.evaluation.distributed import measure_pieces
from fusionray.evaluation.fusion_model import FusionModelInfo, is_bundle, open_fusion_model, resolve_model
from fusionray.evaluation.outcome import EvaluateResult
from fusionray.evaluation.report.documents import write_text
from fusionray.evaluation.report.figures import write_figures
from fusionray.evaluation.report.goals import load_table
from fusionray.evaluation.report.missing import MissingContext, explain_missing
from fusionray.evaluation.report.output import EvalRun, write_outcome
from fusionray.evaluation.report.summary import EvalSummary, sum_up
from fusionray.evaluation.workload import EvalSpec, divide
from fusionray.faces.align import load_template
from fusionray.metrics.feature_network import is_same
from fusionray.metrics.landmarks import CropLandmarks
from fusionray.metrics.measure import FusionModel
from fusionray.recipes.registry import find_family
from fusionray.tracking.store import tracking_uri
from fusionray.training.config import DataConfig, RunConfig, TrackingConfig, TrainConfig
from fusionray.training.run.worker_group import choose_gpu
from fusionray.training.train import ensure_trained

NAME = "evaluate"
CPU = torch.device("cpu")


def evaluate_fusion(config: EvaluateConfig) -> EvaluateResult:
    """Evaluate a model on the connected Ray cluster; evaluators that are named by a preset are trained first.

    Equal settings, model and shards give equal pairs and figures. Results of an earlier call are replaced.

    Raises: ShardMismatch for shards of another size or template, or an empty split; ValueError for an evaluator that
        supervised the model; any FusionRayError of its parts.
    """
    config = resolve_places(config)
    uri = tracking_uri(config.tracking_uri, config.runs or config.output)
    model, facts = open_fusion_model(config.model, tracking_uri=uri, device=CPU, threads=None)
    manifest = read_manifest(config.data)
    check_shards(config.data, manifest, size=facts.size, template=facts.template)
    check_split(config.data, manifest, config.split)
    dependency_run = describe_run(config, manifest, uri)
    config = train_evaluators(config, manifest, dependency_run)
    evaluators, no_landmarks = resolve_evaluators(config, manifest)
    check_evaluators(config, evaluators, facts, model)
    eval_run = EvalRun(config, uri, facts, manifest, load_dataset(config, manifest), model)
    clips = list(plan_clips(config.clips, eval_run.dataset))
    summary = measure(eval_run, evaluators, clips, use_gpu=choose_gpu(dependency_run))
    found = MissingContext(
        synthetic=manifest.synthetic,
        with_reader=evaluators.reader is not None,
        with_features=evaluators.features is not None,
        landmarks=no_landmarks,
        num_clips=len(clips),
    )
    table, measured = load_table(), summary.summary
    figures = write_figures(
        Path(config.output),
        NAME,
        table.check_goals(measured.values, measured.intervals, config.goals),
        explain_missing(table, measured.values, found),
    )
    report = write_outcome(eval_run, summary, figures, table)
    return EvaluateResult(figures, Path(config.output), write_text(figures), report)


def measure(
    eval_run: EvalRun, evaluators: EvaluatorPaths, clips: list[tuple[Clip, int]], *, use_gpu: bool
) -> EvalSummary:
    """Fuse and measure all pieces on the workers, and summarise the columns."""
    config = eval_run.config
    spec = EvalSpec(
        model=config.model,
        tracking_uri=eval_run.tracking_uri,
        evaluators=evaluators,
        template=eval_run.facts.template,
        size=eval_run.facts.size,
        batch=config.batch,
        num_workers=config.workers.num_workers,
        threads=config.workers.threads,
        use_gpu=use_gpu,
    )
    pieces = list(divide(eval_run.dataset, clips, config.batch))
    return sum_up(
        eval_run.dataset,
        measure_pieces(spec, pieces, config.workers),
        with_features=evaluators.features is not None,
        rounds=config.bootstrap_rounds,
        seed=config.seed,
    )


def resolve_places(config: EvaluateConfig) -> EvaluateConfig:
    """Make every path absolute, since workers have other working folders, and replace a run by its checkpoint.

    Raises: CheckpointMissing.
    """
    features = config.features
    if features is not None:
        features = features.model_copy(update={"file": resolve_location(features.file)})
    clips = config.clips.model_copy(update={"files": tuple(map(resolve_location, config.clips.files))})
    return config.model_copy(
        update={
            "model": resolve_model(config.model),
            "data": resolve_location(config.data),
            "output": resolve_location(config.output),
            "runs": None if config.runs is None else resolve_location(config.runs),
            "features": features,
            "clips": clips,
        }
    )


def describe_run(config: EvaluateConfig, manifest: Manifest, uri: str) -> TrainConfig:
    """Return a configuration from which the runs of the evaluators take shards, output and workers."""
    return TrainConfig(
        run=RunConfig(output=config.runs or config.output),
        data=DataConfig(shards=config.data, size=manifest.size, template=manifest.template),
        recipe=find_family("identity").Config(),  # not trained: the evaluators only take the other sections
        workers=config.workers,
        tracking=TrackingConfig(uri=uri, experiment=config.experiment),
    )


def train_evaluators(config: EvaluateConfig, manifest: Manifest, dependency_run: TrainConfig) -> EvaluateConfig:
    """Replace evaluators by the paths of their checkpoints; untrained presets are trained first."""
    # Photographs have no true attributes to compare readings with.
    attributes = ensure_trained(dependency_run, config.attributes) if config.attributes and manifest.synthetic else None
    return config.model_copy(
        update={"evaluator": ensure_trained(dependency_run, config.evaluator), "attributes": attributes}
    )


def resolve_evaluators(config: EvaluateConfig, manifest: Manifest) -> tuple[EvaluatorPaths, str]:
    """Return the paths of the evaluators; and why the face mesh is unavailable, empty if it is available."""
    no_landmarks = ""
    try:
        CropLandmarks(load_template(manifest.template), manifest.size)
    except DetectorUnavailable as error:
        no_landmarks = str(error)
    return EvaluatorPaths(config.evaluator, config.attributes, config.features, not no_landmarks), no_landmarks


def check_evaluators(
    config: EvaluateConfig, places: EvaluatorPaths, facts: FusionModelInfo, model: FusionModel
) -> None:
    """Check the evaluators before any worker starts; none may have supervised the model.

    Raises: ValueError for an evaluator that supervised the model; CheckpointMissing, InputMissing.
    """
    encoder = places.build(CPU, template=facts.template, size=facts.size).encoder
    known: list[Callable[[Tensor], Tensor]] = [model.embed]
    if not is_bundle(config.model):
        # The encoder of the generator's input may differ from the one that supervised the training.
        known.append(load_encoder(config.model).build())
    if is_same(encoder, known):
        raise ValueError(
            f"evaluator={config.evaluator}: is the encoder that supervised {config.model}, so its scores are not "
            "independent; use another one, such as evaluator=preset:identity-judge"
        )


def plan_clips(config: ClipsConfig, dataset: EvalDataset) -> Iterator[tuple[Clip, int]]:
    """Yield the clips to fuse, each with the index of its source crop; both follow from the list of pairs."""
    pairs = dataset.plan.pairs.tolist()
    truth = dataset.crops.truth
    if truth:
        for number, (source, target) in enumerate(pairs[: config.number]):
            # The head moves from its pose in one picture of the list to that in the next.
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
