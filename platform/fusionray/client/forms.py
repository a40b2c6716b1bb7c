"""What a request holds: pictures, options, and texts in headers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypedDict

from fusionray.client.answers import KeptIdentity
from fusionray.errors import InputMissing

PictureInput = bytes | str | os.PathLike[str] | IO[bytes]
"""An encoded picture: its bytes, the path of a file, or a file opened in binary mode. It is read into memory."""
Source = PictureInput | KeptIdentity
"""Whose face is taken: a picture, or a face that the service keeps."""
Part = tuple[str, tuple[str | None, bytes | str | BinaryIO]]
"""A field of a form as httpx takes it: its name, and a file with its name, or a text without one."""
Parts = list[Part]
# Names of files can tell who is in the picture, and the service does not use them.
FILE_NAME = "picture"


class PictureOptions(TypedDict, total=False):
    """Options of every request that makes pictures. One that is left out, or None, has the service's default."""

    model: str | None
    """Name of the model (`list_models`)."""
    picture_format: Literal["png", "jpeg", "webp"] | None
    """Format of the answer; default: that of the target, or what the operator has set."""
    mark: bool | None
    """Whether the picture gets the visible mark."""
    consent: str | None
    """Consent token for the source, if the service asks for one."""


class FuseOptions(PictureOptions, total=False):
    """Options of every request that fuses faces."""

    faces: str | None
    """Faces of the target that are fused: `largest` (default), `all`, or numbers from `find_faces`: `0,2`."""
    strength: float | None
    """Share of the fused face in the blend with the target's own, 0 to 1; default 1."""
    skin: Literal["source", "target"] | None
    """Whose skin the fused face has: as the model makes it, or that of the head around it; default: the model's."""
    pixel_boost: Literal[1, 2, 4] | None
    """How many times the model's size a large face is fused at, a side; its square is what it costs; default 1."""


def write_options(
    *,
    model: str | None = None,
    picture_format: str | None = None,
    mark: bool | None = None,
    consent: str | None = None,
    faces: str | None = None,
    strength: float | None = None,
    skin: str | None = None,
    pixel_boost: int | None = None,
) -> list[Part]:
    """Write options as fields. An unknown one is a TypeError, as with any function."""
    options = {"model": model, "format": picture_format, "mark": mark, "consent": consent}
    of_faces = {"faces": faces, "strength": strength, "skin": skin, "pixel_boost": pixel_boost}
    return write_fields({**options, **of_faces})


def write_choice(reference: PictureInput | None, similarity: float | None, options: FuseOptions) -> list[Part]:
    """Write the options of a fusion, and the picture of the face that is fused, if there is one.

    Raises: InputMissing if its file cannot be read.
    """
    chosen: FuseOptions = options if reference is None else {"faces": "reference", **options}
    parts = [*write_options(**chosen), *write_fields({"reference_similarity": similarity})]
    return parts if reference is None else [*parts, write_picture("reference", reference)]


def write_fields(fields: dict[str, Any]) -> list[Part]:
    """Write the fields that are not None; a sequence becomes several fields."""
    parts: list[Part] = []
    for name, value in fields.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        parts += [(name, (None, write_text(one))) for one in values if one is not None]
    return parts


def write_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_quoted(text: str) -> str:
    """Write a text as the value of a header.

    Source: RFC 8941, section 3.3.3.
    """
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def write_picture(name: str, picture: PictureInput) -> Part:
    """Write a picture as a field.

    Raises: InputMissing if its file cannot be read.
    """
    return name, (FILE_NAME, read_picture(picture))


def write_sources(source: Source | list[Source]) -> list[Part]:
    """Write one or several sources as fields.

    Raises: InputMissing if a file cannot be read.
    """
    return [write_source(one) for one in (source if isinstance(source, list) else [source])]


def write_styles(
    styles: PictureInput | list[PictureInput], weights: Sequence[float] | None, strength: float
) -> list[Part]:
    """Write one or several styles as fields, and how they are mixed.

    Raises: InputMissing if a file cannot be read.
    """
    fields = {
        "weights": None if weights is None else ",".join(f"{weight:.6f}" for weight in weights),
        "strength": f"{strength:.6f}",
    }
    parts = [write_picture("style", style) for style in (styles if isinstance(styles, list) else [styles])]
    return [*parts, *write_fields(fields)]


def write_source(source: Source) -> Part:
    """Write a source as a field.

    Raises: InputMissing if its file cannot be read.
    """
    if isinstance(source, KeptIdentity):
        return "identity", (None, source.identity)
    return write_picture("source", source)


def open_film(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a film, which is too long to be kept in memory.

    Raises: InputMissing if its file cannot be read.
    """
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InputMissing(f"{os.fspath(path)}: {error.strerror}; name the file of a film") from None


def read_picture(picture: PictureInput) -> bytes:
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, str | os.PathLike):
        try:
            return Path(picture).read_bytes()
        except OSError as error:
            raise InputMissing(f"{os.fspath(picture)}: {error.strerror}; name the file of a picture") from None
    data = picture.read()
    if not isinstance(data, bytes):
        raise TypeError("a picture's file is opened as text; open it with mode 'rb'")
    return data
