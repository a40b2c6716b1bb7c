from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys

import pytest

from fusionray.cli import build_parser, main, parse
from fusionray.commands.parser import Parser
from fusionray.commands.trees import TREES
from fusionray.config_keys import list_paths
from tests.support.child_python import ROOT, run_python


@pytest.mark.parametrize(
    "line",
    [
        "export run --output bundle name=a tolerance=1",
        "export run name=a tolerance=1 --output bundle",
    ],
)
def test_overrides_may_stand_before_and_behind_options(line: str) -> None:
    options = parse(line.split())
    assert (options.checkpoint, options.output) == ("run", "bundle")
    assert options.overrides == ["name=a", "tolerance=1"]


def test_evaluate_takes_a_model_its_people_and_overrides() -> None:
    options = parse(["evaluate", "bundle", "--data", "shards", "pairs=9", "--output", "out", "goals=paired"])
    assert (options.model, options.data, options.output) == ("bundle", "shards", "out")
    assert options.overrides == ["pairs=9", "goals=paired"]


def test_a_wrong_setting_of_evaluate_is_refused_before_a_cluster_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "bundle", "--data", "shards", "--output", "out", "goals=some"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "goals: Input should be 'none', 'paired', 'unpaired' or 'photographs'" in line


def test_a_wrong_setting_of_tune_is_refused_before_a_cluster_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--output", "out", "trials=1", "space={a: {choice: [1, 2]}}"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fusionray tune: the command line: ")
    assert "train: Field required" in line
    assert "trials: Input should be greater than or equal to 2" in line


@pytest.mark.parametrize("line", ["export run --output b --naem a", "fuse a b c.png --bundle d extra"])
def test_unknown_arguments_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    assert "unknown argument" in capsys.readouterr().err


def test_override_that_is_none_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run", "--output", "bundle", "word"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fusionray export: override 'word': write dotted.key=value, for example run.seed=1; options")
    assert line.endswith("see --help")


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*verb.split(), "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def list_verbs(parser: Parser) -> list[str]:
    """List all verbs, with those below `keys` and `bench`."""
    inner = [f"{name} {below}" for name, verb in parser.verbs.items() for below in list_verbs(verb)]
    return [*parser.verbs, *inner]


VERBS = list_verbs(build_parser())


def test_help_lists_the_verbs_in_the_order_of_the_path_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("", capsys)
    places = [text.index(f"\n    {verb} ") for verb in ("prepare", "train", "tune", "evaluate", "export", "serve")]
    assert places == sorted(places)
    assert len(VERBS) == 30
    listed = text.split("VERB [OPTION]\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == [verb for verb in VERBS if " " not in verb]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_is_a_sentence_with_examples_that_are_understood(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(verb, capsys)
    usage, sentence = text.split("\n\n")[:2]
    assert usage.startswith(f"usage: fusionray {verb} ")
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    examples = [line.strip() for line in text.splitlines() if line.startswith("  fusionray ")]
    assert examples
    for line in examples:
        # What a shell would do with it is none of argparse's business.
        words = shlex.split(line.partition(" > ")[0])
        assert words[1 : 1 + len(verb.split())] == verb.split()
        options = parse(words[1:])
        check_settings(options, " ".join(words[1:]))


def check_settings(options: argparse.Namespace, line: str) -> None:
    """Check the overrides of an example against the tree of its verb."""
    verb = options.prog.removeprefix("fusionray ")
    if verb not in TREES or not options.overrides:
        return
    paths = list_paths(TREES[verb]())
    assert [item for item in options.overrides if item.partition("=")[0] not in paths] == [], line


@pytest.mark.parametrize("option", ["--settings", "--config"])
def test_help_of_a_verb_with_settings_says_how_to_list_them(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in TREES:
        assert option in help_of(verb, capsys)


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys, time\n"
        "import fusionray.cli\n"
        "used = time.process_time()\n"
        "try:\n"
        "    fusionray.cli.main(['train', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'numpy', 'ray', 'mlflow', 'shtab', 'onnx', 'pydantic'} & set(sys.modules)\n"
        "print(f'\\n{used} {sorted(heavy)}')"
    )
    used, heavy = run_python("-c", code).splitlines()[-1].split(" ", 1)
    assert heavy == "[]"
    # CPU seconds from the start of Python: 0.15 where this was written.
    assert float(used) < 1.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trian", "fusionray: unknown verb 'trian'; did you mean 'train'? choose from prepare, train"),
        ("bench traim --output x", "fusionray bench: unknown verb 'traim'; did you mean 'train'?"),
        ("keys ad x", "fusionray keys: unknown verb 'ad'; did you mean 'add'?"),
        ("zzz", "fusionray: unknown verb 'zzz'; choose from prepare, train"),
        ("", "fusionray: a verb is missing; choose from prepare, train"),
        ("bench", "fusionray bench: a verb is missing; choose from start, faces, data, train, recovery, serve"),
        ("train --presett x", "fusionray train: unknown argument --presett; did you mean '--preset'?"),
        ("fuse --settings", "fusionray: fuse has no --settings"),
        ("bench --settings", "such as `fusionray bench train --settings`"),
        ("evaluate x", "fusionray evaluate: the following arguments are required: --data, --output"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    captured = capsys.readouterr()
    (told,) = captured.err.splitlines()
    assert said in told
    assert captured.out == ""


def list_settings(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line.split()) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("verb", TREES)
def test_settings_fit_the_terminal(
    verb: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = list_settings(f"{verb} --settings", capsys)
    assert max(map(len, text.splitlines())) <= width
    if width == 200:
        # Every key stands in the column of keys, and every sentence in that of meanings.
        header = text.splitlines()[0]
        assert header.split() == ["key", "type", "unit", "default", "meaning"]
        column = header.index("meaning")
        # Members of a union stand by themselves: a name and a sentence.
        table = re.sub(r"\n(?:  [^\n`]*\n)+  `[^\n]* lists the keys of one of them", "", text)
        rows = [line for line in table.splitlines()[1:] if line.startswith("  ") and "`" not in line[:4]]
        assert [line for line in rows if line[column - 1 : column].strip()] == []


def test_settings_show_what_a_preset_and_overrides_set_beside_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = list_settings("train --preset tiny-64 --settings data run.seed=7 data.shuffle_buffer_rows=99", capsys)
    header = text.splitlines()[0]
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    place = slice(header.index("set "), header.index("meaning"))
    assert rows["same_identity_ratio"][place].strip() == "0.1"
    assert rows["shuffle_buffer_rows"][place].strip() == "99"
    assert rows["timeout_seconds"][place].strip() == ""
    assert "seed" not in rows


@pytest.mark.parametrize(
    ("line", "there", "absent"),
    [
        ("train --settings", ["recipe: ", "  face_fusion "], ["recipe.generator"]),
        ("train --settings recipe", ["  face_fusion "], ["recipe.weights"]),
        ("train --settings recipe.face_fusion", ["recipe.weights", "recipe.generator.source"], ["margin"]),
        ("train --settings recipe.weights", ["adversarial"], ["recipe.generator"]),
        ("train --settings recipe recipe.name=identity", ["margin"], ["recipe.weights"]),
        ("train --preset tiny-64 --settings", ["recipe.weights", "tracking"], ["recipe.encoder"]),
        ("train --settings engine.batch_size", ["batch_size"], ["global_batch"]),
        ("tune --settings space", ["space.KEY", "loguniform"], ["asha"]),
        ("serve --settings models.0", ["models.N", "models.N.canary"], ["ingress"]),
        ("serve --config serve/config.yaml --settings models", ["{name: default, bundle:"], ["ingress"]),
        ("evaluate --settings face_fusion.clips", ["frames"], ["evaluator"]),
        ("bench train --settings", ["loader_batches"], []),
    ],
)
def test_settings_list_a_section(
    line: str, there: list[str], absent: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = list_settings(line, capsys)
    assert [word for word in there if word not in text] == []
    assert [word for word in absent if word in text] == []


def test_settings_of_an_unknown_section_are_refused_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--settings", "engin"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "fusionray train: no section or key 'engin'; did you mean 'engine'? `fusionray train --settings` lists all keys"
    )


def test_settings_as_json_are_the_json_schema_of_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(list_settings("compile --settings --json", capsys))
    assert schema["properties"]["cache_gib"]["default"] == 8.0


def test_a_reader_that_closes_the_pipe_gets_no_traceback() -> None:
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -m fusionray.cli compile --settings | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
