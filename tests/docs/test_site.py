"""The documentation as pages, and the document of the HTTP interface, which leaves nothing unsaid."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.hooks import build_document, list_fields, list_parameters, write_references
from tests.support.child_python import ROOT


def test_a_link_that_leads_nowhere_is_an_error_and_the_only_one(tmp_path: Path) -> None:
    for name in ("mkdocs.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "doctor.md").open("a") as file:
        file.write("\n[nowhere](serving.md#nowhere)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 1
    (complaint,) = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    assert "doctor.md" in complaint
    assert "#nowhere" in complaint


def test_references_are_read_off_the_code() -> None:
    pages = dict(write_references())
    assert "| `checkpoint_every_images` | integer" in pages["reference/settings-train.md"]
    assert "## fusionray fuse-video" in pages["reference/commands.md"]
    assert "## fusionray bench video" in pages["reference/commands.md"]
    assert "## POST /v1/stylize/jobs" in pages["reference/http.md"]


def test_each_route_and_field_and_answer_says_what_it_is() -> None:
    document = build_document()
    silent = []
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            fields = [*list_parameters(route), *list_fields(document, route)]
            silent += [f"{method} {path}: {name}" for name, _, _, meaning in fields if not meaning]
            made = [answer["description"] for status, answer in route["responses"].items() if status[0] == "2"]
            # FastAPI makes a title of the name of the function where none is given, and calls an answer successful.
            if " " not in route["summary"] or not made or "Successful Response" in made:
                silent.append(f"{method} {path}")
    assert len(document["paths"]) > 20
    assert silent == []
