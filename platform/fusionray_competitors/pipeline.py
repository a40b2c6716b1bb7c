"""The work of a request, the same for every competitor: the runtime of this package, used as the service uses it."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from fusionray.bundle.bundle import bundle_hash, read_bundle
from fusionray.faces.detectors.factory import DetectorPool
from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import decode_image
from fusionray.faces.image_files.headers.image_header import has_half_chroma
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.face_preprocessor import FaceCrops
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.safety.signing_keys import SigningConfig, load_key
from fusionray_competitors.config import CompetitorConfig


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """A decoded target picture, its faces, the encoded source identity, and how the target's file stores colours."""

    target: Image
    cut: FaceCrops
    source: FloatArray
    half_chroma: bool


class Pipeline:
    """The work of a request in three steps; a server with batches can batch the middle one."""

    def __init__(self, settings: CompetitorConfig) -> None:
        # As in the service, whose own threads already share the cores.
        cv2.setNumThreads(1)
        bundle = read_bundle(settings.bundle)
        self.fuser = Fuser(bundle, DetectorPool("default", settings.threads), RuntimeConfig())
        self.fuser.warm_up()
        self.provenance = Provenance(bundle.description.name, bundle_hash(bundle))
        self.signer = Signer(load_key(SigningConfig()))
        self.picture_format = settings.picture_format

    @property
    def media_type(self) -> str:
        """Return the media type of an answer."""
        return f"image/{self.picture_format}"

    def prepare(self, source: bytes, target: bytes) -> PreparedRequest:
        """Decode both pictures, detect faces, encode the source identity."""
        source_image, target_image = decode_image(source), decode_image(target)
        return PreparedRequest(
            target_image,
            self.fuser.preprocessor.crop_faces(target_image),
            self.fuser.encode_source(source_image),
            has_half_chroma(target),
        )

    def fuse(self, batch: list[PreparedRequest]) -> list[FusedCrops]:
        """Fuse the faces of several requests at once; every picture of the benchmark shows one face."""
        sources = np.stack([each.source for each in batch])
        fused = self.fuser.crop_fuser.fuse(sources, np.concatenate([each.cut.crops for each in batch]))
        return [FusedCrops(fused.crops[row : row + 1], fused.masks[row : row + 1]) for row in range(len(batch))]

    def finish(self, prepared: PreparedRequest, fused: FusedCrops) -> bytes:
        """Paste the fused face, encode and sign the picture."""
        picture = self.fuser.paste(prepared.target, prepared.cut, fused)
        return encode_output(
            picture.image,
            self.provenance,
            self.picture_format,
            signer=self.signer,
            half_chroma=prepared.half_chroma,
        )

    def answer(self, source: bytes, target: bytes) -> bytes:
        """Do the whole work of one request."""
        prepared = self.prepare(source, target)
        return self.finish(prepared, self.fuse([prepared])[0])
