"""Routes for API keys: what a caller's own key allows, and for admins the keys of the file."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response

from fusionray.serving.auth.key_file import KEY_NAME_PATTERN, ApiKey
from fusionray.serving.auth.rate_limits import LimitState
from fusionray.serving.http.answers import AddedApiKey, ApiKeyInfo, ApiKeyList, LimitUsage, NewApiKey, Usage
from fusionray.serving.http.forms import find_caller
from fusionray.serving.http.key_admin import KeyAdmin
from fusionray.serving.http.openapi import problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import Problem

# An answer that a key must not outlive in a cache.


def add_usage_route(api: FastAPI, requests: RequestService) -> None:
    """Add the route that tells a caller about its own key."""

    @api.get(
        "/v1/usage",
        summary="Look at the limits of the own key",
        response_description="What is used of each limit.",
        response_model=Usage,
    )
    async def usage(request: Request, response: Response) -> Response | Usage:
        caller = find_caller(request)
        states = await requests.find_limits(caller, fresh=True)
        if isinstance(states, Problem):
            return answer(states)
        response.headers.update(NO_STORE)
        limits = {state.bucket.kind: describe_limit(state) for state in states}
        return Usage(
            name=caller.name,
            admin=caller.key is not None and caller.key.admin,
            expires=None if caller.key is None else write_expiry(caller.key.expires),
            models=None if caller.key is None or caller.key.models is None else list(caller.key.models),
            requests_per_minute=limits.get("requests"),
            images_per_day=limits.get("images"),
        )


def add_key_routes(api: FastAPI, keys: KeyAdmin) -> None:
    """Add the routes of /v1/keys."""

    @api.get(
        "/v1/keys",
        summary="List the keys",
        response_description="The keys with their limits, without the keys themselves.",
        response_model=ApiKeyList,
        responses=problems(403, 409),
    )
    async def list_keys(request: Request) -> Response | ApiKeyList:
        reply = await keys.list(find_caller(request))
        if isinstance(reply, Problem):
            return answer(reply)
        return ApiKeyList(keys=[describe_key(key) for key in reply.keys])

    @api.post(
        "/v1/keys",
        summary="Add a key",
        response_description="The key, which is told this once.",
        status_code=201,
        response_model=AddedApiKey,
        responses=problems(403, 409, 422),
    )
    async def add(request: Request, response: Response, new: NewApiKey) -> Response | AddedApiKey:
        limits = {**new.model_dump(exclude={"name"}), "expires": write_expiry(new.expires)}
        reply = await keys.add(find_caller(request), new.name, limits)
        if isinstance(reply, Problem):
            return answer(reply)
        response.headers.update(NO_STORE)
        return AddedApiKey(name=new.name, key=reply.key)

    @api.delete(
        "/v1/keys/{name}",
        summary="Remove a key",
        response_description="It is refused from now on.",
        status_code=204,
        responses=problems(403, 404, 409, 422),
    )
    async def remove(
        request: Request, name: Annotated[str, Path(pattern=KEY_NAME_PATTERN, description="Name of the key.")]
    ) -> Response:
        reply = await keys.remove(find_caller(request), name)
        return answer(reply) if isinstance(reply, Problem) else Response(status_code=204)


def describe_limit(state: LimitState) -> LimitUsage:
    return LimitUsage(
        limit=state.bucket.limit,
        used=state.used,
        remaining=state.remaining,
        reset_seconds=math.ceil(state.reset_seconds),
    )


def describe_key(key: ApiKey) -> ApiKeyInfo:
    """Describe a key without its digest."""
    fields = key.model_dump(exclude={"sha256", "expires"})
    return ApiKeyInfo(**fields, expires=write_expiry(key.expires))


def write_expiry(expires: datetime | None) -> str | None:
    return None if expires is None else expires.isoformat()
