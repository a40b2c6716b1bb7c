"""Settings of who reaches the service: names, web pages, proxies (http/middleware/origins.py checks them)."""

from __future__ import annotations

from pydantic import Field

from fusionray.config import Section


class AccessConfig(Section):
    """From which web pages, and under which names, the service may be reached."""

    hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names of a service without keys, besides those of loopback; others are refused, because a "
        "foreign page can give its own name the address of this machine (DNS rebinding).",
    )
    origins: tuple[str, ...] = Field(
        default=(), description="Origins (https://example.org) of other web pages that may send requests."
    )
    forwarded: bool = Field(
        default=False,
        description="Answer forwarded requests without a key: a proxy on this machine then publishes the service.",
    )
