"""A client of the service. It needs `httpx` and nothing else: neither Ray nor torch nor numpy."""

from __future__ import annotations

from fusionray.client.answers import (
    ApiKey,
    Face,
    FoundFaces,
    Fused,
    FusedItem,
    Item,
    Job,
    KeptIdentity,
    LimitUsage,
    MadePicture,
    Model,
    NewKey,
    Usage,
    VideoProgress,
    Webhook,
    WebhookAttempt,
)
from fusionray.client.archive import read_archive
from fusionray.client.forms import FuseOptions, PictureInput, PictureOptions, Source
from fusionray.client.fusion_client import FusionClient

__all__ = [
    "ApiKey",
    "Face",
    "FoundFaces",
    "FuseOptions",
    "Fused",
    "FusedItem",
    "FusionClient",
    "Item",
    "Job",
    "KeptIdentity",
    "LimitUsage",
    "MadePicture",
    "Model",
    "NewKey",
    "PictureInput",
    "PictureOptions",
    "Source",
    "Usage",
    "VideoProgress",
    "Webhook",
    "WebhookAttempt",
    "read_archive",
]
