"""The file of API keys: who may send requests, how many, and for which models. Only digests are stored.

A key made here has 256 random bits, so its sha256 is as safe as a slow hash such as bcrypt. A slow hash protects
passwords, which can be guessed; 256 random bits cannot, however fast a guess is. A slow hash would also cost each
request 0.1 s of a core, which any stranger could make the service spend. An operator may set a shorter key in the
environment; its digest lies in the state of the cluster's head, where whoever can read it may try guesses: generate it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AwareDatetime, Field

from fusionray.config import Section, validate
from fusionray.errors import ConfigInvalid, KeyNameTaken, UnknownKey
from fusionray.safety.audit import ANONYMOUS
from fusionray.storage.atomic_files import replace_private_file

KEY_PREFIX = "fr_"
PLAIN_KEY = re.compile(rf"{KEY_PREFIX}[A-Za-z0-9_-]{{43}}")
KEY_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
# Name of the key that comes from the environment; it has no limits.
OPERATOR = "operator"
# Requests without a key belong to ANONYMOUS: a key of that name would own their jobs and identities.
RESERVED_NAMES = frozenset({OPERATOR, ANONYMOUS})
FILE_HEAD = (
    "# Keys of the service, as sha256; `fusionray keys add|list|remove` changes this file. Never write a key here.\n"
)
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ApiKey(Section):
    """One key: the name of its owner, its digest and its limits."""

    name: str = Field(pattern=KEY_NAME_PATTERN, description="Name of the key's owner.")
    sha256: Digest = Field(description="Digest of the key, in hexadecimal digits.")
    expires: AwareDatetime | None = Field(default=None, description="Time from which it is refused; with a time zone.")
    requests_per_minute: int | None = Field(default=None, ge=1, description="More are answered 429.")
    images_per_day: int | None = Field(default=None, ge=1, description="More are answered 429, until midnight UTC.")
    models: tuple[str, ...] | None = Field(default=None, description="Models that it may use; default: all.")
    admin: bool = Field(default=False, description="Whether it may list, add and remove keys over HTTP.")

    def may_use(self, model: str) -> bool:
        """Tell whether the key may use a model."""
        return self.models is None or model in self.models


class ApiKeyFile(Section):
    """Content of a file of keys."""

    keys: tuple[ApiKey, ...] = Field(default=(), description="Keys that the service accepts.")


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """Read a file of keys. Errors never repeat its content, which could be a key.

    Raises: ConfigInvalid.
    """
    try:
        text = file.read_text(encoding="utf-8")
        tree = yaml.safe_load(text)
    except OSError as error:
        raise ConfigInvalid(f"{file}: cannot be read ({error.strerror}); make it with `fusionray keys add`") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigInvalid(f"{file}: not valid YAML{f', line {mark.line + 1}' if mark else ''}") from None
    entries = tree.get("keys") if isinstance(tree, dict) else None
    entries = entries if isinstance(entries, list) else []
    fields = [field for entry in entries if isinstance(entry, dict) for field in entry]
    if PLAIN_KEY.search(text) or "key" in fields:
        raise ConfigInvalid(
            f"{file}: a plain key stands in it; remove it, since whoever reads the file could use it, and make another "
            "with `fusionray keys add`"
        )
    if not isinstance(tree, dict | None):
        raise ConfigInvalid(f"{file}: expected `keys:` with a list behind it")
    keys = validate(ApiKeyFile, tree or {}, str(file)).keys
    names = [key.name for key in keys]
    twice = sorted({name for name in names if names.count(name) > 1} | (RESERVED_NAMES & set(names)))
    if twice:
        raise ConfigInvalid(f"{file}: the name {twice[0]} is taken; give every key a name of its own")
    return keys


def write_keys(file: Path, keys: tuple[ApiKey, ...]) -> None:
    """Write a file of keys atomically, for its owner alone."""
    tree = {"keys": [key.model_dump(mode="json", exclude_defaults=True) for key in keys]}
    replace_private_file(file, (FILE_HEAD + yaml.safe_dump(tree, sort_keys=False)).encode())


def add_key(
    file: Path,
    name: str,
    *,
    expires: str | None = None,
    requests_per_minute: int | None = None,
    images_per_day: int | None = None,
    models: tuple[str, ...] | None = None,
    admin: bool = False,
) -> str:
    """Make a key and add its digest to a file; return the key, which is stored nowhere.

    Raises: KeyNameTaken; ConfigInvalid if a limit makes no sense, or the file is invalid.
    """
    plain = f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"
    entry = {
        "name": name,
        "sha256": hashlib.sha256(plain.encode()).hexdigest(),
        "expires": read_time(expires) if expires else None,
        "requests_per_minute": requests_per_minute,
        "images_per_day": images_per_day,
        "models": models,
        "admin": admin,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(file):
        keys = read_keys(file) if file.exists() else ()
        if name in RESERVED_NAMES or any(key.name == name for key in keys):
            raise KeyNameTaken(f"{file}: the name {name} is taken; remove that key first, or choose another name")
        write_keys(file, (*keys, validate(ApiKey, entry, f"key {name}")))
    return plain


def remove_key(file: Path, name: str) -> None:
    """Remove a key from a file; running services follow within a second.

    Raises: UnknownKey; ConfigInvalid if the file is missing or invalid.
    """
    read_keys(file)  # a file that is missing or invalid is named before its folder is locked
    with locked_folder(file):
        keys = read_keys(file)
        left = tuple(key for key in keys if key.name != name)
        if len(left) == len(keys):
            raise UnknownKey(
                f"{file}: no key is named {name}; there are: {', '.join(key.name for key in keys) or 'none'}"
            )
        write_keys(file, left)


@contextlib.contextmanager
def locked_folder(file: Path) -> Iterator[None]:
    """Lock the folder of a file, so that two commands that change the file do not lose each other's keys."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read_time(text: str) -> datetime:
    """Parse a date or time in ISO 8601; without a time zone it is UTC.

    Raises: ConfigInvalid.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigInvalid(f"expires {text}: write a date such as 2027-01-31, or 2027-01-31T12:00+01:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def describe(key: ApiKey) -> str:
    """Describe a key's limits in one line, without its digest."""
    limits = [f"until {key.expires.isoformat()}"] if key.expires else []
    limits += [f"{key.requests_per_minute} requests a minute"] if key.requests_per_minute else []
    limits += [f"{key.images_per_day} images a day"] if key.images_per_day else []
    limits += [f"models {', '.join(key.models)}"] if key.models is not None else []
    limits += ["admin"] if key.admin else []
    return f"{key.name}: {'; '.join(limits) or 'no limits'}"
