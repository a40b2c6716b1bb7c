"""A large source is decoded as small as its face allows; each of several sources needs its own consent."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fusionray.errors import ConsentRefused, NoFaceFound
from fusionray.faces.detectors.factory import build_detector
from fusionray.runtime.face_preprocessor import FacePreprocessor
from fusionray.safety.consent import TokenPolicy
from fusionray.safety.consent_token import make_token
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.identities.store import IdentityStore
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch
from fusionray.serving.pipeline.source_faces import SourceFaces, encode_source_file
from fusionray.serving.schema import FuseOptions, FuseTask
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import write_tiny_bundle

pytestmark = pytest.mark.filterwarnings("ignore:.*TEST KEY:RuntimeWarning")


@pytest.fixture(scope="module")
def preprocessor(tmp_path_factory: pytest.TempPathFactory) -> FacePreprocessor:
    bundle = write_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny")
    return FacePreprocessor(bundle, build_detector("default"))


class RecordingCodec(PictureCodec):
    """Records the reductions at which pictures are decoded."""

    def __init__(self) -> None:
        super().__init__(ServeConfig(models=[ModelConfig(name="tiny", bundle="tiny")]))
        self.reductions: list[int] = []

    def decode(self, data: bytes, reduction: int = 1) -> np.ndarray:
        self.reductions.append(reduction)
        return super().decode(data, reduction)


def place(pixels: int, canvas: int, picture_format: str = "JPEG") -> bytes:
    """Draw a person of `pixels` in the middle of a grey picture of `canvas` pixels."""
    picture = Image.new("RGB", (canvas, canvas), (120, 120, 120))
    person = Image.fromarray(np.asarray(draw_person(1))).resize((pixels, pixels), Image.Resampling.LANCZOS)
    picture.paste(person, ((canvas - pixels) // 2,) * 2)
    buffer = io.BytesIO()
    picture.save(buffer, picture_format, quality=95)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (place(2200, 2200), [4]),
        (place(1100, 1100), [2]),
        (place(400, 2200), [4, 1]),
        (place(900, 900), [1]),
        (place(1100, 1100, "PNG"), [1]),
    ],
    ids=["a large face", "at half size", "a small face", "a small picture", "a PNG"],
)
def test_a_source_is_decoded_as_small_as_its_face_allows(
    preprocessor: FacePreprocessor, data: bytes, expected: list[int]
) -> None:
    codec = RecordingCodec()
    source = encode_source_file(data, codec, preprocessor, Stopwatch())
    assert codec.reductions == expected
    whole = preprocessor.encode_source(codec.decode(data))
    assert float(source @ whole) > (0.99 if expected[-1] > 1 else 1 - 1e-6)


def test_a_large_picture_without_a_face_is_refused(preprocessor: FacePreprocessor) -> None:
    with pytest.raises(NoFaceFound, match="source"):
        encode_source_file(place(2, 2200), RecordingCodec(), preprocessor, Stopwatch())


def test_each_of_several_stored_faces_is_used_with_the_token_that_it_was_stored_with(
    preprocessor: FacePreprocessor, tmp_path: Path
) -> None:
    secret, store = b"s" * 32, IdentityStore(tmp_path / "store", 100.0, max_bytes=10**8, memory_entries=8)
    tokens = [make_token(secret, digest * 64, time.time() + 100) for digest in "12"]
    landmarks = np.array([[70, 80], [120, 82], [95, 110], [76, 135], [114, 136]], np.float32)
    handles = [
        store.put("ann", draw_person(seed), landmarks, (0, 0, 9, 9), source_sha256=f"{seed}" * 64, consent=token)[0]
        for seed, token in enumerate(tokens, 1)
    ]
    faces = SourceFaces(RecordingCodec(), TokenPolicy(secret), store)

    def encode(consent: str | None) -> tuple[str, ...]:
        options, version = FuseOptions(faces="0,1", consent=consent), ModelVersion("tiny", "tiny", "ab" * 32)
        task = FuseTask(tuple(handles), b"target", version, options, time.time() + 100, "ann")
        return faces.encode(task, preprocessor, Stopwatch())[1]

    assert encode(None) == ("1" * 64, "2" * 64)
    with pytest.raises(ConsentRefused, match="source 2: the consent token is for another source picture"):
        encode(tokens[0])
