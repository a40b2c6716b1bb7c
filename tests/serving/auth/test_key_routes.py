"""Keys and usage over HTTP: the real routes and middleware, without Ray."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI, Request

from fusionray.safety.audit import AuditConfig
from fusionray.serving.auth.api_keys import ApiKeyStore
from fusionray.serving.auth.key_file import add_key, read_keys
from fusionray.serving.auth.rate_limit_client import RateLimitClient
from fusionray.serving.auth.rate_limits import Bucket, RateLimiter, TokenLease
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.key_admin import KeyAdmin
from fusionray.serving.http.middleware.api_keys import ApiKeyMiddleware
from fusionray.serving.http.middleware.limit_headers import LimitHeadersMiddleware
from fusionray.serving.http.openapi import complete_document
from fusionray.serving.http.responses import add_problem_handlers, answer
from fusionray.serving.http.routes.keys import add_key_routes, add_usage_route
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import Problem
from tests.serving.identities.test_store import Clock

OPERATORS = "the-key-of-the-operator"
MIDNIGHT = 86_400.0 * 20_000
NOON = MIDNIGHT + 43_200.0


@dataclass
class Place:
    """A service of keys alone, with a route that makes as many pictures as it is asked for."""

    app: ApiKeyMiddleware
    api: FastAPI
    file: Path
    audit: Path
    clock: Clock
    limiter: RateLimiter

    def ask(self, key: str, method: str, path: str, **more: object) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                return await client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

        return asyncio.run(send())

    def make(self, key: str, number: int = 1) -> httpx.Response:
        return self.ask(key, "POST", f"/v1/pictures/{number}")

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


def open_place(folder: Path, *, with_file: bool = True, with_operator: bool = True) -> Place:
    file, audit, clock = folder / "keys.yaml", folder / "audit.jsonl", Clock(NOON)
    if with_file:
        add_key(file, "boss", admin=True)
    digest = hashlib.sha256(OPERATORS.encode()).digest() if with_operator else None
    store = ApiKeyStore(file if with_file else None, digest, wall_clock=clock, clock=Clock(0.0))
    limiter = RateLimiter(clock=clock, wall_clock=clock)

    async def lease(bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        return limiter.lease(bucket, needed, wanted)

    config = ServeConfig(bundle="tiny", audit=AuditConfig(path=str(audit)))  # type: ignore[call-arg]
    requests = RequestService(config, Mock(), RateLimitClient(lease, clock))
    api = FastAPI()
    add_problem_handlers(api)
    add_usage_route(api, requests)
    add_key_routes(api, KeyAdmin(store.file, requests))

    @api.post("/v1/pictures/{number}", response_model=None)
    async def make(request: Request, number: int) -> object:
        admitted = await requests.admit(request.state.caller, number)
        return answer(admitted) if isinstance(admitted, Problem) else {"made": number}

    complete_document(api)
    app = ApiKeyMiddleware(LimitHeadersMiddleware(api, requests), store)
    return Place(app, api, file, audit, clock, limiter)


def remember_changes(place: Place) -> None:
    """Let the store look at its file at once; it looks every half second."""
    place.app.keys.clock.now += 1.0  # type: ignore[attr-defined]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return open_place(tmp_path)


def refused(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["reason"]


def test_an_admin_adds_lists_and_removes_keys(place: Place) -> None:
    new = {
        "name": "ann",
        "requests_per_minute": 60,
        "images_per_day": 9,
        "models": ["m"],
        "expires": "2099-01-31T12:00:00Z",
    }
    added = place.ask(OPERATORS, "POST", "/v1/keys", json=new)
    assert (added.status_code, added.headers["cache-control"]) == (201, "no-store")
    key = added.json()["key"]
    remember_changes(place)
    assert place.ask(key, "GET", "/v1/usage").json()["name"] == "ann"
    listed = place.ask(OPERATORS, "GET", "/v1/keys")
    (boss, ann) = listed.json()["keys"]
    assert (boss["name"], boss["admin"]) == ("boss", True)
    assert ann == {**new, "expires": "2099-01-31T12:00:00+00:00", "admin": False}
    digests = [one.sha256 for one in read_keys(place.file)]
    assert not any(secret in listed.text for secret in (key, *digests))
    assert place.ask(OPERATORS, "DELETE", "/v1/keys/ann").status_code == 204
    remember_changes(place)
    assert refused(place.ask(key, "GET", "/v1/usage")) == (401, "unauthorized")


def test_a_key_of_the_file_can_be_an_admins_and_others_are_refused(place: Place) -> None:
    boss, ann = add_key(place.file, "boss2", admin=True), add_key(place.file, "ann")
    remember_changes(place)
    assert place.ask(boss, "GET", "/v1/keys").status_code == 200
    before = place.file.read_bytes()
    for method, path, body in (
        ("GET", "/v1/keys", None),
        ("POST", "/v1/keys", {"name": "x"}),
        ("DELETE", "/v1/keys/ann", None),
    ):
        assert refused(place.ask(ann, method, path, json=body)) == (403, "admin_only")
    # Over HTTP no admin's key can be made.
    assert refused(place.ask(boss, "POST", "/v1/keys", json={"name": "x", "admin": True})) == (422, "bad_fields")
    assert place.file.read_bytes() == before


@pytest.mark.parametrize(
    ("method", "path", "body", "end"),
    [
        ("DELETE", "/v1/keys/operator", None, (403, "operator_key")),
        ("DELETE", "/v1/keys/nobody", None, (404, "unknown_key")),
        ("DELETE", "/v1/keys/a%20b", None, (422, "bad_fields")),
        ("POST", "/v1/keys", {"name": "boss"}, (409, "key_exists")),
        ("POST", "/v1/keys", {"name": "operator"}, (409, "key_exists")),
        ("POST", "/v1/keys", {"name": "a/b"}, (422, "bad_fields")),
        ("POST", "/v1/keys", {"name": "a", "images_per_day": 0}, (422, "bad_fields")),
        ("POST", "/v1/keys", {"name": "a", "expires": "2027-01-31T12:00:00"}, (422, "bad_fields")),
        ("POST", "/v1/keys", {}, (422, "bad_fields")),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    place: Place, method: str, path: str, body: object, end: tuple[int, str]
) -> None:
    before = place.file.read_bytes()
    assert refused(place.ask(OPERATORS, method, path, json=body)) == end
    assert place.file.read_bytes() == before


def test_a_file_that_is_invalid_is_named_and_not_overwritten(place: Place) -> None:
    place.file.write_text("keys: [")
    assert refused(place.ask(OPERATORS, "POST", "/v1/keys", json={"name": "ann"})) == (503, "key_file")
    assert place.file.read_text() == "keys: ["


@pytest.mark.parametrize("with_operator", [True, False])
def test_without_a_file_there_are_no_keys_to_manage(tmp_path: Path, with_operator: bool) -> None:
    place = open_place(tmp_path, with_file=False, with_operator=with_operator)
    key = OPERATORS if with_operator else ""
    assert refused(place.ask(key, "GET", "/v1/keys")) == (409, "no_key_file")
    assert refused(place.ask(key, "POST", "/v1/keys", json={"name": "ann"})) == (409, "no_key_file")
    assert place.ask(key, "GET", "/v1/usage").json()["name"] == ("operator" if with_operator else "anonymous")


def test_every_request_about_keys_leaves_a_line_without_the_key(place: Place) -> None:
    ann = add_key(place.file, "ann")
    remember_changes(place)
    key = place.ask(OPERATORS, "POST", "/v1/keys", json={"name": "bob"}).json()["key"]
    place.ask(OPERATORS, "DELETE", "/v1/keys/bob")
    place.ask(ann, "DELETE", "/v1/keys/boss")
    place.ask(OPERATORS, "GET", "/v1/keys")
    lines = [tuple(line[name] for name in ("who", "task", "key", "status", "reason")) for line in place.lines()]
    assert lines == [
        ("operator", "keys.add", "bob", 201, ""),
        ("operator", "keys.remove", "bob", 204, ""),
        ("ann", "keys.remove", "boss", 403, "admin_only"),
        ("operator", "keys.list", "", 200, ""),
    ]
    assert key not in place.audit.read_text()


def test_a_caller_is_told_what_its_key_allows_and_what_it_used(place: Place) -> None:
    ann = add_key(place.file, "ann", requests_per_minute=60, images_per_day=100)
    remember_changes(place)
    fresh = place.ask(ann, "GET", "/v1/usage").json()
    assert fresh["requests_per_minute"] == {"limit": 60, "used": 0, "remaining": 10, "reset_seconds": 0}
    assert fresh["images_per_day"] == {"limit": 100, "used": 0, "remaining": 100, "reset_seconds": 43_200}
    for _ in range(3):
        assert place.make(ann, 4).status_code == 200
    used = place.ask(ann, "GET", "/v1/usage").json()
    assert (used["requests_per_minute"]["used"], used["images_per_day"]["used"]) == (3, 12)
    assert (used["requests_per_minute"]["remaining"], used["images_per_day"]["remaining"]) == (7, 88)
    assert used["requests_per_minute"]["reset_seconds"] == 3
    place.clock.now += 60
    later = place.ask(ann, "GET", "/v1/usage").json()
    assert (later["requests_per_minute"]["used"], later["images_per_day"]["used"]) == (0, 12)
    place.clock.now = MIDNIGHT + 86_400.0
    assert place.ask(ann, "GET", "/v1/usage").json()["images_per_day"]["used"] == 0
    operator = place.ask(OPERATORS, "GET", "/v1/usage").json()
    assert (operator["admin"], operator["requests_per_minute"], operator["images_per_day"]) == (True, None, None)


def test_every_answer_to_a_caller_with_limits_tells_how_much_is_left(place: Place) -> None:
    ann = add_key(place.file, "ann", requests_per_minute=60, images_per_day=5)
    remember_changes(place)
    first = place.ask(ann, "GET", "/v1/nowhere")
    assert first.headers["ratelimit-policy"] == '60;w=60;comment="requests", 5;w=86400;comment="images"'
    assert [first.headers[f"ratelimit-{name}"] for name in ("limit", "remaining", "reset")] == ["60", "10", "0"]
    left = []
    for _ in range(3):
        response = place.make(ann, 2)
        left.append((response.status_code, *(response.headers[f"ratelimit-{name}"] for name in ("limit", "remaining"))))
    # The limit of which less is left is the one that is told.
    assert left == [(200, "5", "3"), (200, "5", "1"), (429, "5", "1")]
    refusal = place.make(ann, 2)
    assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "43200")
    assert not [name for name in place.ask(OPERATORS, "GET", "/v1/usage").headers if name.startswith("ratelimit")]


def test_a_limiter_that_is_away_costs_the_headers_and_not_the_answer(place: Place) -> None:
    ann = add_key(place.file, "ann", requests_per_minute=60)
    remember_changes(place)

    async def hang(bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        await asyncio.sleep(60)
        raise AssertionError

    place.app.app.requests.rate_limits.lease = hang  # type: ignore[attr-defined]
    response = place.ask(ann, "GET", "/v1/keys")
    assert refused(response) == (403, "admin_only")
    assert "ratelimit-limit" not in response.headers
    assert refused(place.ask(ann, "GET", "/v1/usage")) == (503, "not_ready")


def test_the_document_describes_answers_and_refusals(place: Place) -> None:
    document = place.api.openapi()
    assert set(document["paths"]) >= {"/v1/keys", "/v1/keys/{name}", "/v1/usage"}
    for path in ("/v1/keys", "/v1/keys/{name}", "/v1/usage"):
        for operation in document["paths"][path].values():
            for status, response in operation["responses"].items():
                assert response["description"]
                if int(status) >= 400:
                    assert "application/problem+json" in response["content"], (path, status)
    for name in ("Usage", "LimitUsage", "ApiKeyList", "ApiKeyInfo", "NewApiKey", "AddedApiKey"):
        fields = document["components"]["schemas"][name]["properties"]
        assert all(field.get("description") for field in fields.values()), name
