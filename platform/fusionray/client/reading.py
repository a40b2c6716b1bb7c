"""Answers out of JSON, headers and problem documents."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import httpx

from fusionray.client.answers import Box, Fused, MadePicture
from fusionray.errors import AnswerInvalid, ServiceRefused

Answer = TypeVar("Answer")
Value = TypeVar("Value")
# What a JSON value may be so that it becomes a value of a type.
JSON_TYPES: dict[type, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    datetime: (str,),
    ServiceRefused: (dict,),
}


def build_answer(kind: type[Answer], document: Any) -> Answer:
    """Build an answer, a dataclass, from JSON. Fields that it lacks are left out: a newer service may send more.

    Raises: AnswerInvalid.
    """
    answer: Answer = read_value(kind, document, kind.__name__)
    return answer


def build_answers(kind: type[Answer], document: dict[str, Any], name: str) -> tuple[Answer, ...]:
    """Build the answers in a field of JSON that is a list.

    Raises: AnswerInvalid.
    """
    answers: tuple[Answer, ...] = read_tuple((kind, Ellipsis), document.get(name), name)
    return answers


def read_value(kind: Any, value: Any, place: str) -> Any:
    """Read a value of a type: a dataclass, a tuple, one of `JSON_TYPES`, or None beside one of these."""
    if get_origin(kind) is types.UnionType:
        (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
        if value is None:
            return None
    if get_origin(kind) is tuple:
        return read_tuple(get_args(kind), value, place)
    if dataclasses.is_dataclass(kind):
        return read_fields(kind, value, place)
    return read_plain(kind, value, place)


def read_plain(kind: type, value: Any, place: str) -> Any:
    # Exact types: a bool is an int in Python, but JSON's true is no number.
    if type(value) not in JSON_TYPES[kind]:
        sent = type(value).__name__
        raise AnswerInvalid(f"{place}: the service sent {sent} for {kind.__name__}; is it this version?")
    if kind is ServiceRefused:
        return read_problem(value)
    if kind is datetime:
        return read_time(value, place)
    return float(value) if kind is float else value


def read_tuple(kinds: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    if isinstance(value, list):
        each = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(each) == len(value):
            return tuple(read_value(one, item, place) for one, item in zip(each, value, strict=True))
    raise AnswerInvalid(f"{place}: the service sent no list of the expected length; is it this version?")


def read_fields(kind: Any, document: Any, place: str) -> Any:
    if not isinstance(document, dict):
        raise AnswerInvalid(f"{place}: the service sent no JSON object; is it a fusionray service?")
    hints = get_type_hints(kind)
    read: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in document:
            read[field.name] = read_value(hints[field.name], document[field.name], f"{place}.{field.name}")
        elif field.default is dataclasses.MISSING:
            raise AnswerInvalid(f"{place}.{field.name}: the service did not send it; is it this version?")
    return kind(**read)


def read_time(value: str, place: str) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise AnswerInvalid(f"{place}: the service sent {value!r:.60} for a time") from None


def read_made_picture(response: httpx.Response) -> MadePicture:
    """Read a picture and what its headers tell about it.

    Raises: AnswerInvalid.
    """
    headers = response.headers
    return MadePicture(
        data=response.content,
        media_type=read_header(headers, "Content-Type", str),
        model=read_header(headers, "X-FusionRay-Model", str),
        bundle=read_header(headers, "X-FusionRay-Bundle", str),
        provenance=read_header(headers, "X-FusionRay-Provenance", str),
        timing=read_header(headers, "Server-Timing", read_timing),
    )


def read_fused(response: httpx.Response) -> Fused:
    """Read a fused picture and what its headers tell about it.

    Raises: AnswerInvalid.
    """
    made = vars(read_made_picture(response))
    return Fused(**made, boxes=read_header(response.headers, "X-FusionRay-Boxes", read_boxes))


def read_header(headers: Mapping[str, str], name: str, read: Callable[[str], Value]) -> Value:
    try:
        return read(headers[name])
    except (KeyError, ValueError):
        raise AnswerInvalid(f"header {name}: missing or not understood; is it a fusionray service?") from None


def read_boxes(header: str) -> tuple[Box, ...]:
    """Read boxes: left,top,width,height;..."""
    boxes = []
    for text in filter(None, header.split(";")):
        left, top, width, height = map(int, text.split(","))
        boxes.append((left, top, width, height))
    return tuple(boxes)


def read_timing(header: str) -> dict[str, float]:
    """Read milliseconds by stage: decode;dur=8.40, ..."""
    stages = (entry.strip().partition(";dur=") for entry in header.split(","))
    return {stage: float(milliseconds) for stage, _, milliseconds in stages}


def read_problem(document: Any, status: int = 500, retry_after: float | None = None) -> ServiceRefused:
    """Read a problem document. Without one, `status` alone tells why: the HTML of a proxy says nothing more."""
    known = document if isinstance(document, dict) else {}
    if isinstance(known.get("status"), int):
        status = known["status"]
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Refused"
    texts = {key: value for key, value in known.items() if isinstance(value, str)}
    return ServiceRefused(
        status,
        texts.get("reason", phrase.lower().replace(" ", "_")),
        texts.get("detail", phrase),
        picture=texts.get("picture"),
        retry_after=retry_after,
    )
