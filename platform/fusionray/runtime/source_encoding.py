"""From the crop of a source face to what stands for it: what its embedding becomes, or the picture itself.

N faces, s size of a source's crop, E length of an embedding, L length of what a generator takes for it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import EMBEDDING_LENGTH, GENERATOR_NAME, IDENTITY_NAME, IDENTITY_SIZE
from fusionray.errors import BundleInvalid
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engine import InferenceEngine, open_engine
from fusionray.runtime.fixed_batches import run_batches
from fusionray.runtime.pixels import FloatArray, normalize_crops
from fusionray.runtime.signature import check_identity, fixed_batch

MAX_BATCH = 8


class SourceReader(Protocol):
    """Read crops [N,s,s,3] of source faces, of the `size` s, as what the generator takes."""

    size: int

    def read(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Read crops: float32 [N,L] or [N,3,s,s]."""
        ...


def open_source_reader(bundle: Bundle, settings: RuntimeConfig | None = None) -> SourceReader:
    """Open what reads sources for the generator of a bundle.

    Raises: BundleInvalid if a model or matrix is not what the bundle says; ProviderUnavailable.
    """
    if bundle.description.takes_picture:
        return PictureReader(bundle)
    return EmbeddingReader(bundle, settings)


class PictureReader:
    """Give the picture itself, in the levels that the generator wants.

    Raises: BundleInvalid if the bundle does not describe a square picture.
    """

    def __init__(self, bundle: Bundle) -> None:
        shape = bundle.source_shape
        if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
            raise BundleInvalid(f"{bundle.folder}: 'source' of {GENERATOR_NAME} is {list(shape)}, not [3, s, s]")
        self.size = shape[1]
        self.described = bundle.tensor(GENERATOR_NAME, "source")

    def read(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Read crops: float32 [N,3,s,s]."""
        return normalize_crops(crops_NSS3, self.described)


class EmbeddingReader:
    """The identity encoder, and what its embedding goes through on the way to the generator.

    Raises: BundleInvalid if a model or matrix is not what the bundle says; ProviderUnavailable.
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

    def read(self, crops_NSS3: NDArray[np.uint8]) -> FloatArray:
        """Read crops: float32 [N,L]."""
        return self.forward(normalize_crops(crops_NSS3, self.crop_range))

    def forward(self, input_NCHW: FloatArray) -> FloatArray:
        """Run the encoder on crops in its own levels, and prepare its embeddings for the generator: [N,L]."""
        source = self.encode(input_NCHW)
        source = normalize_source(source) if self.rule.unit_before else source
        if self.matrix_EL is not None:
            source = source @ self.matrix_EL
        if self.converter is not None:
            source = convert(self.converter, source)
        return normalize_source(source) if self.rule.unit_after else source

    def encode(self, input_NCHW: FloatArray) -> FloatArray:
        """Run the encoder alone: [N,E] as it comes."""
        step, fixed = self.batch or MAX_BATCH, self.batch is not None
        (embedding,) = run_batches(self.engine, [self.output], {self.input: input_NCHW}, step, fixed=fixed)
        return embedding.reshape(len(input_NCHW), -1)


def normalize_source(source_NL: FloatArray) -> FloatArray:
    """Give the embedding that a source begins with unit length: not every model's last layer does."""
    embedding = source_NL[:, :EMBEDDING_LENGTH]
    length = np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-12)
    return np.concatenate([embedding / length, source_NL[:, EMBEDDING_LENGTH:]], axis=1)


def load_matrix(bundle: Bundle) -> FloatArray:
    """Load the matrix [E,L] that an embedding is multiplied by.

    Raises: BundleInvalid if it is not one, or does not fit the models.
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
    """Open the model that turns embeddings of one encoder into those of another.

    Raises: BundleInvalid if it has not one input and one output; ProviderUnavailable.
    """
    name = bundle.description.embedding.converter
    assert name is not None
    engine = open_engine(bundle.folder / name, settings, digest=bundle.description.files[name])
    if len(engine.inputs) != 1 or len(engine.outputs) != 1:
        raise BundleInvalid(
            f"{bundle.folder}/{name}: has {len(engine.inputs)} inputs and {len(engine.outputs)} outputs; a converter "
            "has one of each"
        )
    return engine


def convert(converter: InferenceEngine, source_NE: FloatArray) -> FloatArray:
    """Run the converter on embeddings of any number; its output is laid out as [N,L]."""
    (name, port), (output,) = next(iter(converter.inputs.items())), converter.outputs
    batch = port.shape[0] if port.shape and isinstance(port.shape[0], int) else None
    (found,) = run_batches(converter, [output], {name: source_NE}, batch or MAX_BATCH, fixed=batch is not None)
    return found.reshape(len(source_NE), -1)
