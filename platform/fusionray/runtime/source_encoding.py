"""Encode crops of source faces into the `source` input of a generator: a converted embedding, or the crop itself.

N faces, s size of a source crop, E length of an embedding, L length of an encoded source.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, GENERATOR_NAME, IDENTITY_NAME, IDENTITY_SIZE
from fusionray.errors import BundleInvalid
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import InferenceEngine
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.engines.fixed_batches import run_batches
from fusionray.runtime.engines.signature import check_identity, fixed_batch
from fusionray.runtime.pixels import FloatArray, normalize_crops

MAX_BATCH = 8


class SourceCropEncoder(Protocol):
    """Encodes crops of source faces; `size` is their side s in pixels."""

    size: int

    def encode_crops(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Encode uint8 RGB crops [N,s,s,3] to float32 [N,L] or [N,3,s,s]."""
        ...


def open_source_encoder(bundle: Bundle, settings: RuntimeConfig | None = None) -> SourceCropEncoder:
    """Open the encoder of sources for the generator of a bundle.

    Raises: BundleInvalid if a model or matrix differs from its description; ProviderUnavailable.
    """
    if bundle.description.source_is_picture:
        return PictureSourceEncoder(bundle)
    return EmbeddingSourceEncoder(bundle, settings)


class PictureSourceEncoder:
    """Passes the crop on, in the value range of the generator.

    Raises: BundleInvalid if the bundle does not describe a square picture.
    """

    def __init__(self, bundle: Bundle) -> None:
        shape = bundle.source_shape
        if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
            raise BundleInvalid(f"{bundle.folder}: 'source' of {GENERATOR_NAME} is {list(shape)}, not [3, s, s]")
        self.size = shape[1]
        self.described = bundle.tensor(GENERATOR_NAME, "source")

    def encode_crops(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Convert uint8 RGB crops [N,s,s,3] to float32 [N,3,s,s]."""
        return normalize_crops(crops_NSS3, self.described)


class EmbeddingSourceEncoder:
    """Runs the identity encoder, and converts its embedding as the bundle's `embedding` rule says.

    Raises: BundleInvalid if a model or matrix differs from its description; ProviderUnavailable.
    """

    size = IDENTITY_SIZE

    def __init__(self, bundle: Bundle, settings: RuntimeConfig | None = None) -> None:
        self.engine = open_engine(bundle.identity_path, settings, digest=bundle.description.files[IDENTITY_NAME])
        check_identity(bundle, self.engine)
        self.crop_range = bundle.tensor(IDENTITY_NAME, "input")
        self.input = bundle.port(IDENTITY_NAME, "input")
        self.output = bundle.port(IDENTITY_NAME, "source")
        self.batch = fixed_batch(bundle, IDENTITY_NAME)
        self.length = bundle.source_length
        self.rule = bundle.description.embedding
        self.matrix_EL = load_matrix(bundle) if self.rule.matrix else None
        self.converter = open_converter(bundle, settings) if self.rule.converter else None

    def encode_crops(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Encode uint8 RGB crops [N,s,s,3] to float32 [N,L]."""
        return self.forward(normalize_crops(crops_NSS3, self.crop_range))

    def embed_crops(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Compute the identity of uint8 RGB crops [N,s,s,3], unconverted: float32 [N,E], of unit length."""
        raw = self.embed(normalize_crops(crops_NSS3, self.crop_range))
        unit: FloatArray = raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12)
        return unit

    def forward(self, input_NCHW: FloatArray) -> FloatArray:
        """Encode crops in the value range of the encoder, float32 [N,3,s,s], to float32 [N,L]."""
        source = self.embed(input_NCHW)
        source = normalize_source(source) if self.rule.unit_before else source
        if self.matrix_EL is not None:
            source = source @ self.matrix_EL
        if self.converter is not None:
            source = convert(self.converter, source)
        return normalize_source(source) if self.rule.unit_after else source

    def embed(self, input_NCHW: FloatArray) -> FloatArray:
        """Run the identity encoder alone; return its raw embeddings, float32 [N,E]."""
        step, fixed = self.batch or MAX_BATCH, self.batch is not None
        (embedding,) = run_batches(self.engine, [self.output], {self.input: input_NCHW}, step, fixed=fixed)
        return embedding.reshape(len(input_NCHW), -1)


def normalize_source(source_NL: FloatArray) -> FloatArray:
    """Scale the first 512 values of each source, its embedding, to unit length; keep the rest."""
    embedding = source_NL[:, :EMBEDDING_LENGTH]
    length = np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-12)
    return np.concatenate([embedding / length, source_NL[:, EMBEDDING_LENGTH:]], axis=1)


def load_matrix(bundle: Bundle) -> FloatArray:
    """Load the matrix float32 [E,L] that converts embeddings.

    Raises: BundleInvalid if the file is not a matrix, or its shape does not fit the models.
    """
    name = bundle.description.embedding.matrix
    assert name is not None
    wanted = (bundle.tensor(IDENTITY_NAME, "source").shape[-1], bundle.source_length)
    try:
        matrix = np.load(bundle.folder / name, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleInvalid(f"{bundle.folder}/{name}: not a matrix ({error}); import the model again") from None
    if matrix.dtype != np.float32 or matrix.shape != wanted:
        raise BundleInvalid(
            f"{bundle.folder}/{name}: is {matrix.dtype} {list(matrix.shape)}, not float32 {list(wanted)}; import the "
            "model again"
        )
    return np.asarray(matrix, np.float32)


def open_converter(bundle: Bundle, settings: RuntimeConfig | None) -> InferenceEngine:
    """Open the model that converts embeddings of one encoder to those of another.

    Raises: BundleInvalid unless it has one input and one output; ProviderUnavailable.
    """
    name = bundle.description.embedding.converter
    assert name is not None
    engine = open_engine(bundle.folder / name, settings, digest=bundle.description.files[name])
    if len(engine.inputs) != 1 or len(engine.outputs) != 1:
        raise BundleInvalid(
            f"{bundle.folder}/{name}: has {len(engine.inputs)} inputs and {len(engine.outputs)} outputs; a converter "
            "needs one of each"
        )
    return engine


def convert(converter: InferenceEngine, source_NE: FloatArray) -> FloatArray:
    """Run the converter on embeddings [N,E]; return its output flattened to [N,L]."""
    (name, port), (output,) = next(iter(converter.inputs.items())), converter.outputs
    batch = port.shape[0] if port.shape and isinstance(port.shape[0], int) else None
    (found,) = run_batches(converter, [output], {name: source_NE}, batch or MAX_BATCH, fixed=batch is not None)
    return found.reshape(len(source_NE), -1)
