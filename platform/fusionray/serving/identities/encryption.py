"""One face of the vault as bytes: what lies on the disk, sealed under a key that only the handle gives.

    sealed file = format byte | expiry, ms since 1970, big-endian u64 | nonce [12] | AES-256-GCM(content)

Format and expiry are authenticated with the content: whoever changes them gets a file that opens for nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fusionray.errors import UnknownIdentity
from fusionray.faces.align import estimate_alignment, invert_affine, load_template, transform_points
from fusionray.faces.decode import decode_image
from fusionray.faces.face import Face, Image, Points

FORMAT = 1
HEADER = struct.Struct(">BQ")
NONCE_BYTES = 12
KEY_BYTES = 32
KEY_PURPOSE = b"fusionray identity vault 1"
FACE_PURPOSE = b"face"
REGION_SIDE = 512
# The template whose crop reaches furthest around a face, and how much further a region reaches.
WIDEST_TEMPLATE = "ffhq_512"
MARGIN = 0.1

FloatArray = NDArray[np.float32]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class StoredFace:
    """A face as it was stored. `region_png` shows it with a margin; `landmarks` lie in the region's pixels.

    `box` is left, top, width, height in the pixels of the picture that the face came from. `readings` is what models
    read from it, by the hash of their encoder.
    """

    owner: str
    expires_at: float
    region_png: bytes
    landmarks: Points
    box: Box
    readings: dict[str, FloatArray]

    @property
    def face(self) -> Face:
        """Give the face in the region's pixels; only its landmarks are known there."""
        return Face(np.zeros(4, np.float32), self.landmarks, 1.0)

    def decode_region(self) -> Image:
        """Decode the region: uint8 RGB HWC."""
        return decode_image(self.region_png)


def cut_region(image: Image, face: Face, side: int = REGION_SIDE) -> tuple[Image, Points]:
    """Cut a face with a margin out of a picture, at most `side` pixels a side, and place its landmarks in that.

    The region holds what every known template cuts, and the box; it ends where the picture ends.
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


class Cipher:
    """Seal and open the contents of one handle. Its key is derived from the handle and lies nowhere else."""

    def __init__(self, handle: str) -> None:
        key = HKDF(SHA256(), KEY_BYTES, salt=None, info=KEY_PURPOSE).derive(handle.encode())
        self.cipher = AESGCM(key)

    def close(self, content: bytes, expires_ms: int, purpose: bytes) -> bytes:
        """Encrypt a content for one purpose."""
        header, nonce = HEADER.pack(FORMAT, expires_ms), os.urandom(NONCE_BYTES)
        return header + nonce + self.cipher.encrypt(nonce, content, header + purpose)

    def open(self, sealed: bytes, purpose: bytes) -> bytes:
        """Decrypt what was sealed for the same purpose.

        Raises: UnknownIdentity if a bit of it is not as it was.
        """
        header, rest = sealed[: HEADER.size], sealed[HEADER.size :]
        try:
            return self.cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], header + purpose)
        except (InvalidTag, ValueError):
            raise unknown() from None


def unknown() -> UnknownIdentity:
    """Word the one answer for every handle that gives nothing, whatever the reason."""
    return UnknownIdentity("no such identity; it may have expired: store the source picture again")


def name_of(handle: str) -> str:
    """Name what lies under a handle, so that the name does not give the handle."""
    return hashlib.sha256(handle.encode()).hexdigest()


def read_expiry_ms(sealed: bytes) -> int:
    """Read when a sealed file ends, without its key; 0 for what is none, which is long over."""
    if len(sealed) < HEADER.size or sealed[0] != FORMAT:
        return 0
    return int(HEADER.unpack_from(sealed)[1])


def pack(description: dict[str, Any], payload: bytes) -> bytes:
    """Join a description and bytes: a line of JSON, then the bytes."""
    return json.dumps(description).encode() + b"\n" + payload


def unpack(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Take apart what `pack` has joined."""
    line, _, payload = content.partition(b"\n")
    description: dict[str, Any] = json.loads(line)
    return description, payload


def pack_face(owner: str, region_png: bytes, landmarks: Points, box: Box) -> bytes:
    """Write a face, which `unpack_face` reads."""
    points = np.asarray(landmarks, np.float32).reshape(5, 2).tolist()
    return pack({"owner": owner, "landmarks": points, "box": [float(value) for value in box]}, region_png)


def unpack_face(content: bytes, expires_at: float, readings: dict[str, FloatArray]) -> StoredFace:
    """Read a face that was opened."""
    description, region_png = unpack(content)
    left, top, width, height = description["box"]
    landmarks = np.asarray(description["landmarks"], np.float32)
    return StoredFace(description["owner"], expires_at, region_png, landmarks, (left, top, width, height), readings)


def pack_reading(reading: FloatArray) -> bytes:
    """Write an array of float32, which `unpack_reading` reads."""
    return pack({"shape": list(reading.shape)}, np.ascontiguousarray(reading, "<f4").tobytes())


def unpack_reading(content: bytes) -> FloatArray:
    """Read an array that was opened; it cannot be written to, since callers share it."""
    description, payload = unpack(content)
    reading: FloatArray = np.frombuffer(payload, "<f4").reshape(description["shape"])
    return reading
