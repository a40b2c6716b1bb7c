from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from fusionray.environment import (
    JOB_VARIABLE,
    QUIET_DEFAULTS,
    RECIPES_VARIABLE,
    ROOT_VARIABLE,
    SPIN_VARIABLE,
    WAIT_VARIABLE,
    apply_defaults,
    cluster_address,
    list_recipe_modules,
    make_proxy_folder,
    passed_on,
    resolve_location,
)

CLEAN = (*QUIET_DEFAULTS, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", ROOT_VARIABLE, SPIN_VARIABLE, WAIT_VARIABLE)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLEAN:
        # Set first, so that the variable is put back even where it was not there.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    apply_defaults()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.usefixtures("clean")
def test_compute_threads_wait_briefly_unless_the_user_has_said_how(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_defaults()
    assert int(os.environ.pop(SPIN_VARIABLE)) < 300_000
    # The count would override the policy.
    monkeypatch.setenv(WAIT_VARIABLE, "active")
    apply_defaults()
    assert SPIN_VARIABLE not in os.environ


@pytest.mark.usefixtures("clean")
def test_a_cluster_of_our_own_gets_a_token_that_nobody_can_guess() -> None:
    apply_defaults()
    first = os.environ["RAY_AUTH_TOKEN"]
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(first) == 64
    del os.environ["RAY_AUTH_MODE"]
    apply_defaults()
    assert os.environ["RAY_AUTH_TOKEN"] != first


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("named", [True, False])
def test_a_cluster_that_is_there_keeps_its_own_authentication(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    if not named:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    apply_defaults("10.0.0.1:6379" if named else None)
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_recipe_modules_reach_a_cluster_unless_its_job_names_them_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOB_VARIABLE, raising=False)
    monkeypatch.delenv(RECIPES_VARIABLE, raising=False)
    assert (list_recipe_modules(), passed_on()) == ([], {})
    monkeypatch.setenv(RECIPES_VARIABLE, "mine.first, mine.second,")
    assert list_recipe_modules() == ["mine.first", "mine.second"]
    assert passed_on() == {RECIPES_VARIABLE: "mine.first, mine.second,"}
    monkeypatch.setenv(JOB_VARIABLE, json.dumps({"runtime_env": {"env_vars": {"OTHER": "1"}}, "metadata": {}}))
    assert set(passed_on()) == {RECIPES_VARIABLE}
    monkeypatch.setenv(JOB_VARIABLE, json.dumps({"runtime_env": {"env_vars": {RECIPES_VARIABLE: "mine.first"}}}))
    assert passed_on() == {}


@pytest.mark.usefixtures("clean")
def test_the_address_that_was_named_wins_over_the_surrounding_job_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_address(None) is None
    monkeypatch.setenv("RAY_ADDRESS", "job:1")
    assert cluster_address(None) == "job:1"
    assert cluster_address("named:2") == "named:2"


@pytest.mark.usefixtures("clean")
def test_paths_are_resolved_against_the_root_that_outlives_a_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_location("runs") == str(tmp_path / "runs")
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "shared"))
    assert resolve_location("runs/../runs/x") == str(tmp_path / "shared" / "runs" / "x")
    assert resolve_location("/data/x") == "/data/x"
    assert resolve_location("~/x") == str(Path.home() / "x")


def test_uris_stay_as_they_are() -> None:
    assert resolve_location("s3://bucket/a/../b") == "s3://bucket/a/../b"
    assert resolve_location("synthetic://people=3") == "synthetic://people=3"


@pytest.mark.parametrize("length", [10, 60])
def test_haproxy_has_a_folder_that_is_private_and_short(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fr-" + "x" * (length - 10)) as wanted:
        monkeypatch.setattr(os, "environ", {**os.environ, "RAY_TMPDIR": wanted})
        folder = make_proxy_folder()
        try:
            assert (folder.parent == Path(wanted)) == (length == 10)
            assert folder.stat().st_mode & 0o777 == 0o700
            # With the node's ID, the name of the socket, and HAProxy's suffix.
            assert len(f"{folder}/{'0' * 56}/a.sock.1234567.tmp") <= 107
        finally:
            folder.rmdir()
