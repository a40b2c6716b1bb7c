"""The store of source faces: a face is analysed once, then used many times by a handle.

The store is a folder that replicas on several nodes may share, so it outlives them. A face is biometric data: its files
are encrypted under a key that is derived from the handle, and the handle is stored nowhere. Neither a stolen disk nor
the operator of the disk reveals a face without a client's handle. The memory of a serving process does: it holds
decrypted faces for up to a minute.

    folder/faces/SHA256_OF_HANDLE/face              encrypted face (platform/fusionray/serving/identities/encryption.py)
                                  reading-ENCODER   encrypted array that the model with this encoder read from it
    folder/tmp/, folder/trash/                      partly written and partly removed faces

The file system must rename atomically, and `open` must check that the file still exists, as it does on NFS.
"""

from __future__ import annotations

import contextlib
import logging
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

from fusionray.errors import StoreFull, UnknownIdentity
from fusionray.faces.face import Image, Points
from fusionray.faces.image_files.decode import encode_image
from fusionray.serving.config_sections.identities import IdentityConfig
from fusionray.serving.identities.cache import FaceCache
from fusionray.serving.identities.encryption import (
    FACE_PURPOSE,
    HEADER,
    Box,
    FloatArray,
    HandleCipher,
    StoredFace,
    name_of,
    pack_face,
    pack_reading,
    read_expiry_ms,
    unknown,
    unpack_face,
    unpack_reading,
)
from fusionray.storage.atomic_files import (
    TMP_NAME,
    TRASH_NAME,
    create_file,
    make_private_folder,
    remove_abandoned_folders,
    remove_tree,
    replace_private_file,
)

logger = logging.getLogger("ray.serve")

HANDLE_PATTERN = "id_[A-Za-z0-9_-]{43}"
HANDLE = re.compile(HANDLE_PATTERN)
ENCODER_HASH = re.compile(r"[0-9a-f]{8,128}")
FACE_NAME = "face"
READING_PREFIX = "reading-"
# How often a replica measures the store; replicas that share it may exceed a limit by what they add in between.
MEASURE_SECONDS = 5.0


class IdentityStore:
    """Store faces under handles. The methods block on files, and may run in many threads at once."""

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
        self.faces = make_private_folder(folder / "faces")
        self.tmp, self.trash = (make_private_folder(folder / name) for name in (TMP_NAME, TRASH_NAME))
        self.ttl_seconds = ttl_seconds
        self.max_bytes = max_bytes
        self.max_identities = max_identities
        self.wall_clock = wall_clock
        self.clock = clock
        self.memory = FaceCache(memory_entries, self.is_there, clock)
        self.lock = threading.Lock()
        self.held = (0, 0)
        self.counted_at = float("-inf")

    def put(
        self,
        owner: str,
        region: Image,
        landmarks: Points,
        box: Box,
        *,
        source_sha256: str,
        consent: str | None = None,
    ) -> tuple[str, float]:
        """Store a face that `cut_region` has cut from a picture; return its handle and its expiry (seconds since 1970).

        Raises: StoreFull if the store or its disk is full.
        """
        handle = f"id_{secrets.token_urlsafe(32)}"
        expires_ms = int((self.wall_clock() + self.ttl_seconds) * 1000)
        face = StoredFace(owner, source_sha256, consent, expires_ms / 1000, encode_image(region), landmarks, box, {})
        encrypted = HandleCipher(handle).encrypt(pack_face(face), expires_ms, FACE_PURPOSE)
        self.reserve(len(encrypted))
        draft = self.tmp / uuid.uuid4().hex
        try:
            make_private_folder(draft)
            create_file(draft / FACE_NAME, encrypted)
            draft.rename(self.faces / name_of(handle))
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StoreFull(f"the identity could not be stored ({error.strerror}); try again later") from error
        return handle, expires_ms / 1000

    def get(self, handle: str, owner: str) -> StoredFace:
        """Return the face of a handle to its owner.

        Raises: UnknownIdentity if the handle is unknown, expired or another owner's, or its file is damaged.
        """
        name = self.name(handle)
        face = self.memory.find(name)
        if face is None:
            face = self.load(handle, name)
        if face.owner != owner or not self.is_alive(face.expires_at):
            raise unknown()
        return face

    def remove(self, handle: str, owner: str) -> StoredFace:
        """Remove an owner's face, and return it; other replicas notice within a second.

        Raises: UnknownIdentity, as `get` does.
        """
        face = self.get(handle, owner)
        name = self.name(handle)
        try:
            gone = remove_tree(self.faces / name, self.trash)
        finally:
            self.memory.forget(name)
        if not gone:
            raise unknown()
        return face

    def add_reading(self, handle: str, encoder_hash: str, reading: FloatArray) -> None:
        """Store what the model with this encoder read from a face; it is removed with the face.

        If the disk is full, the reading is kept in memory only: it saves time, and nothing depends on it.

        Raises: UnknownIdentity if the face is removed; ValueError if the hash is malformed.
        """
        if not ENCODER_HASH.fullmatch(encoder_hash):
            raise ValueError(f"encoder_hash: {encoder_hash!r} is not a hash in hexadecimal digits")
        name = self.name(handle)
        try:
            expires_ms = read_expiry_ms(self.read_header(name))
            encrypted = HandleCipher(handle).encrypt(pack_reading(reading), expires_ms, encoder_hash.encode())
            # The folder of a removed face does not exist, so a reading cannot restore the face.
            replace_private_file(self.faces / name / f"{READING_PREFIX}{encoder_hash}", encrypted)
        except FileNotFoundError:
            raise unknown() from None
        except OSError as error:
            logger.warning("%s: a reading of a stored face cannot be written (%s)", self.faces, error.strerror)
        kept = np.array(reading, np.float32)
        kept.flags.writeable = False
        self.memory.add_reading(name, encoder_hash, kept)

    def sweep(self) -> int:
        """Remove expired and damaged faces, and leftovers of dead processes; return the number of removed faces.

        An expiry later than any face can have is not used, but its file stays: the clock of this node may be wrong.
        """
        num_removed = 0
        for entry in list_folders(self.faces):
            try:
                expires_at = read_expiry_ms(self.read_header(entry.name)) / 1000
            except FileNotFoundError:
                expires_at = 0.0
            except OSError as error:
                logger.warning("%s: a stored face cannot be read (%s)", self.faces, error.strerror)
                continue
            if expires_at <= self.wall_clock():
                num_removed += remove_tree(Path(entry.path), self.trash)
        remove_abandoned_folders(self.tmp)
        remove_abandoned_folders(self.trash)
        with self.lock:
            self.counted_at = float("-inf")
        self.memory.sweep()
        return num_removed

    def name(self, handle: str) -> str:
        """Return the folder name of a handle; a malformed handle never reaches the disk."""
        if not HANDLE.fullmatch(handle):
            raise unknown()
        return name_of(handle)

    def is_alive(self, expires_at: float) -> bool:
        """Tell whether an expiry is in the future. An expiry later than any face can have is forged."""
        return 0.0 < expires_at - self.wall_clock() <= self.ttl_seconds + 1.0

    def load(self, handle: str, name: str) -> StoredFace:
        """Read and decrypt a face, and cache it."""
        cipher, read_at, folder = HandleCipher(handle), self.clock(), self.faces / name
        try:
            encrypted = (folder / FACE_NAME).read_bytes()
            content = cipher.decrypt(encrypted, FACE_PURPOSE)
            readings = load_readings(cipher, folder)
        except OSError:
            raise unknown() from None
        face = unpack_face(content, read_expiry_ms(encrypted) / 1000, readings)
        self.memory.keep(name, face, read_at)
        return face

    def is_there(self, name: str) -> bool:
        """Check that a face exists by opening its file: `open` asks the file server, but a cache may answer `stat`."""
        try:
            return bool(self.read_header(name))
        except OSError:
            return False

    def read_header(self, name: str) -> bytes:
        """Read the part of an encrypted file that is in the clear."""
        with open(self.faces / name / FACE_NAME, "rb") as file:
            return file.read(HEADER.size)

    def reserve(self, num_bytes: int) -> None:
        """Count one more face of `num_bytes` bytes.

        Raises: StoreFull.
        """
        with self.lock:
            if self.clock() - self.counted_at > MEASURE_SECONDS:
                self.held, self.counted_at = measure_usage(self.faces), self.clock()
            held, held_bytes = self.held
            if held >= self.max_identities or held_bytes + num_bytes > self.max_bytes:
                raise StoreFull(
                    f"{held} identities with {held_bytes} bytes are stored, of at most {self.max_identities} with "
                    f"{self.max_bytes} bytes; delete some, or wait until some expire"
                )
            self.held = (held + 1, held_bytes + num_bytes)


def open_store(settings: IdentityConfig) -> IdentityStore:
    """Open the store that the settings describe."""
    return IdentityStore(
        Path(settings.folder),
        settings.ttl_seconds,
        settings.max_bytes,
        settings.max_identities,
        memory_entries=settings.memory_entries,
    )


def load_readings(cipher: HandleCipher, folder: Path) -> dict[str, FloatArray]:
    """Decrypt the readings of a face; skip a damaged one, which the model then reads again."""
    readings = {}
    for entry in os.scandir(folder):
        encoder_hash = entry.name.removeprefix(READING_PREFIX)
        if entry.name != encoder_hash and ENCODER_HASH.fullmatch(encoder_hash):
            with contextlib.suppress(UnknownIdentity):
                readings[encoder_hash] = unpack_reading(cipher.decrypt(Path(entry).read_bytes(), encoder_hash.encode()))
    return readings


def list_folders(place: Path) -> list[os.DirEntry[str]]:
    """List the folders in a place; a stray file, as backups and file browsers leave, is none."""
    return [entry for entry in os.scandir(place) if entry.is_dir()]


def measure_usage(folder: Path) -> tuple[int, int]:
    """Count the faces in a folder and their bytes, readings included."""
    num_faces = num_bytes = 0
    for entry in list_folders(folder):
        try:
            num_bytes += sum(file.stat().st_size for file in os.scandir(entry.path))
        except FileNotFoundError:
            continue
        num_faces += 1
    return num_faces, num_bytes
