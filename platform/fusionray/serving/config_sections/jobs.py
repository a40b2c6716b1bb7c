"""Settings of jobs, of the inputs that they read by URI, and of the webhooks that tell their ends."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from fusionray.config import Section, in_unit

# A host name or address, with or without a port: hooks.example.org, 127.0.0.1:9000, [::1]:9000.
HOST_PATTERN = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
# A directory: scheme, no user, no query, no dots, a slash at the end.
PREFIX_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s@?#%\\]*/")


class WebhookConfig(Section):
    """Where the service may tell that a job has ended, and how often it tries."""

    hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts (hooks.example.org, or with a port: hooks.example.org:8443) to which webhooks may go, over "
        "https; a loopback host also over http. Default: none. FUSIONRAY_WEBHOOK_SECRET holds the secret that signs "
        "them.",
    )
    max_attempts: int = Field(default=8, ge=1, le=100, description="Attempts to deliver a webhook.")
    first_retry_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Time until the second attempt; each further one takes four times as long, an hour at most.",
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="Longest duration of one attempt.")

    @field_validator("hosts")
    @classmethod
    def check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not HOST_PATTERN.fullmatch(host):
                raise ValueError(f"'{host}' is not a host in lower case, with or without a port")
        return hosts


class JobConfig(Section):
    """Where jobs are stored, for how long, how many, and how replicas work on them."""

    folder: str = Field(default="runs/jobs", description="Folder of the jobs; every replica must reach it.")
    key_file: str | None = Field(
        default=None,
        description="File of the key that encrypts the handles, consent tokens and addresses that jobs store; made at "
        "the first use, the same for every replica. null: the name of the folder with '.key', beside it.",
    )
    ttl_seconds: float = Field(default=86_400.0, gt=0, description="Time after its end when a job is deleted.")
    max_jobs: int = Field(default=1000, ge=1, description="Largest number of jobs; further ones are refused.")
    max_open_jobs: int = Field(
        default=20, ge=1, description="Unfinished jobs of one API key; further ones are refused."
    )
    max_bytes: int = Field(
        default=16 * 2**30,
        ge=1,
        description="Largest size of the job store, results included; further jobs are refused.",
    )
    allowed_uris: tuple[str, ...] = Field(
        default=(),
        description="Folders (file:///data/in/, s3://bucket/in/) below which jobs may read pictures by URI, with the "
        "permissions of the service. Default: none.",
    )
    parallel_jobs: int = Field(default=1, ge=1, description="Jobs that a replica works on at once.")
    parallel_items: int = Field(
        default=4,
        ge=1,
        description="Pictures of one job that a replica works on at once.",
        json_schema_extra=in_unit("pictures"),
    )
    lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Time without a heartbeat after which another replica takes over a job; at once if its process "
        "died on the same machine.",
    )
    poll_seconds: float = Field(default=1.0, gt=0, description="Time between two looks of an idle replica for work.")
    max_attempts: int = Field(default=3, ge=1, description="Attempts at a picture before it counts as failed.")
    webhooks: WebhookConfig = Field(
        default=WebhookConfig(), description="Messages to the client's server when a job has ended."
    )

    @field_validator("allowed_uris")
    @classmethod
    def check_prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in prefixes:
            segments = urlsplit(prefix).path.split("/")[1:-1]
            if not PREFIX_PATTERN.fullmatch(prefix) or {"", ".", ".."} & set(segments):
                raise ValueError(f"'{prefix}' is not the URI of a folder: scheme://..., with a slash at the end")
        return prefixes
