"""The order of a film: what a replica asks a task of the cluster to do, until it withdraws it.

A task cannot be cancelled from outside: in Ray 2.60 `ray.cancel` of a task, with `force` or without, ends the process
of the caller, a replica, if the task is being sent at that moment (`TaskManager::CompletePendingTask`;
docs/decisions.md). So the order lies in the film's folder, and the task looks whether it is still the one that it has.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.model_cards import ModelVersion
from fusionray.storage.atomic_files import create_file, replace_private_file

ORDER_NAME = "order"
WITHDRAWN_PREFIX = "withdrawn-"


@dataclass(frozen=True)
class VideoOrder:
    """An order: the job, and the version that makes its film. Only the newest order of a film is followed."""

    token: str
    folder: JobFolder
    version: ModelVersion

    def withdraw(self) -> None:
        """Tell the task to leave; it does so with the next frame. Does nothing if the job is removed."""
        assert self.folder.film is not None
        try:
            create_file(self.folder.film.path / f"{WITHDRAWN_PREFIX}{self.token}", b"")
        except (FileNotFoundError, FileExistsError):
            return

    def is_withdrawn(self) -> bool:
        """Tell whether the task must leave: the order is withdrawn or replaced, or the job has ended or is removed.

        Raises: OSError if the storage does not answer.
        """
        film = self.folder.film
        assert film is not None
        try:
            newest = (film.path / ORDER_NAME).read_text()
        except FileNotFoundError:
            return True
        return (
            newest != self.token or (film.path / f"{WITHDRAWN_PREFIX}{self.token}").exists() or not self.folder.is_open
        )


def place_order(folder: JobFolder, version: ModelVersion) -> VideoOrder:
    """Place a new order for the film of a job; a task that follows an older one leaves.

    Raises: FileNotFoundError if the job is removed; OSError.
    """
    assert folder.film is not None
    order = VideoOrder(secrets.token_hex(16), folder, version)
    replace_private_file(folder.film.path / ORDER_NAME, order.token.encode())
    return order
