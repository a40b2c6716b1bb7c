"""Each command of the README and the pages is understood: its verb, options, keys and values, targets of make.

None is started here: as they stand there, they take hours, GPUs, or pictures of the reader. `RUN_BY` names for each
verb a test that runs it for real, with small models; `make demo` runs the whole path.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from fusionray.cli import build_parser, parse
from fusionray.commands.trees import TREES
from fusionray.config import merge_trees, parse_overrides, read_preset, read_yaml
from tests.docs.test_paths import PAGES
from tests.support.child_python import ROOT

BLOCK = re.compile(r"^```(?:bash|sh|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(fusionray [a-z][^`\n]*)`")
COMMAND = re.compile(r"(?:^|\s)(?:python jobs/|fusionray )")
# Jobs that read a command line of their own, and scripts to copy.
OWN_SCRIPTS = {"demo", "demo_search", "tune_driver"}
RUN_BY = {
    "prepare": "test_wheel.py",
    "train": "test_wheel.py",
    "tune": "tuning/test_killed_search.py",
    "evaluate": "e2e/test_object_store.py",
    "export": "test_wheel.py",
    "import": "export/test_import_onnx.py",
    "compile": "runtime/test_compile.py",
    "serve": "test_wheel.py",
    "keys": "serving/auth/test_api_keys.py",
    "fuse": "safety/test_fuse.py",
    "fuse-video": "video/test_unchanged.py",
    "stylize": "safety/test_stylize.py",
    "verify": "safety/test_verify.py",
    "audit": "safety/test_audit_chain.py",
    "plan": "planning/test_plan.py",
    "doctor": "doctor/test_command.py",
    "completion": "test_completion.py",
    "bench": "benchmarks/test_train.py",
}
# What a page leaves out, or names as a placeholder: parts of a command, not a command.
PARTIAL = re.compile(r"\.\.\.|\bVERB\b|…")


def list_commands(text: str) -> Iterator[str]:
    """Find the commands of a page: lines of its blocks, continued ones joined."""
    for block in BLOCK.findall(text):
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()


def read_command(line: str) -> list[str] | None:
    """Return the verb and its arguments; None for a line that starts nothing of ours, or only a part of it."""
    if not COMMAND.search(line) or PARTIAL.search(line):
        return None
    words = shlex.split(line.removeprefix("$ "), comments=True)
    for number, word in enumerate(words):
        script = re.fullmatch(r"jobs/(\w+)\.py", word)
        # `--project-name fusionray` is no command.
        is_command = word == "fusionray" and not (
            number and words[number - 1].startswith("--") and words[number - 1][2:]
        )
        if is_command or (script and script[1] not in OWN_SCRIPTS):
            rest = words[number + 1 :]
            ends = [rest.index(end) for end in ("|", ">", "&", "&&", ";", "2>&1") if end in rest]
            rest = rest[: min(ends, default=None)]
            return [*([script[1].replace("_", "-")] if script else []), *rest]
    return None


def find_fault(command: list[str]) -> str | None:
    """Say what is wrong with a command; None if nothing is."""
    try:
        options = parse(command)
    except SystemExit as error:
        return None if error.code in (0, None) else f"exits with {error.code}"
    verb = options.prog.removeprefix("fusionray ")
    if not options.overrides or verb not in TREES:
        return None
    tree = parse_overrides(options.overrides)
    preset = tree.pop("preset", None) or getattr(options, "preset", None)
    file = ROOT / (getattr(options, "config", None) or "nowhere")
    base = read_yaml(file) if file.is_file() else {}
    preset = preset or base.pop("preset", None)
    tree = merge_trees(merge_trees(read_preset(preset) if preset else {}, base), tree)
    try:
        TREES[verb]().model_validate(tree)
    except ValidationError as error:
        # What the command itself sets beside the keys, or a file or family of the user, is missing here.
        unknown = ("missing", "union_tag_not_found", "union_tag_invalid")
        faults = [fault for fault in error.errors() if fault["type"] not in unknown]
        return str(faults) if faults else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = {}
    for line in list_commands(page.read_text(encoding="utf-8")):
        command = read_command(line)
        fault = None if command is None else find_fault(command)
        if fault:
            faults[line] = f"{fault} {capsys.readouterr().err}"
    assert faults == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_and_options_in_a_sentence_exist(page: Path) -> None:
    faults = []
    for span in INLINE.findall(page.read_text(encoding="utf-8")):
        words = span.split()[1:]
        parser = build_parser()
        while words and words[0] in parser.verbs:
            parser = parser.verbs[words.pop(0)]
        # `VERB` stands for any of them, `start|faces` for several.
        is_verb = not parser.verbs or not words or words[0] == "VERB" or set(words[0].split("|")) <= set(parser.verbs)
        options = re.findall(r"(?<!\S)--[a-z][a-z-]*", span)
        known = parser.format_help() + "".join(verb.format_help() for verb in parser.verbs.values())
        faults += [] if is_verb else [span]
        faults += [f"{span}: {option}" for option in options if option not in re.findall(r"--[a-z][a-z-]*", known)]
    assert faults == []


def test_every_verb_is_run_by_a_test() -> None:
    assert set(RUN_BY) == set(build_parser().verbs)
    for verb, file in RUN_BY.items():
        assert f'"{verb}"' in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file} does not run {verb}"


def test_targets_of_make_exist() -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`make ([a-z-]+)[^`]*`", text)
        named += [name for block in BLOCK.findall(text) for name in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)]
        assert set(named) - known == set(), page.name


def test_commands_are_found_and_faults_too() -> None:
    found = [read_command(line) for page in PAGES for line in list_commands(page.read_text(encoding="utf-8"))]
    assert len([command for command in found if command]) > 50
    assert find_fault(["train", "--preset", "tiny-64", "data.shards=x", "engine.global_batch=8"]) is None
    assert "global_bach" in str(find_fault(["train", "--preset", "tiny-64", "engine.global_bach=8"]))
    assert "global_batch" in str(find_fault(["train", "--preset", "tiny-64", "engine.global_batch=many"]))
    assert find_fault(["train", "--presett", "tiny-64"]) is not None
    assert read_command("ray job submit --working-dir . -- python jobs/train.py --preset tiny-64 # fast") == [
        "train",
        "--preset",
        "tiny-64",
    ]
