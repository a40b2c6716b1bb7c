"""`fusionray VERB --settings [SECTION]`: list the keys of the verb's configuration tree in aligned columns."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from fusionray.commands.parser import Parser
from fusionray.commands.trees import TREES
from fusionray.config import read_settings
from fusionray.config_keys import LIST_ENTRY, MAPPING_ENTRY, Group, Key, list_groups, write_value
from fusionray.errors import ConfigInvalid
from fusionray.spelling import suggest

OPTION = "--settings"
HEADINGS = ("key", "type", "unit", "default", "meaning")
# Widest columns; longer cells wrap. With less room than LEAST_MEANING the sentence goes under its key.
WIDEST = {"key": 28, "type": 30, "unit": 12, "default": 24, "set": 24}
LEAST_MEANING = 36
LEAST_COLUMN = 8
GAP = "  "
INDENT = "  "


def parse_settings(arguments: Sequence[str]) -> argparse.Namespace:
    """Read `VERB --settings [SECTION] [--preset NAME] [--config FILE] [--json] [KEY=VALUE ...]`; ignore the rest."""
    parser = Parser(prog="fusionray", add_help=False)
    parser.add_argument("verb")
    parser.add_argument(OPTION, nargs="?", const="", default="")
    parser.add_argument("--preset")
    parser.add_argument("--config")
    parser.add_argument("--json", action="store_true")
    options, rest = parser.parse_known_args(arguments)
    longer = f"{options.verb} {rest[0]}" if rest else ""
    options.verb = longer if longer in TREES else options.verb
    if options.verb not in TREES:
        choices = f"; choose one, such as `fusionray {options.verb} train {OPTION}`" if options.verb == "bench" else ""
        parser.error(f"{options.verb} has no {OPTION}{choices}")
    options.prog = f"fusionray {options.verb}"
    options.overrides = [item for item in rest if "=" in item and not item.startswith("-")]
    options.run = run_settings
    return options


def run_settings(options: argparse.Namespace) -> None:
    """Print the keys; with a preset, a file or overrides also the values that they set.

    Raises: ConfigInvalid naming a section, preset, file or override that is not there.
    """
    section = TREES[options.verb]()
    if options.json:
        print(json.dumps(section.model_json_schema(), indent=1))
        return
    set_values = read_set_values(options)
    groups = select_groups(list_groups(section), options.settings, set_values)
    if not groups:
        known = sorted({path for group in list_groups(section) for path in (group.path, group.address) if path})
        command = f"`{section.listed_by}` lists all keys"
        hint = suggest(options.settings, known) or ";"
        raise ConfigInvalid(f"no section or key '{options.settings}'{hint} {command}")
    shown = dict(flatten(set_values))
    width = shutil.get_terminal_size((120, 24)).columns
    print("\n".join(format_groups(groups, shown, width, section.listed_by)))


def read_set_values(options: argparse.Namespace) -> dict[str, Any]:
    """Read what the preset, the file and the overrides set, as an unchecked tree."""
    if options.verb == "serve":
        from fusionray.commands.service import read_service_settings

        return read_service_settings(options.config, options.overrides)
    _, tree = read_settings(file=options.config, overrides=options.overrides, preset=options.preset)
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a tree and their values as they are typed."""
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        yield path, write_value(value)


def select_groups(groups: Sequence[Group], section: str, set_values: Mapping[str, Any]) -> list[Group]:
    """Choose the groups of a section, or the single key that it names.

    The members of a tagged union appear when the settings choose one, or when the section names or enters one.
    """
    wanted = ".".join(LIST_ENTRY if part.isdigit() else part for part in section.strip(".").split("."))
    chosen = {f"{key}={value}" for key, value in flatten(set_values)}
    decided = {condition.partition("=")[0] for condition in chosen}
    found: list[Group] = []
    for group in groups:
        union = group.condition.rpartition(".")[0]
        is_chosen = not group.condition or group.condition in chosen
        named = group.condition and is_below(group.address, wanted) and not is_below(union, wanted)
        entered = wanted != union and is_below(wanted, union) and group.condition.partition("=")[0] not in decided
        if not (is_chosen or named or (group.condition and entered)):
            continue
        if not wanted or is_below(group.path, wanted) or is_below(group.address, wanted):
            found.append(group)
            continue
        keys = tuple(key for key in group.keys if key.path == wanted)
        if keys:
            found.append(replace(group, keys=keys))
    return found


def is_below(path: str, section: str) -> bool:
    """Tell whether a path is a section or lies in it; everything lies in ""."""
    return not section or path == section or path.startswith(f"{section}.")


def format_groups(groups: Sequence[Group], set_values: Mapping[str, str], width: int, listed_by: str) -> Iterator[str]:
    """Yield the lines of a listing, in columns that are aligned over all groups."""
    headings = [*HEADINGS[:-1], *(["set"] if set_values else [])]
    rows = [format_key(key, set_values) for group in groups for key in group.keys]
    widths = choose_widths(headings, rows, width)
    rest = width - len(INDENT) - sum(widths) - len(GAP) * len(widths)
    beside = rest >= LEAST_MEANING
    top = format_row([*headings, HEADINGS[-1]], [*widths, rest]) if beside else format_row(headings, widths)
    if rows:
        yield from top
    for group in groups:
        yield ""
        yield from format_heading(group, width)
        if group.members:
            yield from format_members(group, listed_by, width)
        for key in group.keys:
            cells = format_key(key, set_values)
            if beside:
                yield from format_row([*cells, key.sentence], [*widths, rest])
            else:
                yield from format_row(cells, widths)
                yield from textwrap.wrap(key.sentence, width, initial_indent=INDENT * 3, subsequent_indent=INDENT * 3)


def choose_widths(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Choose the widths of the columns before the meaning, so that all fit a terminal of `width` characters."""
    widths = [
        min(WIDEST[heading], max([len(heading), *(len(row[place]) for row in rows)]))
        for place, heading in enumerate(headings)
    ]
    room = width - len(INDENT) - len(GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > LEAST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    return widths


def format_heading(group: Group, width: int) -> list[str]:
    """Name a section and say what it is."""
    last = group.path.rpartition(".")[2]
    entry = {LIST_ENTRY: ", each entry of the list", MAPPING_ENTRY: ", each entry of the mapping"}.get(last, "")
    name = f"{group.path or 'top level'}{entry}"
    condition = f" ({group.condition})" if group.condition else ""
    return textwrap.wrap(f"{name}{condition}: {group.sentence}", width, subsequent_indent=INDENT)


def format_members(group: Group, listed_by: str, width: int) -> Iterator[str]:
    """List the choices of a tagged union, and how to list the keys of one."""
    widest = max(len(name) for name, _ in group.members)
    for name, sentence in group.members:
        text = f"{name.ljust(widest)}{GAP}{sentence}"
        yield from textwrap.wrap(text, width, initial_indent=INDENT, subsequent_indent=" " * (widest + 4))
    example = f"{group.address}.{group.members[0][0]}"
    said = f"`{listed_by} {example}` lists the keys of one of them."
    yield from textwrap.wrap(said, width, initial_indent=INDENT, subsequent_indent=INDENT)


def format_key(key: Key, set_values: Mapping[str, str]) -> list[str]:
    cells = [key.name, key.kind, key.unit or "", key.default]
    return [*cells, set_values.get(key.path, "")] if set_values else cells


def format_row(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Lay cells out side by side, each wrapped to its width."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        line = GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True))
        yield (INDENT + line).rstrip()
