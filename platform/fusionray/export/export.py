"""From a trained checkpoint to a checked bundle: torch -> ONNX, parity gate, description, registry."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray import __version__
from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import (
    GENERATOR_NAME,
    IDENTITY_NAME,
    BundleDescription,
    Lineage,
    Parity,
    Precision,
    Variant,
    describe_tensors,
)
from fusionray.checkpoint.models import TrainedFusion, load_fusion
from fusionray.config import Section
from fusionray.errors import ParityFailed
from fusionray.export.calibration_data import draw_calibration_data
from fusionray.export.variants import Gates, build_variant
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IDENTITY_SIZE
from fusionray.tracking import register_bundle

OPSET = 20
# Two batch sizes, neither the one that was traced: a graph that froze its batch fails here, not in serving.
PARITY_BATCHES = (1, 3)


class ExportConfig(Section):
    """What is exported, and under which name."""

    checkpoint: str = Field(description="checkpoint or run folder of a face-fusion run")
    output: str = Field(description="folder of the bundle")
    name: str | None = Field(None, description="name of the model; default: the name of its run")
    precisions: tuple[Precision, ...] = Field(("fp32",), description="generators besides the float32 one: fp16, int8")
    shards: str | None = Field(None, description="crops to calibrate and judge variants by; default: those of the run")
    gates: Gates = Field(Gates(), description="what a variant has to reach to be exported")
    tolerance: float = Field(1e-3, gt=0, description="largest difference allowed between torch and ONNX outputs")
    licence: str = Field("unspecified", description="licence of the weights, as an SPDX identifier where there is one")
    tracking_uri: str | None = Field(None, description="MLflow store to register in")
    tracking_run: str | None = Field(None, description="MLflow run that the bundle is stored with")
    alias: str = Field("candidate", description="registry alias that is moved to the new version")


def export(config: ExportConfig) -> Bundle:
    """Export a checkpoint as a bundle; nothing is left behind when the parity gate refuses it.

    Raises: CheckpointMissing, ParityFailed, BundleInvalid.
    """
    trained = load_fusion(config.checkpoint)
    size, length = trained.generator.config.size, trained.generator.config.source_length
    random = np.random.default_rng(0)
    with TemporaryDirectory(prefix="fusionray-export-") as temporary:
        files = {name: Path(temporary) / name for name in (GENERATOR_NAME, IDENTITY_NAME)}
        write_onnx(
            trained.generator,
            (source_rows(random, 2, length), picture_rows(random, 2, size)),
            files[GENERATOR_NAME],
            inputs=("source", "target"),
            outputs=("output", "mask"),
        )
        write_onnx(
            trained.reader,
            (picture_rows(random, 2, IDENTITY_SIZE),),
            files[IDENTITY_NAME],
            inputs=("input",),
            outputs=("source",),
        )
        difference = 0.0
        for batch in PARITY_BATCHES:
            pair = (source_rows(random, batch, length), picture_rows(random, batch, size))
            face = (picture_rows(random, batch, IDENTITY_SIZE),)
            for module, path, example in (
                (trained.generator, files[GENERATOR_NAME], pair),
                (trained.reader, files[IDENTITY_NAME], face),
            ):
                difference = max(difference, largest_difference(module, path, example))
        if not difference <= config.tolerance:
            raise ParityFailed(
                f"{config.checkpoint}: ONNX and torch differ by {difference:.2e}, more than "
                f"tolerance={config.tolerance:g}; nothing was exported"
            )
        variants = build_variants(config, trained, files)
        bundle = write_bundle(config.output, files, describe(config, trained, difference, variants))
    if config.tracking_uri and config.tracking_run:
        name = bundle.description.name
        register_bundle(config.tracking_uri, bundle.folder, name, config.alias, config.tracking_run)
    return bundle


def build_variants(config: ExportConfig, trained: TrainedFusion, files: dict[str, Path]) -> dict[Precision, Variant]:
    """Write the variants that are asked for beside the generator, and add them to the files.

    Raises: ParityFailed, ShardMismatch, ShardCorrupt, InputMissing.
    """
    wanted = [precision for precision in dict.fromkeys(config.precisions) if precision != "fp32"]
    if not wanted:
        return {}
    generator, specimens = files[GENERATOR_NAME], draw_calibration_data(trained, config.shards)
    variants: dict[Precision, Variant] = {}
    for precision in wanted:
        gate = config.gates.int8 if precision == "int8" else config.gates.fp16
        path, variants[precision] = build_variant(precision, generator, generator.parent, specimens, gate)
        files[path.name] = path
    return variants


def describe(
    config: ExportConfig, trained: TrainedFusion, difference: float, variants: dict[Precision, Variant]
) -> BundleDescription:
    """Say what the bundle is and where it comes from."""
    return BundleDescription(
        name=config.name or trained.config.run.name,
        size=trained.generator.config.size,
        template=trained.config.data.template,
        tensors=describe_tensors(
            trained.generator.config.size, -1.0, 1.0, source_length=trained.generator.config.source_length
        ),
        licence=config.licence,
        lineage=Lineage(
            data_manifest=trained.info.data_digest,
            config=trained.info.config,
            code_version=__version__,
            metrics={key: value for key, value in trained.info.metrics.items() if np.isfinite(value)},
        ),
        parity=Parity(tolerance=config.tolerance, largest_difference=difference),
        variants=variants,
    )


def write_onnx(
    module: nn.Module, example: tuple[Tensor, ...], path: Path, *, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Export a module with a dynamic batch; weights lie inside the file."""
    batch = torch.export.Dim("N", min=1, max=4096)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # The exporter tells its steps on stdout and warns about its own internals: neither helps the user.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple({0: batch} for _ in example),
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=False)


def largest_difference(module: nn.Module, path: Path, example: tuple[Tensor, ...]) -> float:
    """Run torch and ONNX Runtime on one input; return the largest absolute difference over all outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, example, strict=True)})
    with torch.no_grad():
        expected = module(*example)
    expected = expected if isinstance(expected, tuple) else (expected,)
    differences = [np.abs(a - b.numpy()).max() for a, b in zip(found, expected, strict=True)]
    return float(max(differences))


def source_rows(random: np.random.Generator, count: int, length: int) -> Tensor:
    rows = torch.from_numpy(random.standard_normal((count, length), np.float32))
    embedding, tokens = rows[:, :EMBEDDING_LENGTH], rows[:, EMBEDDING_LENGTH:]
    return torch.cat([F.normalize(embedding), tokens.tanh()], dim=1)


def picture_rows(random: np.random.Generator, count: int, size: int) -> Tensor:
    return torch.from_numpy(random.uniform(-1, 1, (count, 3, size, size)).astype(np.float32))
