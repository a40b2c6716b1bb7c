"""A face swapper that was made elsewhere becomes a bundle: read, understood, tried, written."""

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
from fusionray.export.import_layouts import EmbeddingOptions, ImportConfig, Levels, require
from fusionray.export.onnx_graphs import ImportedModel, find_matrix, prepares_pixels, read_imported_model
from fusionray.export.port_roles import RUN_ERRORS, GeneratorPorts, Shape, find_generator_ports, probe_identity
from fusionray.faces.align import load_template
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.pixels import normalize_crops
from fusionray.runtime.session import CPU
from fusionray.runtime.source_encoding import open_source_encoder

MATRIX_NAME = "source_matrix.npy"
CONVERTER_NAME = "source_converter.onnx"
MAX_MATRIX_BYTES = 64 * 1024**2
# Options with paths of this machine, which must not appear in a bundle.
PLACES: Any = {"output": True, "generator": True, "identity": True, "embedding": {"matrix", "converter"}}
# Neither is what a graph with a frozen batch was made for, unless it says so.
TRIAL_BATCHES = (1, 3)


@dataclass(frozen=True)
class Encoding:
    """How a source is read: the files that it needs, their origins, its tensors and the rule for its embedding."""

    files: dict[str, bytes]
    origins: dict[str, str]
    tensors: dict[str, TensorDescription]
    rule: EmbeddingRule


def import_model(config: ImportConfig) -> Bundle:
    """Import a face swapper with its identity encoder as a bundle; nothing is left behind when it does not run.

    Raises: InputMissing, ModelRejected naming the option that is missing, BundleInvalid.
    """
    licence = require(config.licence, "its licence", "--licence")
    template = require(config.template, "the template of its crops", "--template")
    target = require(config.target, "the values of its target picture", "target.minimum=... target.maximum=...")
    for name in (template, config.source_template):
        if name is not None:
            load_template(name)
    generator = read_imported_model(config.generator)
    ports = find_generator_ports(generator, config)
    picture = len(ports.source_shape) == 4
    if picture and config.identity is not None:
        raise ModelRejected(
            f"{generator.path}: sees the source as a picture and needs no encoder; leave --identity out"
        )
    tensors = {GENERATOR_NAME: describe_generator(config, ports, target)}
    encoding = Encoding({}, {}, {}, EmbeddingRule()) if picture else read_encoding(config, generator, ports)
    if encoding.tensors:
        tensors[IDENTITY_NAME] = encoding.tensors
    if picture:
        cut_at = require(config.source_template, "the template of its source pictures", "source_template=...")
    else:
        cut_at = config.source_template or "arcface_112"
    description = BundleDescription(
        name=config.name or make_name(generator.path),
        size=ports.size,
        template=template,
        identity_template=cut_at,
        tensors=tensors,
        embedding=encoding.rule,
        licence=licence,
        lineage=Lineage(
            data_manifest="unknown",
            config={"import": config.model_dump(mode="json", exclude=PLACES)},
            code_version=__version__,
            imported={generator.path.name: generator.sha256, **encoding.origins},
        ),
    )
    files: dict[str, bytes] = {GENERATOR_NAME: generator.data, **encoding.files}
    with TemporaryDirectory(prefix="fusionray-import-") as temporary:
        try_bundle(write_bundle(Path(temporary) / "bundle", files, description))
    return write_bundle(config.output, files, description)


def describe_generator(config: ImportConfig, ports: GeneratorPorts, target: Levels) -> dict[str, TensorDescription]:
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


def read_encoding(config: ImportConfig, generator: ImportedModel, ports: GeneratorPorts) -> Encoding:
    """Read the encoder, and the matrix or converter that its embeddings go through.

    Raises: InputMissing, ModelRejected.
    """
    if config.identity is None:
        raise ModelRejected(f"{generator.path}: takes an embedding; name the ArcFace encoder with --identity FILE")
    encoder = read_imported_model(config.identity)
    batch, input_port, output_port, length = probe_identity(encoder)
    grey_levels = (
        Levels(minimum=0.0, maximum=255.0) if prepares_pixels(encoder.proto) else Levels(minimum=-1.0, maximum=1.0)
    )
    shape: Shape = (batch or "N", 3, IDENTITY_SIZE, IDENTITY_SIZE)
    tensors = {
        "input": (config.encoder or grey_levels).describe(shape, input_port),
        "source": TensorDescription(
            meaning="source", shape=(batch or "N", length), minimum=-1.0, maximum=1.0, port=output_port
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
        return Encoding(files, origins, tensors, rule)
    matrix = choose_matrix(options, generator, int(wanted))
    if matrix is None:
        if length != wanted:
            raise ModelRejected(
                f"{encoder.path}: gives {length} values and {generator.path} takes {wanted}; bring the encoder that "
                "belongs to it, or say embedding.matrix=FILE or embedding.converter=FILE"
            )
        rule = EmbeddingRule(unit_before=options.unit_before, unit_after=bool(options.unit_after))
        return Encoding(files, origins, tensors, rule)
    buffer = io.BytesIO()
    np.save(buffer, matrix, allow_pickle=False)
    files[MATRIX_NAME] = buffer.getvalue()
    unit_after = True if options.unit_after is None else options.unit_after
    rule = EmbeddingRule(unit_before=options.unit_before, matrix=MATRIX_NAME, unit_after=unit_after)
    return Encoding(files, origins, tensors, rule)


def choose_matrix(options: EmbeddingOptions, generator: ImportedModel, length: int) -> NDArray[np.float32] | None:
    """Give the matrix that the options name, or that the generator carries unused.

    Raises: ModelRejected if the file that was named holds none.
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
            f"{path}: is {found}, not [{EMBEDDING_LENGTH}, {length}]; embedding.matrix needs another one"
        )
    return np.ascontiguousarray(matrix, np.float32)


def try_bundle(bundle: Bundle) -> None:
    """Run the models as the runtime will, on noise.

    Raises: ModelRejected if what they give cannot be faces; BundleInvalid if they do not run.
    """
    settings = RuntimeConfig(providers=(CPU,))
    random = np.random.default_rng(0)
    encoder, fuser = open_source_encoder(bundle, settings), CropFuser(bundle, settings)
    for count in TRIAL_BATCHES:
        sources = encoder.encode_crops(draw_pixels(random, count, encoder.size))
        if sources.shape != (count, *bundle.source_shape) or not np.isfinite(sources).all():
            raise ModelRejected(
                f"{IDENTITY_NAME}: gives {list(sources.shape)} for {count} face(s), not numbers of the shape "
                f"{[count, *bundle.source_shape]}; bring the encoder or converter that belongs to the generator"
            )
        targets = normalize_crops(draw_pixels(random, count, fuser.size), fuser.described["target"])
        try:
            found = fuser.forward(sources, targets)
        except RUN_ERRORS as error:
            raise ModelRejected(f"{GENERATOR_NAME}: did not run ({' '.join(str(error).split())[:200]})") from None
        check_trial(bundle, found, count)


def check_trial(bundle: Bundle, found: Mapping[str, NDArray[np.float32]], count: int) -> None:
    """Check what the generator gave.

    Raises: ModelRejected.
    """
    for role, values in found.items():
        wanted = (count, *bundle.tensor(GENERATOR_NAME, role).shape[1:])
        if values.shape != wanted or not np.isfinite(values).all():
            raise ModelRejected(
                f"{GENERATOR_NAME}: its {role} is {list(values.shape)} or not finite, not numbers of the shape "
                f"{list(wanted)}; say which output is which with ports.output=... ports.mask=..."
            )


def draw_pixels(random: np.random.Generator, count: int, size: int) -> NDArray[np.uint8]:
    return random.integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def make_name(path: Path) -> str:
    """Make a name that a bundle may have out of that of a file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")[:128]
    return name or "imported"
