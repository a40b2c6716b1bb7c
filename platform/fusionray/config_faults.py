"""What is wrong with a configuration, in the words of the file: the key, the reason, and the key that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from fusionray.config_keys import list_paths
from fusionray.spelling import find_closest, suggest

# What pydantic writes before the message of a validator, and before what each member of a union expects.
VALIDATOR_PREFIX = "Value error, "
EXPECTED_PREFIX = "Input should be "
MOST_SUGGESTIONS = 3
QUOTE = "'"
UNION_ORIGINS = (Union, UnionType)


@dataclass(frozen=True)
class Fault:
    """Where a key is wrong. `address` is the path with the members of tagged unions in it, as `--settings` takes it.

    `owner` is the section that holds, or would hold, the last key; None where no section does.
    """

    path: tuple[str, ...]
    address: tuple[str, ...]
    owner: type[BaseModel] | None


def describe_faults(section: type[BaseModel], details: Iterable[ErrorDetails], listed_by: str) -> list[str]:
    """Describe each wrong key once; `listed_by` is the command that lists the keys of the tree, or ""."""
    reasons: dict[str, list[str]] = {}
    unknown: list[str] = []
    for detail in details:
        fault = locate(section, detail["loc"])
        if detail["type"] == "extra_forbidden":
            unknown.append(describe_unknown(section, fault, listed_by))
        else:
            key, reason = describe_reason(detail, ".".join(fault.path))
            reasons.setdefault(key, []).append(reason)
    wrong = [f"{key}: {join_reasons(said)}" if key else join_reasons(said) for key, said in reasons.items()]
    return [*wrong, *unknown]


def describe_reason(detail: ErrorDetails, key: str) -> tuple[str, str]:
    """Say which key is wrong and why; a tagged union is wrong by the key that names its member."""
    context = detail.get("ctx", {})
    if detail["type"] == "union_tag_invalid":
        names = [name.strip("' ") for name in context["expected_tags"].split(",")]
        reason = f"there is no '{context['tag']}'{suggest(context['tag'], names) or ';'} choose {', '.join(names)}"
        return f"{key}.{context['discriminator'].strip(QUOTE)}", reason
    if detail["type"] == "union_tag_not_found":
        return f"{key}.{context['discriminator'].strip(QUOTE)}", "Field required"
    if detail["type"] == "model_type":
        return key, "Input should be a section of keys"
    return key, detail["msg"].removeprefix(VALIDATOR_PREFIX)


def join_reasons(said: list[str]) -> str:
    """Join what the members of a union expect: "Input should be 'auto' or a valid integer"."""
    first, *others = sorted(dict.fromkeys(said), key=lambda reason: "," in reason)
    if not all(reason.startswith(EXPECTED_PREFIX) for reason in (first, *others)):
        return "; ".join((first, *others))
    return " or ".join((first, *(reason.removeprefix(EXPECTED_PREFIX) for reason in others)))


def describe_unknown(section: type[BaseModel], fault: Fault, listed_by: str) -> str:
    """Say which key is unknown, which one was probably meant, and which command lists the keys."""
    *parents, last = fault.path
    siblings = sorted(fault.owner.model_fields) if fault.owner else []
    closest = find_closest(last, siblings)
    if closest is not None:
        meant = [".".join([*parents, closest])]
    else:
        # A key of another section: `batch_size` for `engine.batch_size`.
        meant = [known for known in list_paths(section) if known.rpartition(".")[2] == last][:MOST_SUGGESTIONS]
    said = f"unknown key '{'.'.join(fault.path)}'"
    if meant:
        said += f"; did you mean {' or '.join(map(repr, meant))}?"
    elif siblings:
        said += f" (known here: {', '.join(siblings)})"
    if not listed_by:
        return said
    command = " ".join([listed_by, ".".join(fault.address[:-1])]).strip()
    return f"{said} `{command}` lists the keys" if meant else f"{said}; `{command}` lists them"


def locate(section: type[BaseModel], location: tuple[int | str, ...]) -> Fault:
    """Turn a location of pydantic into the path that the file has.

    A location also names members of unions (`recipe.face_fusion.generator`), which the file does not.
    """
    owner: type[BaseModel] | None = None
    here: Any = section
    path: list[str] = []
    address: list[str] = []
    for part in location:
        member = choose_member(here, part)
        if member is not None:
            here = member
            address.append(str(part))
            continue
        here = unwrap(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            owner, field = here, here.model_fields.get(str(part))
            here = None if field is None else field.annotation
        elif get_origin(here) in (dict, list, tuple):
            owner = None
            here = get_args(here)[-1] if get_origin(here) is dict else get_args(here)[0]
        else:
            # The branch of a union of plain values, such as `int` or `literal['auto']`, and what is below it.
            continue
        path.append(str(part))
        address.append(str(part))
    return Fault(tuple(path), tuple(address), owner)


def unwrap(annotation: Any) -> Any:
    """Take the type out of `Annotated[T, ...]` and `T | None`; pydantic does not name these steps."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        others = [member for member in union_members(annotation) if member is not type(None)]
        if len(others) != 1:
            return annotation
        (annotation,) = others


def union_members(annotation: Any) -> tuple[Any, ...]:
    """List the members of a union, also of one that others may add members to; nothing for other types."""
    if isinstance(annotation, type) and hasattr(annotation, "list_members"):
        return tuple(annotation.list_members())
    return get_args(annotation) if get_origin(annotation) in UNION_ORIGINS else ()


def choose_member(annotation: Any, tag: int | str) -> type[BaseModel] | None:
    """Find the section of a tagged union whose `name` is the tag."""
    for member in union_members(annotation):
        fields: Mapping[str, Any] = getattr(member, "model_fields", {})
        if "name" in fields and fields["name"].default == tag:
            found: type[BaseModel] = member
            return found
    return None
