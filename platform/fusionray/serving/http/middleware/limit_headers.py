"""The headers that tell a caller how far the limits of its key are used up.

Source: draft-ietf-httpapi-ratelimit-headers-03, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusionray.serving.asgi import AsgiApp, Message, Receive, Scope, Send
from fusionray.serving.auth.callers import Caller
from fusionray.serving.auth.rate_limits import LimitState
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import Problem

WINDOWS = {"requests": 60, "images": 86_400}


class LimitHeadersMiddleware:
    """Add the headers to every answer to a caller with limits; without them if the rate limiter does not answer."""

    def __init__(self, app: AsgiApp, requests: RequestService) -> None:
        self.app = app
        self.requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller | None = scope.get("state", {}).get("caller")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and caller is not None:
                states = await self.requests.find_limits(caller)
                if not isinstance(states, Problem):
                    told = describe_limits(states).items()
                    raw = [(name.lower().encode(), value.encode()) for name, value in told]
                    message = {**message, "headers": [*message.get("headers", ()), *raw]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


def describe_limits(states: Sequence[LimitState]) -> dict[str, str]:
    """Build the headers: those of the limit of which the smallest share is left, and all limits as policies."""
    if not states:
        return {}
    least = min(states, key=lambda state: state.remaining_share)
    policies = [
        f'{state.bucket.limit};w={WINDOWS[state.bucket.kind]};comment="{state.bucket.kind}"' for state in states
    ]
    return {
        "RateLimit-Limit": str(least.bucket.limit),
        "RateLimit-Remaining": str(least.remaining),
        "RateLimit-Reset": str(math.ceil(least.reset_seconds)),
        "RateLimit-Policy": ", ".join(policies),
    }
