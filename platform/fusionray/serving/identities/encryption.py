"""The encrypted files of a stored face. The key is derived from the handle, so only a client can decrypt them.

    encrypted file = format byte | expiry, ms since 1970, big-endian u64 | encrypted content (serving/cipher.py)

Format and expiry are authenticated with the content: if either is changed, the file cannot be decrypted.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.errors import NotDecrypted, UnknownIdentity
from fusionray.faces.align import estimate_alignment, invert_affine, load_template, transform_points
from fusionray.faces.face import Face, Image, Points
from fusionray.faces.image_files.decode import decode_image
from fusionray.serving.cipher import Cipher

FORMAT = 2
HEADER = struct.Struct(">BQ")
KEY_PURPOSE = b"fusionray identity vault 1"
FACE_PURPOSE = b"face"
REGION_SIDE = 512
# The template with the largest crop around a face, and by how much a region exceeds it.
WIDEST_TEMPLATE = "ffhq_512"
MARGIN = 0.1

FloatArray = NDArray[np.float32]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class StoredFace:
    """A stored face. `region_png` shows it with a margin; `landmarks` [5,2] are in the region's pixels.

    `box` is left, top, width, height in pixels of the original picture. `source_sha256` is the hash of that picture,
    `consent` the token that came with it: the consent policy is asked again at each use. `readings` holds what models
    read from the face, by the hash of their encoder.
    """

    owner: str
    source_sha256: str
    consent: str | None
    expires_at: float
    region_png: bytes
    landmarks: Points
    box: Box
    readings: dict[str, FloatArray]

    @property
    def face(self) -> Face:
        """Return the face in the region's pixels, with landmarks but without a box."""
        return Face(np.zeros(4, np.float32), self.landmarks, 1.0)

    def decode_region(self) -> Image:
        """Decode the region: uint8 RGB HWC."""
        return decode_image(self.region_png)


def cut_region(image: Image, face: Face, side: int = REGION_SIDE) -> tuple[Image, Points]:
    """Cut a face with a margin out of a picture, at most `side` pixels a side; return it and its landmarks in it.

    The region contains the crops of all templates, and the box, as far as the picture reaches.
    """
    template = load_template(WIDEST_TEMPLATE)
    corners = np.array([[-0.5, -0.5], [1.0, -0.5], [1.0, 1.0], [-0.5, 1.0]], np.float64)
    corners[corners == 1.0] = side - 0.5
    reach = transform_points(corners, invert_affine(estimate_alignment(face.landmarks, template, side)))
    left_top, size = np.asarray(face.box[:2], np.float64), np.asarray(face.box[2:], np.float64)
    points = np.concatenate([reach, face.landmarks, [left_top, left_top + size]])
    margin = MARGIN * np.ptp(points, axis=0).max()
    height, width = image.shape[:2]
    low = np.clip(np.floor(points.min(axis=0) - margin), 0, [width - 1, height - 1]).astype(int)
    high = np.clip(np.ceil(points.max(axis=0) + margin) + 1, low + 1, [width, height]).astype(int)
    region = image[low[1] : high[1], low[0] : high[0]]
    full = high - low
    fold = min(1.0, side / float(full.max()))
    reduced = np.maximum(1, np.round(full * fold)).astype(int)
    if fold < 1.0:
        region = np.asarray(cv2.resize(region, tuple(int(n) for n in reduced), interpolation=cv2.INTER_AREA), np.uint8)
    landmarks = (face.landmarks - low + 0.5) * (reduced / full) - 0.5
    return np.ascontiguousarray(region), landmarks.astype(np.float32)


class HandleCipher:
    """Encrypt and decrypt the files of one handle, with a key that is derived from the handle and stored nowhere."""

    def __init__(self, handle: str) -> None:
        self.cipher = Cipher(handle.encode(), KEY_PURPOSE)

    def encrypt(self, content: bytes, expires_ms: int, purpose: bytes) -> bytes:
        """Encrypt a content for one purpose."""
        header = HEADER.pack(FORMAT, expires_ms)
        return header + self.cipher.encrypt(content, header + purpose)

    def decrypt(self, encrypted: bytes, purpose: bytes) -> bytes:
        """Decrypt a content that was encrypted for the same purpose.

        Raises: UnknownIdentity if a bit of it has changed.
        """
        header, rest = encrypted[: HEADER.size], encrypted[HEADER.size :]
        try:
            return self.cipher.decrypt(rest, header + purpose)
        except NotDecrypted:
            raise unknown() from None


def unknown() -> UnknownIdentity:
    """Build the one error for every handle that cannot be used, whatever the reason."""
    return UnknownIdentity("no such identity; it may have expired: store the source picture again")


def name_of(handle: str) -> str:
    """Name the folder of a handle; the name does not reveal the handle."""
    return hashlib.sha256(handle.encode()).hexdigest()


def read_expiry_ms(encrypted: bytes) -> int:
    """Read the expiry of an encrypted file (ms since 1970), without its key; 0 if the file is malformed."""
    if len(encrypted) < HEADER.size or encrypted[0] != FORMAT:
        return 0
    return int(HEADER.unpack_from(encrypted)[1])


def pack(description: dict[str, Any], payload: bytes) -> bytes:
    """Join a description and bytes: a line of JSON, then the bytes."""
    return json.dumps(description).encode() + b"\n" + payload


def unpack(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Split what `pack` joined."""
    line, _, payload = content.partition(b"\n")
    description: dict[str, Any] = json.loads(line)
    return description, payload


def pack_face(face: StoredFace) -> bytes:
    """Encode a face for `unpack_face`, without its expiry and readings."""
    description = {
        "owner": face.owner,
        "source_sha256": face.source_sha256,
        "consent": face.consent,
        "landmarks": np.asarray(face.landmarks, np.float32).reshape(5, 2).tolist(),
        "box": [float(value) for value in face.box],
    }
    return pack(description, face.region_png)


def unpack_face(content: bytes, expires_at: float, readings: dict[str, FloatArray]) -> StoredFace:
    """Decode a decrypted face."""
    description, region_png = unpack(content)
    left, top, width, height = description["box"]
    landmarks = np.asarray(description["landmarks"], np.float32)
    return StoredFace(
        owner=description["owner"],
        source_sha256=description["source_sha256"],
        consent=description["consent"],
        expires_at=expires_at,
        region_png=region_png,
        landmarks=landmarks,
        box=(left, top, width, height),
        readings=readings,
    )


def pack_reading(reading: FloatArray) -> bytes:
    """Encode a float32 array for `unpack_reading`."""
    return pack({"shape": list(reading.shape)}, np.ascontiguousarray(reading, "<f4").tobytes())


def unpack_reading(content: bytes) -> FloatArray:
    """Decode a decrypted array; it is read-only, because callers share it."""
    description, payload = unpack(content)
    reading: FloatArray = np.frombuffer(payload, "<f4").reshape(description["shape"])
    return reading
