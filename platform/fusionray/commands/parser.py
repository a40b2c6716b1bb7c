"""The parsers of the command line: one sentence, grouped options and examples for each verb; errors in one line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from fusionray.spelling import suggest

# A command, and what it does or makes.
Example = tuple[str, str]
# What `add_subparsers` returns: a class without a public name.
Verbs = Any


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the verb and its help."""

    def __init__(self, **keywords: Any) -> None:
        keywords.setdefault("formatter_class", partial(argparse.RawDescriptionHelpFormatter, max_help_position=28))
        super().__init__(allow_abbrev=False, **keywords)
        self.verbs: Mapping[str, Parser] = {}

    def add_verbs(self, dest: str, **keywords: Any) -> Verbs:
        """Begin the list of verbs that this parser takes; `add_verb` adds to it."""
        verbs: Verbs = self.add_subparsers(dest=dest, required=True, prog=self.prog, **keywords)
        self.verbs = verbs.choices
        return verbs

    def find(self, verbs: Sequence[str]) -> Parser:
        """Find the parser of a verb, such as `bench train`."""
        parser = self
        for verb in verbs:
            parser = parser.verbs[verb]
        return parser

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        print(f"{self.prog}: {message}{'' if message.endswith('?') else ';'} see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)

    def refuse(self, arguments: Sequence[str]) -> NoReturn:
        """Refuse arguments that the verb does not take; the first one may be a misspelt option."""
        options = dict.fromkeys(re.findall(r"--[a-z][a-z-]*", self.format_help()))
        self.error(f"unknown argument {' '.join(arguments)}{suggest(arguments[0].partition('=')[0], options)}")


def add_verb(
    verbs: Verbs, name: str, sentence: str, *, arguments: str, details: str = "", examples: Sequence[Example]
) -> Parser:
    """Add a verb. `sentence` stands in the list of verbs and at the top of its help, `arguments` in its usage."""
    shown = "\n\n".join(f"  # {said}\n  {line}" for line, said in examples)
    parser: Parser = verbs.add_parser(
        name,
        help=sentence,
        description="\n\n".join(part for part in (sentence, details) if part),
        epilog=f"examples:\n{shown}",
    )
    parser.usage = f"{parser.prog} {arguments}"
    return parser


def add_settings(parser: Parser, *, cluster: bool = True) -> None:
    """Add the options of a verb that reads a configuration tree, and of one that runs on Ray."""
    group = parser.add_argument_group(
        "settings",
        "KEY=VALUE sets one key of the configuration, and may stand anywhere after\n"
        "the verb. It wins over --config, which wins over a preset.",
    )
    group.add_argument("--config", metavar="FILE", help="read settings from this YAML file")
    group.add_argument(
        "--settings",
        nargs="?",
        const="",
        metavar="SECTION",
        help="list the keys, or those of one section, with type, unit, default and meaning, and exit; with --json as "
        "JSON Schema",
    )
    if cluster:
        ray = parser.add_argument_group("cluster")
        ray.add_argument(
            "--address", help="use this Ray cluster; default: start Ray on this machine and stop it at the end"
        )
    parser.set_defaults(takes_overrides=True)


def set_run(parser: Parser, run: Callable[[argparse.Namespace], None]) -> None:
    """Set what the verb runs, and by which name its errors call it."""
    parser.set_defaults(run=run, prog=parser.prog)
