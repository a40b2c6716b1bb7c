"""The file of API keys, as admins list and change it over HTTP. Every request leaves a line in the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fusionray.errors import ConfigInvalid, KeyNameTaken, UnknownKey
from fusionray.safety.audit import KeyAuditEntry
from fusionray.serving.auth.callers import Caller
from fusionray.serving.auth.key_file import OPERATOR, ApiKey, add_key, read_keys, remove_key
from fusionray.serving.auth.key_replies import AddedKey, ListedKeys, RemovedKey
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import Problem, unavailable

Reply = TypeVar("Reply")


@dataclass(frozen=True)
class KeyRequest:
    """One request of a caller about the keys; `key` is the name of the key that it concerns, if it is one."""

    task: str
    caller: Caller
    key: str = ""
    asked_at: float = field(default_factory=time.perf_counter)

    def write_entry(self, reply: Any, common: dict[str, Any]) -> KeyAuditEntry:
        """Build the entry: the `common` fields, what was asked for, and the name of the key."""
        del reply
        return KeyAuditEntry(**common, task=self.task, key=self.key)


class KeyAdmin:
    """List, add and remove the keys of a file for callers whose key is an admin's. Others get a `Problem`."""

    def __init__(self, file: Path | None, requests: RequestService) -> None:
        self.file = file
        self.requests = requests

    async def list(self, caller: Caller) -> ListedKeys | Problem:
        """List the keys of the file."""

        def work(file: Path) -> ListedKeys:
            return ListedKeys(read_keys(file))

        return await self.answer(KeyRequest("keys.list", caller), work)

    async def add(self, caller: Caller, name: str, limits: dict[str, Any]) -> AddedKey | Problem:
        """Make a key with the `limits` that `add_key` takes."""

        def work(file: Path) -> AddedKey:
            return AddedKey(add_key(file, name, **limits))

        return await self.answer(KeyRequest("keys.add", caller, name), work)

    async def remove(self, caller: Caller, name: str) -> RemovedKey | Problem:
        """Remove a key; replicas refuse it within a second."""

        def work(file: Path) -> RemovedKey | Problem:
            if name == OPERATOR:
                detail = "the operator's key comes from the environment of the service; change it there"
                return Problem(403, "operator_key", "Not allowed", detail)
            remove_key(file, name)
            return RemovedKey()

        return await self.answer(KeyRequest("keys.remove", caller, name), work)

    async def answer(self, request: KeyRequest, work: Callable[[Path], Reply | Problem]) -> Reply | Problem:
        """Do the work on a thread if the caller may ask for it, and log the request."""
        reply = await self.requests.wait_for(asyncio.to_thread(lambda: self.work_for(request.caller.key, work)))
        return await self.requests.close(request, reply, "")

    def work_for(self, key: ApiKey | None, work: Callable[[Path], Reply | Problem]) -> Reply | Problem:
        """Do the work, or return why it is refused."""
        if key is not None and not key.admin:
            return Problem(403, "admin_only", "Not allowed", f"the key {key.name} is not an admin's; ask the operator")
        if self.file is None:
            detail = "this service has no file of keys; start it with the setting keys.file"
            return Problem(409, "no_key_file", "No file of keys", detail)
        try:
            return work(self.file)
        except KeyNameTaken:
            return Problem(409, "key_exists", "Name taken", "a key has this name; remove it first, or choose another")
        except UnknownKey:
            return Problem(404, "unknown_key", "No such key", "no key has this name; `GET /v1/keys` lists them")
        except (ConfigInvalid, OSError) as error:
            return unavailable("key_file", f"the file of keys cannot be read or written ({error})")
