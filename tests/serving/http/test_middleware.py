from __future__ import annotations

import asyncio
import hashlib
from collections.abc import MutableMapping
from pathlib import Path

import httpx
import pytest
import yaml

from fusionray.environment import KEY_VARIABLE
from fusionray.errors import ConfigInvalid
from fusionray.serving.addresses import is_loopback
from fusionray.serving.application import build, with_absolute_paths
from fusionray.serving.asgi import Message, Receive, Scope, Send
from fusionray.serving.auth.api_keys import ApiKeyStore, read_key_digest
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.middleware.api_keys import ApiKeyMiddleware
from fusionray.serving.http.middleware.request_limits import BodyLimit, BodyLimitMiddleware, DisconnectMiddleware
from fusionray.serving.pipeline.memory_budget import MemoryBudget

KEY = "a-key-of-good-length"
DIGEST = hashlib.sha256(KEY.encode()).digest()
RING = ApiKeyStore(None, DIGEST)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def ask(app: ApiKeyMiddleware | BodyLimitMiddleware, path: str = "/v1/fuse", **headers: str) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer  {KEY}"])
def test_the_right_key_is_accepted(authorization: str) -> None:
    assert ask(ApiKeyMiddleware(hello, RING), authorization=authorization).text == "hello"


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", KEY, f"Basic {KEY}", f"Bearer {KEY}x"])
def test_any_other_key_is_401(authorization: str) -> None:
    response = ask(ApiKeyMiddleware(hello, RING), authorization=authorization)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["reason"] == "unauthorized"


def test_no_key_is_401_but_health_stays_open() -> None:
    assert ask(ApiKeyMiddleware(hello, RING)).status_code == 401
    assert ask(ApiKeyMiddleware(hello, RING), "/healthz").status_code == 200
    assert ask(ApiKeyMiddleware(hello, RING), "/healthz/../v1/fuse").status_code == 401


def test_a_websocket_is_closed_before_it_opens() -> None:
    said: list[object] = []

    async def send(message: Message) -> None:
        said.append(message["type"])

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    asyncio.run(ApiKeyMiddleware(hello, RING)({"type": "websocket", "path": "/v1/fuse", "headers": []}, receive, send))
    assert said == ["websocket.close"]


@pytest.mark.parametrize("key", [b"\xff\xfe", b"\xed\xa0\x80", "\u96ea".encode(), b"a" * 100_000])
def test_a_key_that_is_not_text_is_401(key: bytes) -> None:
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    headers = [(b"authorization", b"Bearer " + key)]
    asyncio.run(ApiKeyMiddleware(hello, RING)({"type": "http", "path": "/v1/fuse", "headers": headers}, receive, send))
    assert said[0]["status"] == 401


def test_without_a_key_set_none_is_required() -> None:
    assert ask(ApiKeyMiddleware(hello, ApiKeyStore())).status_code == 200


@pytest.mark.parametrize("length", ["11", "-1", "ten", "9" * 5000])
def test_a_stated_length_that_is_too_long_or_not_a_number_is_413(length: str) -> None:
    response = ask(BodyLimitMiddleware(hello, BodyLimit(10)), **{"content-length": length})
    assert response.status_code == 413
    assert response.headers["connection"] == "close"


def test_the_key_comes_from_the_environment_as_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert read_key_digest() == DIGEST
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(ConfigInvalid, match="at least 16") as caught:
        read_key_digest()
    assert "short" not in str(caught.value)
    monkeypatch.delenv(KEY_VARIABLE)
    assert read_key_digest() is None


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigInvalid, match=r"unknown key 'ingress\.num_replica'"):
        build({"bundle": "b", "ingress": {"num_replica": 2}})
    with pytest.raises(ConfigInvalid, match="models"):
        build({})
    with pytest.raises(ConfigInvalid, match="max_replicas 1 is below min_replicas 2"):
        build({"bundle": "b", "fuser": {"min_replicas": 2, "max_replicas": 1}})


def test_paths_of_the_settings_hold_in_the_folder_of_any_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIONRAY_ROOT", str(tmp_path))
    tree = {"bundle": "b", "signing": {"certificate": "signing.pem", "key": "/keys/signing.key"}}
    config = with_absolute_paths(ServeConfig.model_validate(tree))
    assert config.models[0].bundle == str(tmp_path / "b")
    assert config.signing.certificate == str(tmp_path / "signing.pem")
    assert config.signing.key == "/keys/signing.key"
    plain = ServeConfig.model_validate({"bundle": "models:/m@prod"})
    assert with_absolute_paths(plain).models == plain.models
    assert with_absolute_paths(plain).jobs.folder == str(tmp_path / "runs" / "jobs")


def test_the_configuration_file_has_valid_settings() -> None:
    tree = yaml.safe_load((Path(__file__).parents[3] / "serve" / "config.yaml").read_text())
    (application,) = tree["applications"]
    ServeConfig.model_validate(application["args"])
    assert application["import_path"] == "serve.app:build"
    assert is_loopback(tree["http_options"]["host"])


class Client:
    """An ASGI client that sends one request, and disconnects when the test says so."""

    def __init__(self) -> None:
        self.leaving = asyncio.Event()
        self.sent = False
        self.answers: list[str] = []

    async def receive(self) -> dict[str, object]:
        if not self.sent:
            self.sent = True
            return {"type": "http.request", "body": b"x", "more_body": False}
        await self.leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, object]) -> None:
        self.answers.append(str(message["type"]))


def test_work_on_a_request_is_cancelled_when_its_client_disconnects() -> None:
    async def ask() -> tuple[list[str], list[str]]:
        ends: list[str] = []
        begun = asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ends.append("given up")
                raise

        client = Client()
        work = asyncio.create_task(DisconnectMiddleware(slow)({"type": "http"}, client.receive, client.send))
        await begun.wait()
        client.leaving.set()
        await asyncio.wait_for(work, 5)
        return ends, client.answers

    assert asyncio.run(ask()) == (["given up"], [])


def test_a_client_that_waits_gets_its_answer_and_leaves_no_task_behind() -> None:
    async def ask() -> tuple[list[str], int]:
        client = Client()

        async def read(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await hello(scope, receive, send)

        await DisconnectMiddleware(read)({"type": "http"}, client.receive, client.send)
        await asyncio.sleep(0)
        return client.answers, len(asyncio.all_tasks())

    assert asyncio.run(ask()) == (["http.response.start", "http.response.body"], 1)


class Upload:
    """An ASGI request whose body arrives when the test says so; `app` notes that it has begun to work on it."""

    def __init__(self, name: str, num_bytes: int | None, begun: list[str]) -> None:
        self.name = name
        length = (b"transfer-encoding", b"chunked") if num_bytes is None else (b"content-length", b"%d" % num_bytes)
        self.scope: Scope = {"type": "http", "headers": [length] if num_bytes != 0 else []}
        self.arrived = asyncio.Event()
        self.begun = begun
        self.said: list[Message] = []

    async def receive(self) -> Message:
        await self.arrived.wait()
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def send(self, message: Message) -> None:
        self.said.append(message)

    async def work(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(self.name)
        await receive()
        await hello(scope, receive, send)

    def start(self, uploads: MemoryBudget, timeout_seconds: float = 30.0) -> asyncio.Task[None]:
        limited = BodyLimitMiddleware(self.work, BodyLimit(100, timeout_seconds, uploads))
        return asyncio.create_task(limited(self.scope, self.receive, self.send))  # type: ignore[arg-type]

    @property
    def status(self) -> object:
        return self.said[0]["status"]


def test_bodies_share_a_budget_and_what_has_begun_is_finished_first() -> None:
    async def check() -> None:
        begun: list[str] = []
        uploads = MemoryBudget(150)
        # A body of unknown length counts as the longest that is allowed; a request without a body never waits.
        lengths = {"a": 80, "b": None, "c": 60, "d": 0}
        asked = {name: Upload(name, length, begun) for name, length in lengths.items()}
        tasks = {name: upload.start(uploads) for name, upload in asked.items()}
        await settle()
        assert begun == ["a", "d"]
        # One that leaves while it waits lets those behind it go on.
        tasks["b"].cancel()
        await settle()
        assert begun == ["a", "d", "c"]
        for upload in asked.values():
            upload.arrived.set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert [asked[name].status for name in "acd"] == [200] * 3
        assert uploads.free == uploads.total

    asyncio.run(check())


def test_a_request_that_finds_no_memory_for_its_body_is_503_and_the_body_is_not_read() -> None:
    async def check() -> None:
        begun: list[str] = []
        uploads = MemoryBudget(150)
        first, second = Upload("a", 100, begun), Upload("b", 100, begun)
        working, refused = first.start(uploads), second.start(uploads, 0.05)
        await asyncio.wait_for(refused, 5)
        assert (second.status, begun) == (503, ["a"])
        assert (b"retry-after", b"1") in second.said[0]["headers"]
        first.arrived.set()
        await working
        assert uploads.free == uploads.total

    asyncio.run(check())


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)
