"""Replies to admins about API keys."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.serving.auth.key_file import ApiKey


@dataclass(frozen=True)
class ListedKeys:
    """The API keys of the service's file."""

    keys: tuple[ApiKey, ...]


@dataclass(frozen=True)
class AddedKey:
    """A new API key, in plain text: it is stored nowhere."""

    key: str


@dataclass(frozen=True)
class RemovedKey:
    """An API key was removed."""
