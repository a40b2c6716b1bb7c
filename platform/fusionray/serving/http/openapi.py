"""Additions to FastAPI's OpenAPI document: problems, the API key, and the kinds of pictures."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from fusionray.serving.http.middleware.api_keys import OPEN_PATHS
from fusionray.serving.schema import PROBLEM_TYPE

PICTURE_TYPES = ", ".join(
    f"image/{kind}" for kind in ("jpeg", "png", "webp", "avif", "heic", "bmp", "tiff", "x-portable-anymap")
)
VIDEO_TYPES = ", ".join(
    f"video/{kind}" for kind in ("mp4", "quicktime", "x-matroska", "webm", "x-msvideo", "mpeg", "mp2t", "x-flv", "ogg")
)
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "Why there is no other answer, as RFC 9457 has it.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "reason"],
    "properties": {
        "type": {"type": "string", "pattern": "^urn:fusionray:problem:[a-z0-9_]+$"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What is wrong with this request, and how to fix it."},
        "reason": {"type": "string", "pattern": "^[a-z0-9_]+$", "description": "A short key that stays."},
        "picture": {"type": "string", "description": "The picture at fault."},
        "rule": {"type": "string", "description": "The rule of the operator that refuses the target."},
    },
    "examples": [
        {
            "type": "urn:fusionray:problem:no_face",
            "title": "No face found",
            "status": 422,
            "detail": "no face was found in the source picture; use one that shows a face larger and clearer",
            "reason": "no_face",
            "picture": "source",
        }
    ],
}
# A route that takes pictures may refuse: no consent, unknown model or identity, not a picture, a faulty picture, quota,
# timeout.
OF_PICTURES = (403, 404, 415, 422, 429, 504)
# Middleware and parsers answer with these on every path: a head or body that is unreadable, too slow or too long.
ON_EVERY_PATH = (400, 408, 413, 500)
# Open paths need no key and are never too busy.
ON_KEYED_PATHS = (401, 503)


def describe_headers(told: dict[str, str], kind: str = "string") -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": kind}} for name, text in told.items()}


# Headers of every answer to a caller whose key has limits.
LIMIT_HEADERS = {
    **describe_headers(
        {
            "RateLimit-Limit": "The limit of the key of which the smallest share is left: requests a minute, or images "
            "a day.",
            "RateLimit-Remaining": "How many of it may be sent at once now: an estimate, since replicas lease tokens.",
            "RateLimit-Reset": "Seconds until it is full again.",
        },
        "integer",
    ),
    **describe_headers({"RateLimit-Policy": "All limits of the key, each with the seconds of its window."}),
}
RETRY_HEADER = describe_headers({"Retry-After": "Seconds after which the request may be sent again."}, "integer")
RETRIED = frozenset({"429", "503", "507"})
PICTURE_HEADERS = describe_headers(
    {
        "X-FusionRay-Model": "Title of the model that made the picture.",
        "X-FusionRay-Bundle": "Hash of its bundle.",
        "X-FusionRay-Provenance": "How the picture is signed: `c2pa`, or `c2pa; test-key`, which proves nothing.",
        "Server-Timing": "Milliseconds by stage.",
    }
)
FACE_HEADERS = describe_headers(
    {
        "X-FusionRay-Faces": "How many faces were fused.",
        "X-FusionRay-Boxes": "Their boxes: left,top,width,height in pixels, separated by semicolons.",
    }
)


def add_headers(path: str, operation: dict[str, Any]) -> None:
    """Declare the headers of the answers of an operation."""
    for status, response in operation["responses"].items():
        headers = response.setdefault("headers", {})
        if path not in OPEN_PATHS and status != "401":
            headers |= LIMIT_HEADERS
        if status in RETRIED:
            headers |= RETRY_HEADER
        if any(kind.startswith("image/") for kind in response.get("content", ())):
            headers |= PICTURE_HEADERS | (FACE_HEADERS if path == "/v1/fuse" else {})


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare the problems with which a route itself may answer: `responses=problems(404, 415)`."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def complete_document(api: FastAPI) -> None:
    """Add to the OpenAPI document what holds for all routes; call it after all routes are added."""
    document = api.openapi()
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            closed = path not in OPEN_PATHS
            for status, response in problems(*ON_EVERY_PATH, *(ON_KEYED_PATHS if closed else ())).items():
                operation["responses"].setdefault(str(status), response)
            add_headers(path, operation)
            operation["responses"] = dict(sorted(operation["responses"].items()))
            # A service on loopback may have no key.
            operation["security"] = [{"key": []}, {}] if closed else []
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = without_null(parameter["schema"])
            describe_form(operation, components["schemas"])


def describe_form(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Declare the kinds of pictures and films that each file of a form takes, and that it has one of the fields for
    sources.
    """
    form = operation.get("requestBody", {}).get("content", {}).get("multipart/form-data")
    if form is None:
        return
    schema = schemas[form["schema"]["$ref"].rpartition("/")[2]]
    fields = schema["properties"] = {name: without_null(field) for name, field in schema["properties"].items()}
    form["encoding"] = {name: {"contentType": PICTURE_TYPES} for name, field in fields.items() if is_file(field)}
    if "leave_out" in fields:
        form["encoding"]["target"] = {"contentType": f"{PICTURE_TYPES}, {VIDEO_TYPES}"}
    sources = [name for name in ("source", "identity", "source_uri") if name in fields]
    if len(sources) > 1:
        schema["oneOf"] = [{"required": [name]} for name in sources]
    if {"target", "target_uri"} <= fields.keys():
        schema["anyOf"] = [{"required": [name]} for name in ("target", "target_uri")]
    for name in ("source", "identity", "target", "target_uri"):
        if fields.get(name, {}).get("type") == "array":
            fields[name].pop("default", None)
            fields[name]["minItems"] = 1


def without_null(field: dict[str, Any]) -> dict[str, Any]:
    """Drop the null of an optional field: a form cannot send one."""
    kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return field
    return {**{name: value for name, value in field.items() if name != "anyOf"}, **kinds[0]}


def is_file(field: dict[str, Any]) -> bool:
    """Tell whether a field, or each of its items, is a file."""
    return "contentMediaType" in field or "contentMediaType" in field.get("items", {})
