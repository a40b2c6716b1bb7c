"""What MkDocs asks while it builds the site: the start page is the README, and references are read off the code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from fusionray.commands.parser import Parser

ROOT = Path(__file__).resolve().parents[2]
# What argparse reads: as wide as a block of code.
WIDTH = {"COLUMNS": "110"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    pages = {"index.md": readme, **dict(write_references())}
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    return files


def write_references() -> Iterator[tuple[str, str]]:
    """Write the pages of the reference: their paths and texts."""
    from fusionray.commands.trees import TREES

    yield "reference/commands.md", "\n".join(describe_commands())
    for verb, load in TREES.items():
        if not verb.startswith("bench"):
            yield f"reference/settings-{verb}.md", "\n".join(describe_settings(verb, load()))
    yield "reference/http.md", "\n".join(describe_http(build_document()))


def describe_commands() -> Iterator[str]:
    """Write the help of each verb."""
    from fusionray.cli import build_parser

    yield "# Commands\n"
    yield "What `fusionray VERB --help` prints.\n"
    yield (
        "Tests parse each command of these pages, with its keys and values, and run each verb with small models. As\n"
        "they stand here, most commands take hours, GPUs, or pictures of yours; `make demo` runs the whole path.\n"
    )
    with patch.dict(os.environ, WIDTH):
        helps = {name: parser.format_help().rstrip() for name, parser in list_verbs(build_parser())}
    for name, text in helps.items():
        yield f"## fusionray {name}\n\n```text\n{text}\n```\n"


def list_verbs(parser: Parser, before: str = "") -> Iterator[tuple[str, Parser]]:
    """List the verbs, and in their place the verbs of those that have some."""
    for name, verb in parser.verbs.items():
        if verb.verbs:
            yield from list_verbs(verb, f"{before}{name} ")
        else:
            yield f"{before}{name}", verb


def describe_settings(verb: str, section: Any) -> Iterator[str]:
    """Write the keys of a verb's tree, a table for each section."""
    from fusionray.config_keys import list_groups

    yield f"# Settings of {verb}\n"
    yield (
        f"Read from the code. `fusionray {verb} --settings [SECTION]` lists them on the terminal, with what a preset "
        "or a file sets.\n"
    )
    for group in list_groups(section):
        yield f"## {group.address or verb}\n"
        condition = f" With `{group.condition}`." if group.condition else ""
        yield f"{cell(group.sentence)}{condition}\n"
        if group.members:
            yield "| member | what |\n|---|---|"
            yield from (f"| `{name}` | {cell(sentence)} |" for name, sentence in group.members)
        if group.keys:
            yield "| key | type | unit | default | meaning |\n|---|---|---|---|---|"
            for key in group.keys:
                cells = (cell(key.kind), key.unit or "", f"`{cell(key.default)}`", cell(key.sentence))
                yield f"| `{key.name}` | {' | '.join(cells)} |"
        yield ""


def cell(text: str) -> str:
    """Escape what a cell of a table, or the site's HTML, would take for its own."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def build_document() -> Mapping[str, Any]:
    """Build the OpenAPI document of a service of faces and styles, without models."""
    from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER
    from fusionray.serving.config import ServeConfig
    from fusionray.serving.http.api import build_api
    from fusionray.serving.tasks.served_models import ServedModels

    config = ServeConfig.model_validate({"models": [{"name": "default", "bundle": "bundle"}]})
    part = Mock(config=config)
    part.jobs.config = config
    models = ServedModels(part, {FACE_FUSION: part, STYLE_TRANSFER: part})
    return build_api(config, part, models, part.jobs).openapi()


def describe_http(document: Mapping[str, Any]) -> Iterator[str]:
    """Write each route: what it takes, what it answers."""
    yield "# HTTP\n"
    yield (
        "Read from the OpenAPI document, which a service gives at `/openapi.json`; [serving](../serving.md) explains "
        "it. Every refusal is a problem document (RFC 9457) whose `reason` is a short key that stays.\n"
    )
    for path, methods in sorted(document["paths"].items()):
        for method, route in methods.items():
            yield f"## {method.upper()} {path}\n"
            yield f"{cell(route.get('description') or route.get('summary', ''))}\n"
            fields = [*list_parameters(route), *list_fields(document, route)]
            if fields:
                yield "| field | in | type | meaning |\n|---|---|---|---|"
                yield from (f"| {' | '.join(row)} |" for row in fields)
                yield ""
            answers = (
                f"`{status}` {cell(answer['description'])}" for status, answer in sorted(route["responses"].items())
            )
            yield f"Answers: {'; '.join(answers)}.\n"


def list_parameters(route: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for parameter in route.get("parameters", ()):
        kind = name_type(parameter["schema"])
        yield f"`{parameter['name']}`", parameter["in"], kind, cell(parameter.get("description", ""))


def list_fields(document: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """List the fields of a form or body."""
    for media_type, content in route.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        where = "form" if media_type.startswith("multipart") else media_type
        for name, field in schema.get("properties", {}).items():
            needed = ", needed" if name in schema.get("required", ()) else ""
            yield f"`{name}`", where, f"{name_type(field)}{needed}", cell(field.get("description", ""))


def name_type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(name_type(each) for each in schema["anyOf"] if each.get("type") != "null"))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("format") == "binary" or "contentMediaType" in schema:
        return "file"
    if schema.get("type") == "array":
        return f"list of {name_type(schema['items'])}"
    return str(schema.get("type", "any"))
