"""The client: one method for each request of the service, `/openapi.json` describes them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self, Unpack
from urllib.parse import quote

from fusionray.client.answers import (
    ApiKey,
    FoundFaces,
    Fused,
    FusedItem,
    KeptIdentity,
    MadePicture,
    Model,
    NewKey,
    Usage,
)
from fusionray.client.archive import read_archive
from fusionray.client.connection import Connection
from fusionray.client.forms import (
    FuseOptions,
    PictureInput,
    PictureOptions,
    Source,
    write_choice,
    write_fields,
    write_options,
    write_picture,
    write_sources,
    write_styles,
)
from fusionray.client.job_client import JobClient
from fusionray.client.reading import build_answer, read_fused, read_made_picture
from fusionray.errors import ServiceRefused, ServiceUnreachable

HANDLE_HEADER = "X-FusionRay-Identity"


class FusionClient(JobClient):
    """A client of one service; threads may share it.

    Every method raises `ServiceRefused` if the service answers with a problem, `ServiceUnreachable` if it does not
    answer, `AnswerInvalid` if something else than this service answers, and `InputMissing` if the file of a picture
    cannot be read.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0, *, retry: bool = True) -> None:
        """Keep the settings; nothing is sent.

        `url` is the address of the service, such as `http://127.0.0.1:8000`. Without `api_key`, FUSIONRAY_API_KEY is
        the key, if it is set. `timeout` is the time in seconds that a request may take to connect, to send, and to wait
        for its answer, each. With `retry`, a request is sent again, within `timeout` seconds, when a service that is
        full (503), or a rate limit (429), says after which time.

        Raises: ValueError.
        """
        super().__init__(Connection(url, api_key, timeout, retry=retry))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def fuse(
        self,
        source: Source | list[Source],
        target: PictureInput,
        *,
        reference: PictureInput | None = None,
        reference_similarity: float | None = None,
        **options: Unpack[FuseOptions],
    ) -> Fused:
        """Fuse the face of the source into the target.

        Several sources, all pictures or all stored faces, are for as many numbers in `faces`, in their order.
        With `reference`, a picture, the face of the target is fused that is most similar to its largest one; the cosine
        of their identities must be `reference_similarity` (default 0.3) or more.
        """
        parts = [*write_sources(source), write_picture("target", target)]
        parts += write_choice(reference, reference_similarity, options)
        return read_fused(self.connection.send("POST", "/v1/fuse", files=parts))

    def make_picture(
        self, task: str, pictures: Mapping[str, PictureInput], **options: Unpack[PictureOptions]
    ) -> MadePicture:
        """Make a picture with a model of another task than face fusion; `list_models` names its inputs."""
        parts = [write_picture(name, picture) for name, picture in pictures.items()]
        path = f"/v1/{quote(task, safe='')}"
        return read_made_picture(self.connection.send("POST", path, files=[*parts, *write_options(**options)]))

    def stylize(
        self,
        content: PictureInput,
        styles: PictureInput | list[PictureInput],
        *,
        weights: Sequence[float] | None = None,
        strength: float = 1.0,
        **options: Unpack[PictureOptions],
    ) -> MadePicture:
        """Paint a content in the style of other pictures.

        Several styles are mixed with `weights`, one for each, or equally. `strength`: 0 (the content's own style) to 1.
        """
        parts = [write_picture("content", content), *write_styles(styles, weights, strength), *write_options(**options)]
        return read_made_picture(self.connection.send("POST", "/v1/stylize", files=parts))

    def find_faces(self, target: PictureInput, *, reference: PictureInput | None = None) -> FoundFaces:
        """Find the faces of a picture, and compare them with the largest one of `reference`."""
        parts = [write_picture("target", target)]
        parts += [] if reference is None else [write_picture("reference", reference)]
        return build_answer(FoundFaces, self.connection.ask("POST", "/v1/faces", files=parts))

    def keep_identity(self, source: PictureInput, *, consent: str | None = None) -> KeptIdentity:
        """Store the largest face of a picture, so that it is analysed once and used often."""
        parts = [write_picture("source", source), *write_fields({"consent": consent})]
        return build_answer(KeptIdentity, self.connection.ask("POST", "/v1/identities", files=parts))

    def get_identity(self, kept: KeptIdentity) -> KeptIdentity:
        """Ask when a stored face expires."""
        document = self.connection.ask("GET", "/v1/identities", headers={HANDLE_HEADER: kept.identity})
        found = build_answer(KeptIdentity, {**document, "identity": kept.identity})
        return replace(kept, expires_at=found.expires_at)

    def remove_identity(self, kept: KeptIdentity) -> None:
        """Remove a stored face."""
        self.connection.send("DELETE", "/v1/identities", headers={HANDLE_HEADER: kept.identity})

    def fuse_batch(
        self,
        source: Source | list[Source],
        targets: Sequence[PictureInput],
        *,
        reference: PictureInput | None = None,
        reference_similarity: float | None = None,
        **options: Unpack[FuseOptions],
    ) -> tuple[FusedItem, ...]:
        """Fuse one face into several targets; an item whose picture was not made has a `problem` instead.

        Several sources and `reference` are as in `fuse`.
        """
        parts = [*write_sources(source), *(write_picture("target", target) for target in targets)]
        parts += write_choice(reference, reference_similarity, options)
        answer = self.connection.send("POST", "/v1/batches", files=parts)
        return tuple(read_archive(io.BytesIO(answer.content)))

    def list_models(self) -> tuple[Model, ...]:
        """List the served models, the default first."""
        return tuple(self.connection.list_pages("/v1/models", "models", Model))

    def usage(self) -> Usage:
        """Ask what the key allows, and how much of it is used up."""
        return build_answer(Usage, self.connection.ask("GET", "/v1/usage"))

    def list_keys(self) -> tuple[ApiKey, ...]:
        """List the keys of the service, for its admins."""
        return tuple(self.connection.list_pages("/v1/keys", "keys", ApiKey))

    def add_key(
        self,
        name: str,
        *,
        expires: datetime | None = None,
        requests_per_minute: int | None = None,
        images_per_day: int | None = None,
        models: Sequence[str] | None = None,
    ) -> NewKey:
        """Make a key, for admins. `expires` has a time zone; a limit of None is none, `models` of None are all."""
        document = {
            "name": name,
            "expires": None if expires is None else expires.isoformat(),
            "requests_per_minute": requests_per_minute,
            "images_per_day": images_per_day,
            "models": None if models is None else list(models),
        }
        return build_answer(NewKey, self.connection.ask("POST", "/v1/keys", json=document))

    def remove_key(self, name: str) -> None:
        """Remove a key, for admins."""
        self.connection.send("DELETE", f"/v1/keys/{quote(name, safe='')}")

    def is_ready(self) -> bool:
        """Return whether the service answers and its default model is loaded."""
        try:
            self.connection.send("GET", "/readyz", retry=False)
        except (ServiceRefused, ServiceUnreachable):
            return False
        return True
