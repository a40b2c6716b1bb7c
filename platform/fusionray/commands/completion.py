"""The verb that prints a completion script for the user's shell: verbs, options, files, presets and settings.

The script is static: a press of Tab starts no Python. shtab writes what argparse knows; the settings
(`engine.batch_size=`) and their choices come from the configuration trees and are completed by a function of ours.
"""

from __future__ import annotations

import argparse
from importlib import resources
from typing import TYPE_CHECKING, Any

from fusionray.commands.parser import Parser, Verbs, add_verb, set_run
from fusionray.commands.trees import TREES
from fusionray.config_presets import list_presets
from fusionray.errors import InputMissing

if TYPE_CHECKING:
    from fusionray.config_keys import Group

SHELLS = ("bash", "zsh", "fish")
# What stands behind an option or in the place of an argument, by the name that the help gives it.
FILES = ("FILE", "PEM", "INPUT", "SOURCE", "TARGET", "OUTPUT", "GENERATOR")
FOLDERS = ("DIR", "CHECKPOINT", "MODEL", "BUNDLE", "SHARDS")


def add_completion(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "completion",
        "Print a script that completes commands in your shell.",
        arguments="{bash,zsh,fish}",
        details="It completes verbs, options, files, presets and settings of this version.\n"
        "Write the script again after an update.",
        examples=[
            (
                "fusionray completion bash > ~/.local/share/bash-completion/completions/fusionray",
                "bash, with the package bash-completion; or `source` the file in ~/.bashrc",
            ),
            ("fusionray completion zsh > ~/.zfunc/_fusionray", "zsh, with `fpath+=~/.zfunc` before compinit"),
            ("fusionray completion fish > ~/.config/fish/completions/fusionray.fish", "fish"),
        ],
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    set_run(parser, run_completion)


def run_completion(options: argparse.Namespace) -> None:
    print(write_script(options.parser, options.shell))


def write_script(parser: Parser, shell: str) -> str:
    """Write the completion script of a shell: what shtab writes, and a function that completes settings."""
    import shtab

    from fusionray.config_keys import list_groups

    listings: dict[str, str] = {}
    for verb, load in TREES.items():
        try:
            groups = list_groups(load())
        except InputMissing:
            # `serve` has no settings where only the wheel is installed.
            continue
        name = "_".join(verb.split())
        listings[name] = " ".join(list_words(groups))
        describe_settings(parser.find(verb.split()), f"_fusionray_{name}_settings", groups)
    prepare_arguments(parser)
    text = resources.files("fusionray.commands").joinpath(f"completion.{shell}").read_text(encoding="utf-8")
    variables = "\n".join(write_variable(shell, name, words) for name, words in listings.items())
    functions = "\n".join(write_function(shell, name) for name in listings)
    preamble, _, ending = text.partition("# shtab\n")
    script = shtab.complete(parser, shell, preamble=f"{variables}\n{preamble}\n{functions}")
    return f"{script}\n{ending}"


def list_words(groups: list[Group]) -> list[str]:
    """List `key=choice` for settings with a few values, `key=` for others; not those of lists and mappings."""
    from fusionray.config_keys import LIST_ENTRY, MAPPING_ENTRY

    words: set[str] = set()
    for group in groups:
        if not {LIST_ENTRY, MAPPING_ENTRY} & set(group.path.split(".")):
            for key in group.keys:
                words |= {f"{key.path}={choice}" for choice in key.choices or ("",)}
    return sorted(words)


def describe_settings(parser: Parser, function: str, groups: list[Group]) -> None:
    """Let the parser of a verb take settings anywhere, completed by a shell function, and sections by their names."""
    settings: Any = parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="setting")
    settings.complete = {"bash": function, "zsh": function, "fish": f"({function})"}
    sections = sorted({path for group in groups for path in (group.path, group.address) if path})
    for action in parser._actions:
        if action.dest == "settings":
            action.choices = sections


def prepare_arguments(parser: Parser) -> None:
    """Say of each argument whether it is a file or a folder, and which presets there are."""
    for verb in parser.verbs.values():
        prepare_arguments(verb)
    for action in parser._actions:
        if action.dest == "preset":
            action.choices = list_presets()
        for names, kind in ((FILES, "file"), (FOLDERS, "directory")):
            if action.metavar in names or (action.metavar is None and action.dest.upper() in names):
                setattr(action, "complete", kind)  # noqa: B010 (shtab's own attribute, which argparse does not declare)


def write_variable(shell: str, name: str, words: str) -> str:
    """Write the words of a verb as a list of the shell."""
    return f"set -g _fusionray_{name} {words}" if shell == "fish" else f"_fusionray_{name}=({words})"


def write_function(shell: str, name: str) -> str:
    """Write the function that completes the settings of a verb."""
    if shell == "fish":
        return f"function _fusionray_{name}_settings; _fusionray_words $_fusionray_{name}; end"
    typed = '"$1" ' if shell == "bash" else ""
    return f'_fusionray_{name}_settings() {{ _fusionray_words {typed}"${{_fusionray_{name}[@]}}"; }}'
