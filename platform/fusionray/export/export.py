"""Export a checkpoint as a bundle: write ONNX, compare it with torch, describe it, register it."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import onnx
import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray import __version__
from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import GENERATOR_NAME, BundleDescription, Lineage, Parity, Variant, WeightPrecision
from fusionray.checkpoint.info import CheckpointInfo, find_checkpoint, read_info
from fusionray.checkpoint.models import StoredConfig, read_stored_config
from fusionray.config import Section, hide_passwords, in_unit
from fusionray.errors import ParityFailed
from fusionray.export.calibration_data import draw_calibration_data
from fusionray.export.face_parser import add_parser
from fusionray.export.onnx_graphs import remove_metadata
from fusionray.export.variants import Gates, build_variant
from fusionray.recipes.bundle_export import BundleExport, GraphExport
from fusionray.recipes.registry import find_family
from fusionray.tracking.bundles import register_bundle

OPSET = 20
# Neither is the traced batch size, so that a graph with a fixed batch fails here, not in serving.
PARITY_BATCHES = (1, 3)
# /a/b, ~/a, file:///a/b, sqlite:////a/b.
ABSOLUTE_PATH = re.compile(r"(?P<scheme>file://|sqlite:///)?(?P<path>[/~].*)")


class ExportConfig(Section):
    """Settings of an export: checkpoint, output folder, name, precisions, quality gates, registry."""

    listed_by: ClassVar[str] = "fusionray export --settings"

    checkpoint: str = Field(description="Checkpoint or run folder.")
    output: str = Field(description="Folder of the bundle.")
    name: str | None = Field(None, description="Name of the model; null: the name of its run.")
    precisions: tuple[WeightPrecision, ...] = Field(
        ("fp32",), description="Generators to write: fp32 is always written, fp16 and int8 on request."
    )
    parser: str | None = Field(
        None,
        description="Run or checkpoint of a face parser (preset face-parser), by which a fusion carries the source's "
        "skin over forehead, ears and neck; null: none.",
    )
    shards: str | None = Field(
        None, description="Shards whose crops calibrate and test fp16 and int8; null: those of the run."
    )
    gates: Gates = Field(Gates(), description="Quality gates of the smaller generators.")
    tolerance: float = Field(
        1e-3,
        gt=0,
        description="Largest difference allowed between the torch and the ONNX outputs.",
        json_schema_extra=in_unit(""),
    )
    licence: str = Field("unspecified", description="Licence of the weights, as an SPDX identifier if there is one.")
    tracking_uri: str | None = Field(None, description="MLflow store to register the bundle in; null: not registered.")
    tracking_run: str | None = Field(None, description="MLflow run that the bundle is stored with.")
    alias: str = Field("candidate", description="Registry alias that is moved to the new version.")


def export(config: ExportConfig) -> Bundle:
    """Export a checkpoint as a bundle; if ONNX and torch differ, nothing is written.

    Raises: ConfigInvalid if the recipe has nothing to export, or no use for a parser; CheckpointMissing, ParityFailed,
        BundleInvalid.
    """
    trained = open_trained(config.checkpoint)
    if config.parser is not None:
        trained = replace(trained, bundle_export=add_parser(trained.bundle_export, config.parser))
    graphs = trained.bundle_export.graphs
    random = np.random.default_rng(0)
    with TemporaryDirectory(prefix="fusionray-export-") as temporary:
        files = write_graphs(graphs, random, Path(temporary))
        differences = [
            largest_difference(graph.module, files[graph.file], graph.draw(random, batch))
            for batch in PARITY_BATCHES
            for graph in graphs
        ]
        # Unlike `max`, it keeps NaN, which no tolerance allows.
        difference = float(np.max(differences))
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


@dataclass(frozen=True)
class TrainedModel:
    """A checkpoint's information and configuration, and the graphs that its recipe family exports."""

    info: CheckpointInfo
    config: StoredConfig
    bundle_export: BundleExport


def open_trained(location: str) -> TrainedModel:
    """Load the networks of a checkpoint or run folder as graphs to export.

    Raises: ConfigInvalid if the recipe family exports none; CheckpointMissing.
    """
    folder = find_checkpoint(location)
    info = read_info(folder)
    config = read_stored_config(folder, info)
    return TrainedModel(info, config, find_family(config.recipe.name).export(folder))


def write_graphs(graphs: Sequence[GraphExport], random: np.random.Generator, folder: Path) -> dict[str, Path]:
    """Write every graph as ONNX into a folder; return the paths by file name."""
    files = {graph.file: folder / graph.file for graph in graphs}
    for graph in graphs:
        example = graph.draw(random, 2)
        write_onnx(
            graph.module,
            example,
            files[graph.file],
            inputs=graph.inputs,
            outputs=graph.outputs,
            any_size=graph.any_size,
        )
    return files


def build_variants(
    config: ExportConfig, trained: TrainedModel, files: dict[str, Path]
) -> dict[WeightPrecision, Variant]:
    """Write the requested quantized variants to the folder of the generator, and add them to `files`.

    Raises: ConfigInvalid if the family defines no inputs to measure them on; ParityFailed, ShardMismatch, ShardCorrupt,
        InputMissing.
    """
    wanted = [precision for precision in dict.fromkeys(config.precisions) if precision != "fp32"]
    if not wanted:
        return {}
    generator = files[GENERATOR_NAME]
    calibration_data = draw_calibration_data(trained.bundle_export, trained.config.data, config.shards)
    variants: dict[WeightPrecision, Variant] = {}
    for precision in wanted:
        gate = config.gates.int8 if precision == "int8" else config.gates.fp16
        path, variants[precision] = build_variant(precision, generator, generator.parent, calibration_data, gate)
        files[path.name] = path
    return variants


def describe(
    config: ExportConfig, trained: TrainedModel, difference: float, variants: dict[WeightPrecision, Variant]
) -> BundleDescription:
    """Build the description of the bundle, without the hashes of its files."""
    return BundleDescription(
        task=trained.bundle_export.task,
        name=config.name or trained.config.run.name,
        **trained.bundle_export.description,
        licence=config.licence,
        lineage=Lineage(
            data_manifest=trained.info.data_digest,
            config=shorten_paths(trained.info.config),
            code_version=__version__,
            metrics={key: value for key, value in trained.info.metrics.items() if np.isfinite(value)},
        ),
        parity=Parity(tolerance=config.tolerance, largest_difference=difference),
        variants=variants,
    )


def shorten_paths(value: Any) -> Any:
    """Reduce absolute paths in a configuration to their last name: a bundle names no folder of a machine.

    Older checkpoints may name the user of a tracking server, too.
    """
    if isinstance(value, Mapping):
        return {key: shorten_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shorten_paths(item) for item in value]
    if isinstance(value, str) and (path := ABSOLUTE_PATH.fullmatch(value)):
        return f"{path['scheme'] or ''}{PurePosixPath(path['path']).name}"
    return hide_passwords(value)


def write_onnx(
    module: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    any_size: Mapping[str, int] | None = None,
) -> None:
    """Export a module with a dynamic batch to one ONNX file, weights included, without traces of this checkout.

    `any_size`: as in `GraphExport`.

    Equal modules give equal bytes on every machine: the exporter's source paths and stack traces are removed.
    """
    batch = torch.export.Dim("N", min=1, max=4096)
    shapes: list[dict[int, Any]] = [{0: batch} for _ in example]
    for name, step in (any_size or {}).items():
        sides = (torch.export.Dim(f"{name}_{side}", min=2, max=65536 // step) for side in ("rows", "columns"))
        shapes[list(inputs).index(name)] |= {2 + axis: step * side for axis, side in enumerate(sides)}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # The exporter prints its progress and warns about its internals; neither helps the user.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple(shapes),
            verbose=False,
        )
        assert program is not None
        model = program.model_proto
    remove_metadata(model)
    onnx.save_model(model, path)


def largest_difference(module: nn.Module, path: Path, example: tuple[Tensor, ...]) -> float:
    """Run torch and ONNX Runtime on the same inputs; return the largest absolute difference over all outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, example, strict=True)})
    with torch.no_grad():
        expected = module(*example)
    expected = expected if isinstance(expected, tuple) else (expected,)
    differences = [np.abs(a - b.numpy()).max() for a, b in zip(found, expected, strict=True)]
    return float(np.max(differences))
