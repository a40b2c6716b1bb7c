"""What every competitor answers a request with: the runtime of this package, as the service itself drives it."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from fusionray.bundle.bundle import bundle_hash, read_bundle
from fusionray.faces.decode import decode_image
from fusionray.faces.detect import DetectorPool
from fusionray.faces.face import Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.face_reader import CutFaces
from fusionray.runtime.fuser import Fuser, put_back
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.safety.signing_keys import SigningConfig, load_key
from fusionray_competitors.config import CompetitorConfig


@dataclass(frozen=True, eq=False)
class Prepared:
    """A target picture, its faces, and who shall be seen in them."""

    target: Image
    cut: CutFaces
    source: FloatArray


class Pipeline:
    """The work of a request in three steps, so that servers which batch can batch the one in the middle."""

    def __init__(self, settings: CompetitorConfig) -> None:
        # As the service does: threads of its own already share the cores.
        cv2.setNumThreads(1)
        bundle = read_bundle(settings.bundle)
        self.fuser = Fuser(bundle, DetectorPool("default", settings.threads), RuntimeConfig())
        self.fuser.warm_up()
        self.provenance = Provenance(bundle.description.name, bundle_hash(bundle))
        self.signer = Signer(load_key(SigningConfig()))
        self.picture_format = settings.picture_format

    @property
    def media_type(self) -> str:
        """Name the type of an answer."""
        return f"image/{self.picture_format}"

    def prepare(self, source: bytes, target: bytes) -> Prepared:
        """Decode, find faces, read the source."""
        source_image, target_image = decode_image(source), decode_image(target)
        return Prepared(target_image, self.fuser.reader.cut(target_image), self.fuser.read_source(source_image))

    def fuse(self, batch: list[Prepared]) -> list[FusedCrops]:
        """Fuse the faces of several requests at once; every picture here shows one."""
        sources = np.stack([each.source for each in batch])
        fused = self.fuser.crop_fuser.fuse(sources, np.concatenate([each.cut.crops for each in batch]))
        return [FusedCrops(fused.crops[row : row + 1], fused.masks[row : row + 1]) for row in range(len(batch))]

    def finish(self, prepared: Prepared, fused: FusedCrops) -> bytes:
        """Put back, encode and sign."""
        picture = put_back(prepared.target, prepared.cut, fused)
        return encode_output(picture.image, self.provenance, self.picture_format, signer=self.signer)

    def answer(self, source: bytes, target: bytes) -> bytes:
        """Do all of it for one request."""
        prepared = self.prepare(source, target)
        return self.finish(prepared, self.fuse([prepared])[0])
