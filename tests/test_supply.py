"""What `make check-supply` says: of licences, of the bill of materials, and of known vulnerabilities."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import fusionray
from tests.support.child_python import ROOT

RULES = yaml.safe_load((ROOT / ".ci" / "licences.yaml").read_text())
# The one vulnerable version of this test's database.
VULNERABLE = {"name": "jinja2", "version": "2.4.1", "id": "PYSEC-TEST-1", "fixed": "2.7.3"}

needs_tools = pytest.mark.skipif(
    not (ROOT / ".venv-supply" / ".installed").exists(), reason="`make supply-tools` was not run"
)


@pytest.fixture(scope="module")
def supply() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply", ROOT / ".ci" / "supply.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def database() -> Iterator[str]:
    """Serve an OSV database of one vulnerability."""

    class Database(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hit = (asked["package"]["name"], asked["version"]) == (VULNERABLE["name"], VULNERABLE["version"])
            ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": VULNERABLE["fixed"]}]}]
            package = {"name": VULNERABLE["name"], "ecosystem": "PyPI"}
            found = {"id": VULNERABLE["id"], "summary": "s", "affected": [{"package": package, "ranges": ranges}]}
            body = json.dumps({"vulns": [found]} if hit else {}).encode()
            self.send_response(500 if self.path.endswith("broken") else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Database)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    thread.join()
    server.server_close()


def write_package(folder: Path, *lines: str, name: str = "p") -> Distribution:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1", *lines]) + "\n")
    return Distribution.at(folder)


def test_what_users_install_has_allowed_licences(supply: ModuleType) -> None:
    packages = supply.list_installed()
    assert list(supply.check_licences(packages, RULES)) == []
    # The service needs uvicorn's extra; the wheel of mediapipe is installed by a line of its own.
    assert {"ray", "torch", "openvino", "psycopg", "uvloop", "mediapipe"} <= set(packages)
    # Tools of development are not passed on.
    assert not {"pytest", "ruff", "mkdocs-material"} & set(packages)


@pytest.mark.parametrize("order", [("plain", "rich"), ("rich", "plain")])
def test_a_package_that_is_wanted_with_and_without_an_extra_brings_the_extra(
    supply: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    extra = (
        "Provides-Extra: more",
        "Requires-Dist: brought; extra == 'more'",
        "Requires-Dist: no-test; extra == 'test'",
    )
    for name, *lines in (
        ("product", *(f"Requires-Dist: {name}" for name in order), "Requires-Dist: absent; sys_platform == 'win32'"),
        ("plain", "Requires-Dist: server"),
        ("rich", "Requires-Dist: Server[more]"),
        ("server", *extra),
        ("brought", "Requires-Dist: product"),
    ):
        write_package(tmp_path / f"{name}-1.dist-info", *lines, name=name)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = supply.list_installed("product", extras=(), beside=())
    assert list(found) == ["brought", "plain", "rich", "server"]


def test_another_licence_is_refused(supply: ModuleType, tmp_path: Path) -> None:
    def check(*lines: str, **explained: Any) -> list[str]:
        package = write_package(tmp_path / "p.dist-info", *lines)
        return list(
            supply.check_licences({"p": package}, {"allowed": {"MIT": ["MIT License"]}, "explained": explained})
        )

    assert check("License-Expression: MIT") == []
    assert check("Classifier: License :: OSI Approved :: MIT License") == []
    (fault,) = check("License-Expression: MIT AND GPL-3.0-only")
    assert fault.startswith("p: licence 'GPL-3.0-only' is not allowed")
    (fault,) = check()
    assert "'not stated' is not allowed" in fault
    assert check("License-Expression: GPL-3.0-only", p={"stated": "GPL-3.0-only", "why": "w"}) == []
    (fault,) = check("License-Expression: AGPL-3.0-only", p={"stated": "GPL-3.0-only", "why": "w"})
    assert "states 'AGPL-3.0-only' now" in fault
    (fault,) = check("License-Expression: MIT", gone={"stated": "X", "why": "w"})
    assert "not installed any more" in fault
    assert check("License-Expression: X", **{"p*": {"stated": None, "why": "w"}}) == []


@needs_tools
def test_a_vulnerable_version_is_named_with_its_remedy(
    supply: ModuleType, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("jinja2==2.4.1\nclick==8.5.1\n")
    assert supply.main(["audit", "--lock", str(lock), "--database", database]) == supply.WRONG
    captured = capsys.readouterr()
    assert captured.err.strip() == "audit: jinja2 2.4.1: PYSEC-TEST-1, fixed in 2.7.3"
    assert "2 packages, 1 vulnerable, 0 not looked up" in captured.out
    lock.write_text("click==8.5.1\n")
    assert supply.main(["audit", "--lock", str(lock), "--database", database]) == 0


# A port that is closed; a server that fails.
@needs_tools
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1/query", "DATABASE/broken"])
def test_a_database_that_does_not_answer_means_that_nothing_is_known(
    supply: ModuleType, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    url = url.replace("DATABASE", database)
    lock = tmp_path / "lock.txt"
    lock.write_text("jinja2==2.4.1\n")
    assert supply.main(["audit", "--lock", str(lock), "--database", url]) == supply.UNKNOWN
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"audit: vulnerabilities were NOT checked: no answer from {url} (")
    assert captured.out == ""


@needs_tools
def test_a_package_without_an_exact_version_is_not_called_safe(
    supply: ModuleType, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# nothing yet\n")
    assert supply.main(["audit", "--lock", str(lock), "--database", database]) == supply.UNKNOWN
    lock.write_text("click>=8\n")
    assert supply.main(["audit", "--lock", str(lock), "--database", database]) == supply.UNKNOWN
    assert "NOT checked" in capsys.readouterr().err


def test_missing_tools_are_named_with_the_command_that_brings_them(
    supply: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "TOOLS", tmp_path / "python")
    for step in ("audit", "sbom"):
        with pytest.raises(SystemExit, match="run `make supply-tools`"):
            supply.main([step])


@needs_tools
@pytest.mark.slow(seconds=17)
def test_the_bill_of_materials_is_valid_and_names_no_place(supply: ModuleType) -> None:
    assert supply.main(["sbom"]) == 0
    text = (ROOT / "build" / "sbom.json").read_text()
    assert not [place for place in (str(ROOT), sys.prefix, "file:") if place in text]
    document = json.loads(text)
    product = document["metadata"]["component"]
    assert (product["name"], product["version"]) == ("fusionray", fusionray.__version__)
    assert product["licenses"][0]["license"]["id"] == "Apache-2.0"
    scopes = {part["name"]: part["scope"] for part in document["components"]}
    assert {scopes[name] for name in ("ray", "torch", "mediapipe", "uvloop")} == {"required"}
    assert {scopes[name] for name in ("pytest", "ruff")} == {"excluded"}
    assert "fusionray" not in scopes
