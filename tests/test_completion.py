"""Completion in real shells: each sources the script that `fusionray completion` prints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.child_python import ROOT, run_python

# What readline does before it calls a completion function: words split at "=", the last one under the cursor.
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
compopt() { [[ $* == *nospace* ]] && nospace=1; }
_fusionray
printf '%s\\n' "${COMPREPLY[@]}" "nospace=${nospace-0}"
"""


def write_script(shell: str, folder: Path) -> Path:
    script = folder / f"fusionray.{shell}"
    script.write_text(run_python("-m", "fusionray.cli", "completion", shell))
    return script


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_script("bash", tmp_path_factory.mktemp("bash"))


def run(*command: str) -> list[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered", "nospace"),
    [
        (["tra"], ["train"], False),
        (["bench", "re"], ["recovery"], False),
        (["keys", "a"], ["add"], False),
        (["train", "--pre"], ["--preset"], False),
        (["train", "--preset", "tiny"], ["tiny-64"], False),
        (["train", "--settings", "engine.p"], ["engine.parallel"], False),
        (["train", "--config", "jobs/presets/demo.y"], ["jobs/presets/demo.yaml"], False),
        # Settings: section by section, then the key, then its choices; readline has split the word at "=".
        (["train", "eng"], ["engine."], True),
        (["train", "engine.pr"], ["engine.precision="], True),
        (["train", "--preset", "tiny-64", "engine.par"], ["engine.parallel."], True),
        (["train", "engine.precision", "=", "b"], ["bf16"], False),
        (["train", "engine.precision", "="], ["auto", "bf16", "fp16", "fp32", "tf32"], False),
        (["train", "engine.compile", "=", "true", "workers.dev"], ["workers.device="], True),
        (["prepare", "in", "out", "image_format", "=", "p"], ["png"], False),
        (["serve", "--port", "9000", "limits.max_f"], ["limits.max_faces="], True),
        (["bench", "train", "--output", "o", "loader"], ["loader_batches="], True),
        (["fuse", "a", "b", "c", "--metadata", "c"], ["colours"], False),
    ],
)
def test_bash_completes(bash_script: Path, words: list[str], offered: list[str], nospace: bool) -> None:
    *found, space = run("bash", "--norc", "-c", BASH, "bash", str(bash_script), "fusionray", *words)
    assert found == offered
    assert space == f"nospace={int(nospace)}"


def test_bash_offers_the_keys_of_a_section_once(bash_script: Path) -> None:
    *found, _ = run("bash", "--norc", "-c", BASH, "bash", str(bash_script), "fusionray", "train", "engine.")
    assert "engine.batch_size=" in found
    assert "engine.parallel." in found
    assert len(found) == len(set(found)) == 14


def test_bash_starts_no_python_to_complete(bash_script: Path) -> None:
    assert "python" not in bash_script.read_text()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    script = write_script("fish", tmp_path)
    for line, offered in (
        ("fusionray tra", "train"),
        ("fusionray train engine.pr", "engine.precision="),
        ("fusionray train engine.precision=b", "engine.precision=bf16"),
    ):
        (found,) = run("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'")
        assert found.split("\t")[0] == offered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_the_script(tmp_path: Path) -> None:
    script = write_script("zsh", tmp_path)
    assert run("zsh", "-n", str(script)) == []
    assert "engine.precision=bf16" in script.read_text()
