from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from fusionray.cli import main
from fusionray.doctor.cluster import NodeReport, compare_nodes, examine_cluster
from fusionray.doctor.host import HostOptions
from tests.faults.three_nodes import LocalNodes
from tests.support.child_python import run_python


def test_this_machine_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {"name", "severity", "evidence", "remedy", "action", "node"} == set(found[0])
    assert {"packages", "torch", "GPUs", "disk", "host name"} <= {each["name"] for each in found}
    assert all(each["remedy"] for each in found if each["severity"] in ("warning", "error"))


def test_an_error_is_the_exit_status_and_its_remedy_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--storage", "/proc/nowhere"])
    said = capsys.readouterr().out
    assert said.startswith("error    storage: /proc/nowhere: ")
    assert "-> check the path, the credentials and the permissions on this node [fix setting]" in said
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert main(["doctor"]) == 0
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--strict"])
    golden = tmp_path / "golden.json"
    assert main(["doctor", "--write-golden", str(golden)]) == 0
    assert main(["doctor", "--golden", str(golden)]) == 0
    golden.write_text(json.dumps({**json.loads(golden.read_text()), "ray": "1.0"}))
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--golden", str(golden)])
    capsys.readouterr()
    assert main(["doctor", "--golden", str(tmp_path / "gone.json")]) == 1
    assert "gone.json: cannot be read" in capsys.readouterr().err
    assert main(["doctor", "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "kernel log" in listed
    assert "exchange " not in listed
    assert main(["doctor", "--dry-run", "--intensive"]) == 0
    assert "exchange " in capsys.readouterr().out.removeprefix(listed)


def test_a_cluster_must_be_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["doctor", "--cluster"]) == 1
    assert "--cluster: no cluster is named; give --address, or set RAY_ADDRESS" in capsys.readouterr().err


@pytest.mark.usefixtures("ray_session")
def test_every_node_of_a_cluster_is_examined() -> None:
    found = examine_cluster(HostOptions())
    assert len({each.node for each in found}) == 1
    assert "" not in {each.node for each in found}
    assert {"packages", "disk", "raylet"} <= {each.name for each in found}


def test_what_differs_between_nodes_is_found() -> None:
    def report(
        began: float, ended: float, *, ray: str = "2.60.0", gpus: int = 0, firmware: Mapping[str, str] | None = None
    ) -> NodeReport:
        return NodeReport([], {"ray": ray}, gpus, began, ended, firmware or {})

    nodes = {"a": report(100, 101), "b": report(100.2, 101, ray="2.59.0", gpus=1), "c": report(90, 91)}
    differing = [(each.node, each.name, each.severity) for each in compare_nodes(nodes, 99.9, 101.5)]
    assert differing == [
        ("b", "versions", "error"),
        ("b", "GPUs", "note"),
        ("c", "versions", "ok"),
        ("c", "clock", "error"),
    ]
    older, newer = ({"NVIDIA driver": "550.90.07", "VBIOS of NVIDIA L4": vbios} for vbios in ("95.04", "95.06"))
    # A node with other GPUs has another VBIOS by right.
    other = {"NVIDIA driver": "550.90.07", "VBIOS of NVIDIA T4": "90.04"}
    nodes = {name: report(1, 2, firmware=found) for name, found in (("a", older), ("b", newer), ("c", other))}
    (found,) = (each for each in compare_nodes(nodes, 1, 2) if each.name == "firmware")
    assert (found.node, found.severity) == ("b", "warning")
    assert found.evidence == "VBIOS of NVIDIA L4 95.06 here, 95.04 on a"


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=40)
def test_three_nodes_are_examined_by_the_command() -> None:
    with LocalNodes(environment={"MASTER_ADDR": "127.0.0.1"}) as nodes:
        said = run_python("-m", "fusionray.cli", "doctor", "--cluster", "--json", **nodes.environment)
    found = json.loads(said)["findings"]
    assert len({each["node"] for each in found}) == 3
    assert sum(each["name"] == "versions" and each["severity"] == "ok" for each in found) == 2
    lags = [each for each in found if each["name"] == "raylet"]
    assert len(lags) == 3
    print(*(each["evidence"] for each in lags), sep="\n")
    (state,) = (each for each in found if each["name"] == "GCS storage")
    assert (state["severity"], state["node"]) == ("note", nodes.nodes[0].ip)
    assert "RAY_gcs_storage=rocksdb" in state["remedy"]
    # Each node takes rank 0 to be itself.
    assert sum(each["name"] == "master address" for each in found) == 3


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=30)
def test_a_head_that_keeps_its_state_is_told(tmp_path: Path) -> None:
    kept = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "head")}
    with LocalNodes(2, environment=kept) as nodes:
        said = run_python("-m", "fusionray.cli", "doctor", "--cluster", "--json", **nodes.environment)
    (state,) = (each for each in json.loads(said)["findings"] if each["name"] == "GCS storage")
    assert (state["severity"], state["evidence"]) == ("ok", "it is kept in rocksdb")
