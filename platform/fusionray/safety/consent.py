"""Consent: a policy decides before each fusion whether the source face may be used."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fusionray.config import Section
from fusionray.environment import resolve_location
from fusionray.errors import ConfigInvalid, ConsentRefused
from fusionray.safety.consent_token import read_secret, read_token

logger = logging.getLogger("fusionray")

HASH_LETTERS = 64


class ConsentConfig(Section):
    """The policy, and its file."""

    policy: str = Field(
        default="none",
        description="Consent policy: none, allow-list, token, or module:function for a policy of your own.",
    )
    file: str | None = Field(
        default=None, description="File of the policy. allow-list: sha256 lines; token: the secret."
    )

    @model_validator(mode="after")
    def check_file(self) -> ConsentConfig:
        if self.policy in {"allow-list", "token"} and self.file is None:
            raise ValueError(f"policy {self.policy} needs a file")
        if self.policy not in {"none", "allow-list", "token"} and not all(self.policy.partition(":")):
            raise ValueError(f"policy {self.policy!r} is none of: none, allow-list, token, module:function")
        return self


class ConsentPolicy(Protocol):
    """A consent policy. Several threads call it, and it may be slow: other pictures are decoded meanwhile."""

    def check(
        self, source_sha256: str, embedding: NDArray[np.float32] | None, token: str | None, key_name: str
    ) -> None:
        """Return if the source may be used.

        `source_sha256` is the hexadecimal hash of the received bytes; `embedding` [E] is None if the policy is called
        before the face was read; `key_name` is the name of the API key, or "anonymous".

        Raises: ConsentRefused with the reason. Any other exception refuses as well: it is logged, and the client's
            reason is consent_unavailable.
        """


class NoPolicy:
    """Permit every source, where consent is managed elsewhere."""

    def check(self, source_sha256: str, embedding: object, token: str | None, key_name: str) -> None:  # noqa: ARG002
        return


class AllowList:
    """Permit source files by their sha256. The list is read again when its file changes."""

    def __init__(self, path: Path) -> None:
        """Read the list.

        Raises: ConfigInvalid naming the line.
        """
        self.path = path
        # One tuple, replaced as a whole, so that a thread sees either the old list or the new one.
        self.listed = (self.read_version(), read_hashes(path))

    def check(self, source_sha256: str, embedding: object, token: str | None, key_name: str) -> None:  # noqa: ARG002
        try:
            version = self.read_version()
            if self.listed[0] != version:
                self.listed = (version, read_hashes(self.path))
        except (OSError, ConfigInvalid) as error:
            raise ConsentRefused(
                "consent_unavailable", f"the list of permitted sources cannot be read: {error}"
            ) from None
        if source_sha256 not in self.listed[1]:
            raise ConsentRefused("source_not_permitted", "the source picture is not on the list of permitted sources")

    def read_version(self) -> tuple[int, int, int]:
        try:
            status = self.path.stat()
        except OSError as error:
            raise ConfigInvalid(f"{self.path}: cannot be read ({error.strerror}); check path and access") from None
        return status.st_mtime_ns, status.st_size, status.st_ino


class TokenPolicy:
    """Permit the source of a signed token until it expires, and with one API key only if the token names one."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def __repr__(self) -> str:
        return "TokenPolicy()"

    def check(self, source_sha256: str, embedding: object, token: str | None, key_name: str) -> None:  # noqa: ARG002
        if token is None:
            raise ConsentRefused("consent_missing", "this service needs a consent token for the source picture")
        read_token(token, self.secret).check(source_sha256, key_name)


class FunctionPolicy:
    """Call a function of the operator with the arguments of `check`."""

    def __init__(self, function: Callable[[str, NDArray[np.float32] | None, str | None, str], object]) -> None:
        self.function = function

    def check(
        self, source_sha256: str, embedding: NDArray[np.float32] | None, token: str | None, key_name: str
    ) -> None:
        # The function may also return its decision: only None and True permit.
        try:
            answer = self.function(source_sha256, embedding, token, key_name)
        except ConsentRefused:
            raise
        except Exception as error:
            logger.exception("consent: the operator's policy failed")
            detail = f"the operator's policy failed ({type(error).__name__}), and nothing is permitted without it"
            raise ConsentRefused("consent_unavailable", detail) from error
        if answer is not None and answer is not True:
            raise ConsentRefused("consent_refused", "the operator's policy does not permit this source picture")


def build_policy(settings: ConsentConfig) -> ConsentPolicy:
    """Build the policy that the settings name.

    Raises: ConfigInvalid naming the file or function that cannot be used.
    """
    path = Path(resolve_location(settings.file)) if settings.file is not None else None
    if settings.policy == "allow-list" and path is not None:
        return AllowList(path)
    if settings.policy == "token" and path is not None:
        return TokenPolicy(read_secret(path))
    if settings.policy == "none":
        return NoPolicy()
    module, _, name = settings.policy.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigInvalid(f"consent.policy: {settings.policy} cannot be imported ({error})") from None
    if not callable(function):
        raise ConfigInvalid(f"consent.policy: {settings.policy} is not a function")
    return FunctionPolicy(function)


def read_hashes(path: Path) -> frozenset[str]:
    """Read the first word of each line, a sha256 as `sha256sum` writes it; `#` starts a comment.

    Raises: ConfigInvalid naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read ({error.strerror}); check path and access") from None
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{path}: is not text; write one sha256 a line") from None
    hashes = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words[0]) != HASH_LETTERS or not set(words[0].lower()) <= set("0123456789abcdef"):
            raise ConfigInvalid(f"{path}:{number}: does not begin with a sha256 of {HASH_LETTERS} hexadecimal letters")
        hashes.add(words[0].lower())
    return frozenset(hashes)
