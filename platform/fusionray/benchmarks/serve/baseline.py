"""Baselines without a server: the generator in a bare loop, and the whole work of a request on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import cv2
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle, bundle_hash
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.image_files.decode import decode_image
from fusionray.faces.image_files.headers.image_header import PictureFormat, has_half_chroma
from fusionray.runtime.engines.session import choose_providers
from fusionray.runtime.fuser import Fuser
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.safety.signing_keys import SigningConfig, load_key


class BareGenerator:
    """The generator of a bundle in a plain ONNX Runtime session, on the providers of the service."""

    def __init__(self, bundle: Bundle) -> None:
        self.session = ort.InferenceSession(str(bundle.generator_path), providers=choose_providers())
        self.length, self.size = bundle.source_length, bundle.description.size

    def measure(self, batch: int, seconds: float) -> float:
        """Run batches for `seconds`; return faces a second."""
        random = np.random.default_rng(0)
        inputs = {
            "source": random.standard_normal((batch, self.length), np.float32),
            "target": random.uniform(-1, 1, (batch, 3, self.size, self.size)).astype(np.float32),
        }
        self.session.run(None, inputs)
        return count_rate(lambda: self.session.run(None, inputs), seconds) * batch


def count_rate(call: Callable[[], object], seconds: float) -> float:
    """Call for `seconds`, at least once; return calls a second."""
    calls, started = 0, time.perf_counter()
    while not calls or time.perf_counter() - started < seconds:
        call()
        calls += 1
    return calls / (time.perf_counter() - started)


class PlainFuser:
    """The work of a request in this process: decode, detect and read faces, fuse, paste, encode, sign."""

    def __init__(self, bundle: Bundle, source: bytes, target: bytes, picture_format: PictureFormat) -> None:
        cv2.setNumThreads(1)
        self.fuser = Fuser(bundle, build_detector("default"))
        self.fuser.warm_up()
        self.pictures = source, target
        self.picture_format = picture_format
        self.provenance = Provenance(bundle.description.name, bundle_hash(bundle))
        self.signer = Signer(load_key(SigningConfig()))

    def fuse(self) -> NDArray[np.uint8]:
        """Return the pixels of the fused picture."""
        source, target = (decode_image(picture) for picture in self.pictures)
        return self.fuser.fuse(source, target).image

    def answer(self) -> bytes:
        """Return the file that a client would receive."""
        half_chroma = has_half_chroma(self.pictures[1])
        return encode_output(
            self.fuse(), self.provenance, self.picture_format, signer=self.signer, half_chroma=half_chroma
        )
