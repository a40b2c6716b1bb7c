"""Clients that keep a service busy, and what they were answered; the replicas that answer them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from fusionray.bundle.bundle import Bundle, write_bundle
from fusionray.hardware.processes import add_descendants, find_processes, list_processes
from fusionray.serving.application import APP_NAME
from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny

SOURCE, TARGET = encode(draw_person(1)), encode(draw_person(2))


CUT_OFF = 0


def write_variant(folder: Path, seed: int) -> Bundle:
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity(seed)}
    return write_bundle(folder, files, describe_tiny())


@dataclass
class Load:
    """Requests one after the other on several connections, until told to stop."""

    url: str
    model: str | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    answers: list[tuple[int, str]] = field(default_factory=list)

    def work(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self.stopping.is_set():
                data = {"model": self.model} if self.model else {}
                try:
                    found = client.post("/v1/fuse", files={"source": SOURCE, "target": TARGET}, data=data)
                except httpx.TransportError as error:
                    self.answers.append((CUT_OFF, repr(error)))
                else:
                    self.answers.append((found.status_code, found.headers.get("x-fusionray-bundle", found.text)))

    @contextmanager
    def running(self, num_clients: int = 3) -> Iterator[None]:
        clients = [threading.Thread(target=self.work) for _ in range(num_clients)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self.stopping.set()
            for client in clients:
                client.join()


def find_replicas(part: str) -> set[int]:
    """Find the processes of this session's Ray that hold a part of the service."""
    ours = add_descendants({os.getpid()}, list_processes())
    return ours & set(find_processes(f"ray::ServeReplica:{APP_NAME}:{part}"))
