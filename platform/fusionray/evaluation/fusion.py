"""The protocol of face fusion: fuse pairs of held-out people, let judges measure them, tell what they found."""

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
from fusionray.tracking import tracking_uri
from fusionray.training.config import DataConfig, RunConfig, TrackingConfig, TrainConfig
from fusionray.training.run.worker_group import choose_gpu
from fusionray.training.train import ensure_trained

NAME = "evaluate"
CPU = torch.device("cpu")


def evaluate_fusion(config: EvaluateConfig) -> EvaluateResult:
    """Judge a model on the connected Ray cluster; a judge that is named by its preset is trained first.

    Equal settings, model and shards give equal pairs and figures. What an earlier call wrote is replaced.

    Raises: ShardMismatch for shards of another size or template, or with nobody in the split; ValueError for a judge
        that supervised the model; any FusionRayError of its parts.
    """
    config = resolve_places(config)
    uri = tracking_uri(config.tracking_uri, config.runs or config.output)
    subject, facts = open_fusion_model(config.model, tracking_uri=uri, device=CPU, threads=None)
    manifest = read_manifest(config.data)
    check_shards(config.data, manifest, size=facts.size, template=facts.template)
    check_split(config.data, manifest, config.split)
    beside = describe_run(config, manifest, uri)
    config = train_evaluators(config, manifest, beside)
    evaluators, no_landmarks = resolve_evaluators(config, manifest)
    check_evaluators(config, evaluators, facts, subject)
    case = EvalRun(config, uri, facts, manifest, load_dataset(config, manifest), subject)
    clips = list(plan_clips(config.clips, case.material))
    verdict = measure(case, evaluators, clips, use_gpu=choose_gpu(beside))
    found = MissingContext(
        synthetic=manifest.synthetic,
        with_reader=evaluators.reader is not None,
        with_features=evaluators.features is not None,
        landmarks=no_landmarks,
        num_clips=len(clips),
    )
    table, measured = load_table(), verdict.summary
    figures = write_figures(
        Path(config.output),
        NAME,
        table.judge(measured.values, measured.intervals, config.goals),
        explain_missing(table, measured.values, found),
    )
    report = write_outcome(case, verdict, figures, table)
    return EvaluateResult(figures, Path(config.output), write_text(figures), report)


def measure(case: EvalRun, evaluators: EvaluatorPaths, clips: list[tuple[Clip, int]], *, use_gpu: bool) -> EvalSummary:
    """Let workers fuse and measure everything, and sum up what they found."""
    config = case.config
    order = EvalSpec(
        model=config.model,
        tracking_uri=case.tracking_uri,
        evaluators=evaluators,
        template=case.facts.template,
        size=case.facts.size,
        batch=config.batch,
        num_workers=config.workers.num_workers,
        threads=config.workers.threads,
        use_gpu=use_gpu,
    )
    pieces = list(divide(case.material, clips, config.batch))
    return sum_up(
        case.material,
        measure_pieces(order, pieces, config.workers),
        with_features=evaluators.features is not None,
        rounds=config.bootstrap_rounds,
        seed=config.seed,
    )


def resolve_places(config: EvaluateConfig) -> EvaluateConfig:
    """Make every place absolute, for workers have other working folders, and a run the checkpoint that is judged.

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
    """Describe the run beside which judges are trained: on these shards, by these workers."""
    return TrainConfig(
        run=RunConfig(output=config.runs or config.output),
        data=DataConfig(shards=config.data, size=manifest.size, template=manifest.template),
        recipe=find_family("identity").Config(),  # not trained: only what it shares with the judges counts
        workers=config.workers,
        tracking=TrackingConfig(uri=uri, experiment=config.experiment),
    )


def train_evaluators(config: EvaluateConfig, manifest: Manifest, beside: TrainConfig) -> EvaluateConfig:
    """Name every judge by its checkpoint; those that are named by a preset are trained first, or found trained."""
    # Photographs come without the attributes that readings are compared with.
    attributes = ensure_trained(beside, config.attributes) if config.attributes and manifest.synthetic else None
    return config.model_copy(update={"evaluator": ensure_trained(beside, config.evaluator), "attributes": attributes})


def resolve_evaluators(config: EvaluateConfig, manifest: Manifest) -> tuple[EvaluatorPaths, str]:
    """Say where the judges lie; and why the face mesh is not among them, empty if it is."""
    no_landmarks = ""
    try:
        CropLandmarks(load_template(manifest.template), manifest.size)
    except DetectorUnavailable as error:
        no_landmarks = str(error)
    return EvaluatorPaths(config.evaluator, config.attributes, config.features, not no_landmarks), no_landmarks


def check_evaluators(
    config: EvaluateConfig, places: EvaluatorPaths, facts: FusionModelInfo, subject: FusionModel
) -> None:
    """Refuse judges that cannot be used, before any worker starts; and an encoder that judges its own work.

    Raises: ValueError for a judge that supervised the model; CheckpointMissing, InputMissing.
    """
    judge = places.build(CPU, template=facts.template, size=facts.size).encoder
    known: list[Callable[[Tensor], Tensor]] = [subject.embed]
    if not is_bundle(config.model):
        # The encoder that feeds the generator need not be the one that watched it learn.
        known.append(load_encoder(config.model).build())
    if is_same(judge, known):
        raise ValueError(
            f"evaluator={config.evaluator}: is the encoder that supervised {config.model}, so its scores are not "
            "independent; use another one, such as evaluator=preset:identity-judge"
        )


def plan_clips(config: ClipsConfig, material: EvalDataset) -> Iterator[tuple[Clip, int]]:
    """Describe the clips to fuse, each with the crop that is its source; they follow the list of pairs."""
    pairs = material.plan.pairs.tolist()
    truth = material.crops.truth
    if truth:
        for number, (source, target) in enumerate(pairs[: config.number]):
            # The head moves as it is held in one picture of the list to how it is held in the next.
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
