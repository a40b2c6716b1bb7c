from __future__ import annotations

import pytest

from fusionray.cli import main, parse


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
    assert "goals: Input should be 'none', 'paired' or 'unpaired'" in line


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
    assert capsys.readouterr().err.strip().splitlines() == ["fusionray export: override 'word': write dotted.key=value"]
