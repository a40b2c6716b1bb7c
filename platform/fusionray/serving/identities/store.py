"""The vault of source faces: a face is analysed once, and used many times by a handle.

It lies in a folder, which replicas on several nodes may share, so it outlives them. A face is biometric data: what lies
on the disk is sealed under a key that is derived from the handle, and the handle is kept nowhere. Neither a stolen
disk nor its operator can read a face without the handle of a client; what a process that serves holds in memory, for a
minute, it can.

    folder/faces/SHA256_OF_HANDLE/face              sealed face (platform/fusionray/serving/identities/encryption.py)
                                  reading-ENCODER   sealed array that the model with this encoder read from it
    folder/making/, folder/bin/                     half-written and half-removed ones

Assumed of the file system: a rename is atomic, and opening a file asks whether it is still there, as NFS does.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.errors import StoreFull, UnknownIdentity
from fusionray.faces.decode import encode_image
from fusionray.faces.face import Image, Points
from fusionray.serving.identities.cache import FaceCache
from fusionray.serving.identities.encryption import (
    FACE_PURPOSE,
    HEADER,
    Box,
    Cipher,
    FloatArray,
    StoredFace,
    name_of,
    pack_face,
    pack_reading,
    read_expiry_ms,
    unknown,
    unpack_face,
    unpack_reading,
)
from fusionray.storage.private_files import make_private_folder, remove_abandoned, remove_tree, write_new, write_private

HANDLE = re.compile(r"id_[A-Za-z0-9_-]{43}")
ENCODER_HASH = re.compile(r"[0-9a-f]{8,128}")
FACE_NAME = "face"
READING_PREFIX = "reading-"
# How often the vault is measured; replicas that share it may exceed a quota by what they add meanwhile.
CENSUS_SECONDS = 5.0


class IdentityConfig(Section):
    """Where source faces are stored, for how long, and how many."""

    folder: str = Field(
        default="runs/identities", description="Folder of the stored faces; every replica must reach it."
    )
    ttl_seconds: float = Field(default=3600.0, gt=0, description="Time after which a stored face is deleted.")
    max_identities: int = Field(
        default=10_000, ge=1, description="Largest number of stored faces; further ones are refused."
    )
    max_bytes: int = Field(default=4 * 2**30, ge=1, description="Largest size of the store; further faces are refused.")
    memory_entries: int = Field(
        default=256,
        ge=0,
        description="Decrypted faces that a replica keeps in memory.",
        json_schema_extra=in_unit("faces"),
    )


class IdentityStore:
    """Keep faces under handles. All methods block on files, and may be called by many threads at once."""

    def __init__(
        self,
        folder: Path,
        ttl_seconds: float,
        max_bytes: int,
        max_identities: int = 10_000,
        *,
        memory_entries: int = 256,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        make_private_folder(folder)
        self.faces, self.making, self.bin = (make_private_folder(folder / name) for name in ("faces", "making", "bin"))
        self.ttl_seconds = ttl_seconds
        self.max_bytes = max_bytes
        self.max_identities = max_identities
        self.wall_clock = wall_clock
        self.clock = clock
        self.memory = FaceCache(memory_entries, self.is_there, clock)
        self.lock = threading.Lock()
        self.held = (0, 0)
        self.counted_at = float("-inf")

    def put(self, owner: str, region: Image, landmarks: Points, box: Box) -> tuple[str, float]:
        """Store a face that `cut_region` has cut; give its handle, and when it expires (seconds since 1970).

        Raises: StoreFull if the vault, or its disk, holds as much as it may.
        """
        handle = f"id_{secrets.token_urlsafe(32)}"
        expires_ms = int((self.wall_clock() + self.ttl_seconds) * 1000)
        content = pack_face(owner, encode_image(region), landmarks, box)
        sealed = Cipher(handle).close(content, expires_ms, FACE_PURPOSE)
        self.reserve(len(sealed))
        draft = make_private_folder(self.making / uuid.uuid4().hex)
        try:
            write_new(draft / FACE_NAME, sealed)
            draft.rename(self.faces / name_of(handle))
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StoreFull(f"the identity could not be stored ({error.strerror}); try again later") from error
        return handle, expires_ms / 1000

    def get(self, handle: str, owner: str) -> StoredFace:
        """Give the face under a handle to its owner.

        Raises: UnknownIdentity for a handle that is unknown, expired or another owner's, or whose file is damaged.
        """
        name = self.name(handle)
        face = self.memory.find(name)
        if face is None:
            face = self.load(handle, name)
        if face.owner != owner or not self.is_alive(face.expires_at):
            raise unknown()
        return face

    def remove(self, handle: str, owner: str) -> None:
        """Remove a face of an owner; other replicas follow within a second.

        Raises: UnknownIdentity as `get`.
        """
        self.get(handle, owner)
        name = self.name(handle)
        gone = remove_tree(self.faces / name, self.bin)
        self.memory.forget(name)
        if not gone:
            raise unknown()

    def remember(self, handle: str, encoder_hash: str, reading: FloatArray) -> None:
        """Keep what the model with this encoder read from a face, beside it; it goes when the face goes.

        Raises: UnknownIdentity if the face is gone; ValueError if the hash is none.
        """
        if not ENCODER_HASH.fullmatch(encoder_hash):
            raise ValueError(f"encoder_hash: {encoder_hash!r} is not a hash in hexadecimal digits")
        name = self.name(handle)
        try:
            expires_ms = read_expiry_ms(self.read_header(name))
            sealed = Cipher(handle).close(pack_reading(reading), expires_ms, encoder_hash.encode())
            # The folder of a face that was removed is not there: a reading cannot bring it back.
            write_private(self.faces / name / f"{READING_PREFIX}{encoder_hash}", sealed)
        except FileNotFoundError:
            raise unknown() from None
        kept = np.array(reading, np.float32)
        kept.flags.writeable = False
        self.memory.add_reading(name, encoder_hash, kept)

    def sweep(self) -> int:
        """Remove expired and damaged faces, and what dead processes left half-done; give the number of faces."""
        num_removed = 0
        for entry in list(os.scandir(self.faces)):
            try:
                expires_at = read_expiry_ms(self.read_header(entry.name)) / 1000
            except FileNotFoundError:
                expires_at = 0.0
            if not self.is_alive(expires_at):
                num_removed += remove_tree(Path(entry.path), self.bin)
        remove_abandoned(self.making)
        remove_abandoned(self.bin)
        with self.lock:
            self.counted_at = float("-inf")
        self.memory.forget_all(lambda face: not self.is_alive(face.expires_at))
        return num_removed

    def name(self, handle: str) -> str:
        """Name the folder of a handle; what cannot be one never reaches the disk."""
        if not HANDLE.fullmatch(handle):
            raise unknown()
        return name_of(handle)

    def is_alive(self, expires_at: float) -> bool:
        """Tell whether an expiry lies ahead. One further ahead than any face can have is a forgery."""
        return 0.0 < expires_at - self.wall_clock() <= self.ttl_seconds + 1.0

    def load(self, handle: str, name: str) -> StoredFace:
        """Read and open a face, and keep it in memory."""
        seal, read_at, folder = Cipher(handle), self.clock(), self.faces / name
        try:
            sealed = (folder / FACE_NAME).read_bytes()
            content = seal.open(sealed, FACE_PURPOSE)
            readings = load_readings(seal, folder)
        except OSError:
            raise unknown() from None
        face = unpack_face(content, read_expiry_ms(sealed) / 1000, readings)
        self.memory.keep(name, face, read_at)
        return face

    def is_there(self, name: str) -> bool:
        """Look for a face by opening its file: that asks the file server, where a stat may be answered by a cache."""
        try:
            return bool(self.read_header(name))
        except OSError:
            return False

    def read_header(self, name: str) -> bytes:
        """Read the part of a sealed face that is not encrypted."""
        with open(self.faces / name / FACE_NAME, "rb") as file:
            return file.read(HEADER.size)

    def reserve(self, num_bytes: int) -> None:
        """Count one more face of so many bytes.

        Raises: StoreFull.
        """
        with self.lock:
            if self.clock() - self.counted_at > CENSUS_SECONDS:
                self.held, self.counted_at = take_census(self.faces), self.clock()
            held, held_bytes = self.held
            if held >= self.max_identities or held_bytes + num_bytes > self.max_bytes:
                raise StoreFull(
                    f"{held} identities with {held_bytes} bytes are stored, of at most {self.max_identities} with "
                    f"{self.max_bytes} bytes; delete some, or wait until some expire"
                )
            self.held = (held + 1, held_bytes + num_bytes)


def open_store(settings: IdentityConfig) -> IdentityStore:
    """Open the vault that the settings describe."""
    return IdentityStore(
        Path(settings.folder),
        settings.ttl_seconds,
        settings.max_bytes,
        settings.max_identities,
        memory_entries=settings.memory_entries,
    )


def load_readings(seal: Cipher, folder: Path) -> dict[str, FloatArray]:
    """Open what models have read from a face; one that is damaged is read anew."""
    readings = {}
    for entry in os.scandir(folder):
        encoder_hash = entry.name.removeprefix(READING_PREFIX)
        if entry.name != encoder_hash and ENCODER_HASH.fullmatch(encoder_hash):
            with contextlib.suppress(UnknownIdentity):
                readings[encoder_hash] = unpack_reading(seal.open(Path(entry).read_bytes(), encoder_hash.encode()))
    return readings


def take_census(folder: Path) -> tuple[int, int]:
    """Count the faces in a folder and their bytes, readings included."""
    num_faces = num_bytes = 0
    for entry in os.scandir(folder):
        try:
            num_bytes += sum(file.stat().st_size for file in os.scandir(entry.path))
        except FileNotFoundError:
            continue
        num_faces += 1
    return num_faces, num_bytes
