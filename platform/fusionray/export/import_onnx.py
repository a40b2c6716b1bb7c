"""Import a face swapper from ONNX files made elsewhere as a bundle, after a trial run."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray import __version__
from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.bundle.description import (
    EMBEDDING_LENGTH,
    GENERATOR_NAME,
    IDENTITY_NAME,
    IDENTITY_SIZE,
    BundleDescription,
    EmbeddingRule,
    Lineage,
    TensorDescription,
)
from fusionray.errors import ModelRejected
from fusionray.export.import_layouts import EmbeddingOptions, ImportConfig, ValueRange, require
from fusionray.export.onnx_graphs import ImportedModel, find_matrix, normalizes_input, read_imported_model
from fusionray.export.port_roles import GeneratorPorts, Shape, find_encoder_ports, find_generator_ports
from fusionray.faces.align import load_template
from fusionray.onnx_errors import ONNX_ERRORS
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.pixels import normalize_crops
from fusionray.runtime.source_encoding import open_source_encoder

MATRIX_NAME = "source_matrix.npy"
CONVERTER_NAME = "source_converter.onnx"
MAX_MATRIX_BYTES = 64 * 1024**2
# Options with paths of this machine, which must not appear in a bundle.
PATH_OPTIONS: Any = {"output": True, "generator": True, "identity": True, "embedding": {"matrix", "converter"}}
# A graph with a fixed batch that it does not declare fails at one of these.
TRIAL_BATCHES = (1, 3)


@dataclass(frozen=True)
class SourceEncoding:
    """How a source is encoded: files to add, sha256 of the imported ones by name, tensors, and the embedding's rule."""

    files: dict[str, bytes]
    origins: dict[str, str]
    tensors: dict[str, TensorDescription]
    rule: EmbeddingRule


def import_model(config: ImportConfig) -> Bundle:
    """Import a face swapper with its identity encoder as a bundle; if the trial run fails, nothing is written.

    Raises: InputMissing, BundleInvalid; ModelRejected if an option is missing or a model does not fit.
    """
    licence = require(config.licence, "its licence", "--licence")
    template = require(config.template, "the template of its crops", "--template")
    target = require(config.target, "the value range of its target picture", "target.minimum=... target.maximum=...")
    for name in (template, config.source_template):
        if name is not None:
            load_template(name)
    generator = read_imported_model(config.generator)
    ports = find_generator_ports(generator, config)
    picture = len(ports.source_shape) == 4
    if picture and config.identity is not None:
        raise ModelRejected(
            f"{generator.path}: takes the source as a picture and needs no encoder; leave --identity out"
        )
    tensors = {GENERATOR_NAME: describe_generator(config, ports, target)}
    encoding = SourceEncoding({}, {}, {}, EmbeddingRule()) if picture else read_encoding(config, generator, ports)
    if encoding.tensors:
        tensors[IDENTITY_NAME] = encoding.tensors
    if picture:
        source_template = require(config.source_template, "the template of its source pictures", "source_template=...")
    else:
        source_template = config.source_template or "arcface_112"
    description = BundleDescription(
        name=config.name or make_name(generator.path),
        size=ports.size,
        template=template,
        identity_template=source_template,
        template_anchor=config.template_anchor,
        tensors=tensors,
        embedding=encoding.rule,
        licence=licence,
        lineage=Lineage(
            data_manifest="unknown",
            config={"import": config.model_dump(mode="json", exclude=PATH_OPTIONS)},
            code_version=__version__,
            imported={generator.path.name: generator.sha256, **encoding.origins},
        ),
    )
    files: dict[str, bytes] = {GENERATOR_NAME: generator.data, **encoding.files}
    with TemporaryDirectory(prefix="fusionray-import-") as temporary:
        run_trial(write_bundle(Path(temporary) / "bundle", files, description))
    return write_bundle(config.output, files, description)


def describe_generator(config: ImportConfig, ports: GeneratorPorts, target: ValueRange) -> dict[str, TensorDescription]:
    """Describe the generator's inputs and outputs by role."""
    batch = ports.batch or "N"
    picture: Shape = (batch, 3, ports.size, ports.size)
    produced = config.produced or target
    described = {
        "target": target.describe(picture, ports.target),
        "output": produced.describe(picture, ports.output),
    }
    source: Shape = (batch, *ports.source_shape[1:])
    if len(source) == 4:
        described["source"] = (config.source or target).describe(source, ports.source)
    else:
        described["source"] = TensorDescription(
            meaning="source", shape=source, minimum=-1.0, maximum=1.0, port=ports.source
        )
    if ports.mask is not None:
        low, high = config.mask
        described["mask"] = TensorDescription(
            meaning="mask", shape=(batch, 1, ports.size, ports.size), minimum=low, maximum=high, port=ports.mask
        )
    return described


def read_encoding(config: ImportConfig, generator: ImportedModel, ports: GeneratorPorts) -> SourceEncoding:
    """Read the identity encoder, and the matrix or converter of its embeddings.

    Raises: InputMissing, ModelRejected.
    """
    if config.identity is None:
        raise ModelRejected(f"{generator.path}: takes an embedding; name the ArcFace encoder with --identity FILE")
    encoder = read_imported_model(config.identity)
    found = find_encoder_ports(encoder)
    batch, length = found.batch or "N", found.length
    low, high = (0.0, 255.0) if normalizes_input(encoder.proto) else (-1.0, 1.0)
    default_range = ValueRange(minimum=low, maximum=high)
    shape: Shape = (batch, 3, IDENTITY_SIZE, IDENTITY_SIZE)
    tensors = {
        "input": (config.encoder or default_range).describe(shape, found.input),
        "source": TensorDescription(
            meaning="source", shape=(batch, length), minimum=-1.0, maximum=1.0, port=found.output
        ),
    }
    files, origins = {IDENTITY_NAME: encoder.data}, {encoder.path.name: encoder.sha256}
    options, wanted = config.embedding, ports.source_shape[1]
    if options.converter:
        if options.matrix not in ("auto", "none"):
            raise ModelRejected("embedding.matrix and embedding.converter exclude each other; name one of them")
        converter = read_imported_model(options.converter)
        files[CONVERTER_NAME], origins[converter.path.name] = converter.data, converter.sha256
        rule = EmbeddingRule(
            unit_before=options.unit_before, converter=CONVERTER_NAME, unit_after=bool(options.unit_after)
        )
        return SourceEncoding(files, origins, tensors, rule)
    matrix = choose_matrix(options, generator, int(wanted))
    if matrix is None:
        if length != wanted:
            raise ModelRejected(
                f"{encoder.path}: gives {length} values and {generator.path} takes {wanted}; name the encoder that it "
                "was trained with, or set embedding.matrix=FILE or embedding.converter=FILE"
            )
        rule = EmbeddingRule(unit_before=options.unit_before, unit_after=bool(options.unit_after))
        return SourceEncoding(files, origins, tensors, rule)
    buffer = io.BytesIO()
    np.save(buffer, matrix, allow_pickle=False)
    files[MATRIX_NAME] = buffer.getvalue()
    unit_after = True if options.unit_after is None else options.unit_after
    rule = EmbeddingRule(unit_before=options.unit_before, matrix=MATRIX_NAME, unit_after=unit_after)
    return SourceEncoding(files, origins, tensors, rule)


def choose_matrix(options: EmbeddingOptions, generator: ImportedModel, length: int) -> NDArray[np.float32] | None:
    """Return the matrix float32 [512,L] that the options name, or an unused one of the generator; None without any.

    Raises: ModelRejected if the named file is not such a matrix.
    """
    if options.matrix == "none":
        return None
    if options.matrix == "auto":
        return find_matrix(generator.proto, length)
    path = Path(options.matrix).expanduser()
    try:
        if path.stat().st_size > MAX_MATRIX_BYTES:
            raise ModelRejected(f"{path}: is larger than {MAX_MATRIX_BYTES} bytes, too large for embedding.matrix")
        matrix = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ModelRejected(f"{path}: is not a matrix ({error}); embedding.matrix takes a .npy file") from None
    if not isinstance(matrix, np.ndarray) or matrix.shape != (EMBEDDING_LENGTH, length):
        found = list(getattr(matrix, "shape", ()))
        raise ModelRejected(
            f"{path}: is {found}, not [{EMBEDDING_LENGTH}, {length}]; name another file as embedding.matrix"
        )
    return np.ascontiguousarray(matrix, np.float32)


def run_trial(bundle: Bundle) -> None:
    """Run the models on noise, as the runtime runs them.

    Raises: ModelRejected if an output has the wrong shape or is not finite; BundleInvalid if the models do not load.
    """
    settings = RuntimeConfig(providers=(CPU,))
    random = np.random.default_rng(0)
    encoder, fuser = open_source_encoder(bundle, settings), CropFuser(bundle, settings)
    for count in TRIAL_BATCHES:
        sources = encoder.encode_crops(draw_pixels(random, count, encoder.size))
        if sources.shape != (count, *bundle.source_shape) or not np.isfinite(sources).all():
            raise ModelRejected(
                f"{IDENTITY_NAME}: gives {list(sources.shape)} for {count} face(s), not finite numbers of the shape "
                f"{[count, *bundle.source_shape]}; name the encoder or converter that the generator was trained with"
            )
        targets = normalize_crops(draw_pixels(random, count, fuser.size), fuser.described["target"])
        try:
            found = fuser.forward(sources, targets)
        except ONNX_ERRORS as error:
            raise ModelRejected(f"{GENERATOR_NAME}: did not run ({' '.join(str(error).split())[:200]})") from None
        check_trial(bundle, found, count)


def check_trial(bundle: Bundle, found: Mapping[str, NDArray[np.float32]], count: int) -> None:
    """Check the generator's outputs for `count` faces.

    Raises: ModelRejected if one has the wrong shape or is not finite.
    """
    for role, values in found.items():
        wanted = (count, *bundle.tensor(GENERATOR_NAME, role).shape[1:])
        if values.shape != wanted or not np.isfinite(values).all():
            raise ModelRejected(
                f"{GENERATOR_NAME}: its {role} is {list(values.shape)} or not finite, not numbers of the shape "
                f"{list(wanted)}; name the outputs with ports.output=... ports.mask=..."
            )


def draw_pixels(random: np.random.Generator, count: int, size: int) -> NDArray[np.uint8]:
    return random.integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def make_name(path: Path) -> str:
    """Make a valid bundle name from the name of a file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")[:128]
    return name or "imported"
