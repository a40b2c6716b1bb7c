"""Tell a client's server that its job has ended: signed messages, tried again until one is accepted.

    webhook/address      where to send it, encrypted
    webhook/0001.json    first attempt, what came of it, and when the next one is due
    webhook/lease-00001  replica that makes an attempt (platform/fusionray/storage/lease.py)

The state lies in the job's folder, so the attempts go on over restarts, in any replica. If a replica dies between an
attempt and its record, the message is sent twice, with the same `webhook-id`.

Source: Standard Webhooks, spec/standard-webhooks.md.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import Any, Literal

from fusionray.environment import WEBHOOK_SECRET_VARIABLE
from fusionray.errors import ConfigInvalid, NotDecrypted, UnknownJob
from fusionray.serving.config_sections.jobs import WebhookConfig
from fusionray.serving.jobs.folder import WEBHOOK_NAME, JobFolder
from fusionray.serving.jobs.post import post
from fusionray.serving.jobs.service_key import ServiceKey
from fusionray.storage.atomic_files import create_file, make_private_folder, replace_private_file
from fusionray.storage.lease import Lease

logger = logging.getLogger("ray.serve")

ADDRESS_NAME = "address"
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
NUM_THREADS = 4
POLL_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 3600.0
WAIT_GROWTH = 4
# The receiver wants no more of these messages.
GONE = 410

WebhookState = Literal["waiting", "delivered", "failed"]


@dataclass(frozen=True)
class WebhookAttempt:
    """One attempt: when it was made, the status of the answer or why there was none, and when the next one is due.

    Times are in seconds since 1970.
    """

    at: float
    status: int | None
    error: str | None
    state: WebhookState
    next_at: float | None


@dataclass(frozen=True)
class WebhookStatus:
    """Whether the end of a job was told, and the attempts so far, the oldest first."""

    host: str
    state: WebhookState
    attempts: tuple[WebhookAttempt, ...]

    @property
    def due_at(self) -> float:
        """Return when the next attempt is due, in seconds since 1970."""
        return (self.attempts[-1].next_at or 0.0) if self.attempts else 0.0


def write_address(folder: JobFolder, url: str, key: ServiceKey) -> None:
    """Store where to tell the end of a job."""
    place = make_private_folder(folder.path / WEBHOOK_NAME)
    create_file(place / ADDRESS_NAME, key.cipher.encrypt(url.encode(), folder.bind(WEBHOOK_NAME)))


def read_webhook(folder: JobFolder) -> WebhookStatus | None:
    """Read how the webhook of a job stands; None if it has none."""
    host = folder.record.webhook
    if host is None:
        return None
    files = sorted((folder.path / WEBHOOK_NAME).glob("[0-9]*.json"))
    attempts = tuple(WebhookAttempt(**json.loads(file.read_bytes())) for file in files)
    return WebhookStatus(host, attempts[-1].state if attempts else "waiting", attempts)


def parse_secret(text: str | None) -> bytes:
    """Read the secret of an environment variable.

    Raises: ConfigInvalid; the message does not repeat it.
    """
    try:
        secret = base64.b64decode((text or "").removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        secret = b""
    if not (text or "").startswith(SECRET_PREFIX) or not 24 <= len(secret) <= 64:
        raise ConfigInvalid(
            f"{WEBHOOK_SECRET_VARIABLE}: jobs.webhooks.hosts needs a secret, {SECRET_PREFIX} and 24 to 64 bytes in "
            f"base64; make one with `echo {SECRET_PREFIX}$(openssl rand -base64 32)`"
        )
    return secret


def sign(secret: bytes, message: str, timestamp: int, body: bytes) -> str:
    """Sign a message: HMAC-SHA256 over its ID, the time of the attempt and the body, version 1."""
    signed = f"{message}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


class WebhookSender:
    """Send the webhooks of ended jobs, until `drain`.

    `list_ended` lists the folders of ended jobs, `describe` builds the data of a message: the JSON of the job.
    """

    def __init__(
        self,
        list_ended: Callable[[], list[JobFolder]],
        describe: Callable[[JobFolder], dict[str, Any]],
        key: ServiceKey,
        settings: WebhookConfig,
        secret: bytes,
    ) -> None:
        self.list_ended = list_ended
        self.describe = describe
        self.key = key
        self.settings = settings
        self.secret = secret
        self.stop = threading.Event()
        # Jobs whose end is told, or given up.
        self.settled: set[tuple[str, float]] = set()
        self.threads = [threading.Thread(target=self.run, name="webhook", daemon=True) for _ in range(NUM_THREADS)]

    def start(self) -> None:
        """Start to send."""
        for thread in self.threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Tell whether all threads are running."""
        return all(thread.is_alive() for thread in self.threads)

    def drain(self) -> None:
        """Stop before the next attempt."""
        self.stop.set()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()

    def run(self) -> None:
        """Send what is due, again and again."""
        # A watcher of a lease reuses its object.
        leases: dict[tuple[str, float], Lease] = {}
        while not self.stop.wait(POLL_SECONDS):
            try:
                self.send_due(leases)
            except OSError as error:
                logger.error("webhooks: %s; trying again", error)
            except Exception:
                logger.exception("webhooks: an unexpected error; trying again")

    def send_due(self, leases: dict[tuple[str, float], Lease]) -> None:
        """Make the attempts that are due and that no other thread or replica makes."""
        folders = [folder for folder in self.list_ended() if folder.record.webhook is not None]
        known = {folder.record.identity for folder in folders}
        self.settled &= known
        for gone in leases.keys() - known:
            del leases[gone]
        for folder in folders:
            key = folder.record.identity
            if self.stop.is_set() or key in self.settled or not self.is_due(folder):
                continue
            lease = leases.setdefault(
                key, Lease(folder.path / WEBHOOK_NAME, timeout_seconds=3 * self.settings.timeout_seconds)
            )
            # The job may be removed at any time.
            with contextlib.suppress(FileNotFoundError, UnknownJob):
                if lease.try_take():
                    with lease.held():
                        if self.is_due(folder):
                            self.attempt(folder)

    def is_due(self, folder: JobFolder) -> bool:
        """Tell whether an attempt is due."""
        status = read_webhook(folder)
        if status is None or status.state != "waiting":
            self.settled.add(folder.record.identity)
            return False
        return status.due_at <= time.time()

    def attempt(self, folder: JobFolder) -> None:
        """Make one attempt and record it.

        Raises: FileNotFoundError, UnknownJob if the job is removed.
        """
        before = read_webhook(folder)
        assert before is not None
        status, error = None, None
        at = time.time()
        try:
            status = self.send(folder, int(at))
        except NotDecrypted:
            status, error = GONE, "the address cannot be read"
        except (OSError, HTTPException) as fault:
            # The text of a fault could repeat the address, which may hold a secret.
            error = type(fault).__name__
        number = len(before.attempts) + 1
        state: WebhookState = "waiting"
        if status is not None and 200 <= status < 300:
            state = "delivered"
        elif status == GONE or number >= self.settings.max_attempts:
            state = "failed"
        wait = min(LONGEST_WAIT_SECONDS, self.settings.first_retry_seconds * WAIT_GROWTH ** (number - 1))
        made = WebhookAttempt(at, status, error, state, time.time() + wait if state == "waiting" else None)
        record = folder.path / WEBHOOK_NAME / f"{number:04d}.json"
        replace_private_file(record, json.dumps(asdict(made)).encode())
        if state == "failed":
            logger.warning("job %s: its end could not be told to %s", folder.record.job, before.host)

    def send(self, folder: JobFolder, timestamp: int) -> int:
        """Send the message of a job once; return the status of the answer.

        Raises: NotDecrypted; OSError or HTTPException if there is no answer.
        """
        encrypted = (folder.path / WEBHOOK_NAME / ADDRESS_NAME).read_bytes()
        url = self.key.cipher.decrypt(encrypted, folder.bind(WEBHOOK_NAME)).decode()
        data = self.describe(folder)
        message = f"msg_{folder.record.job}"
        body = json.dumps({"type": f"job.{data['status']}", "timestamp": data["ended_at"], "data": data}).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "fusionray",
            "webhook-id": message,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(self.secret, message, timestamp, body),
        }
        return post(url, body, headers, self.settings.timeout_seconds)
