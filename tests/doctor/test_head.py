from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fusionray.doctor import settings
from fusionray.doctor.cluster import NodeReport, compare_with_head, judge_lags
from fusionray.doctor.head import judge_gcs_storage, judge_master
from fusionray.doctor.host import Host
from tests.doctor.broken_host import build


@pytest.mark.parametrize(
    ("variables", "nodes", "wanted"),
    [
        ({}, 3, ["note"]),
        ({"RAY_gcs_storage": "memory"}, 3, ["note"]),
        ({"RAY_gcs_storage": "rocksdb"}, 3, ["ok"]),
        ({"RAY_REDIS_ADDRESS": "redis:6379"}, 3, ["ok"]),
        ({}, 1, []),
    ],
)
def test_a_head_of_several_nodes_should_keep_its_state(
    variables: Mapping[str, str], nodes: int, wanted: list[str]
) -> None:
    found = list(judge_gcs_storage("10.0.0.1", variables, nodes))
    assert [each.severity for each in found] == wanted
    assert all(each.node == "10.0.0.1" for each in found)
    assert all("RAY_gcs_storage=rocksdb" in each.remedy for each in found if each.severity == "note")


@pytest.mark.parametrize(
    ("gpus", "masters", "wanted"),
    [
        ({"head": 0, "a": 0}, {}, []),
        ({"head": 8, "a": 8}, {"head": "head"}, []),
        # Nobody set it, and rank 0 is not on the head.
        ({"head": 0, "a": 8}, {}, [("head", "ok")]),
        ({"head": 0, "a": 8}, {"head": "head"}, [("head", "warning"), ("head", "ok")]),
        ({"head": 0, "a": 8}, {"a": "a"}, [("head", "ok")]),
        ({"head": 8, "a": 8}, {"head": "127.0.0.1", "a": "localhost"}, [("head", "warning"), ("a", "warning")]),
        ({"head": 0}, {"head": "127.0.0.1"}, []),
    ],
)
def test_rank_0_is_where_ray_train_puts_it(
    gpus: Mapping[str, int], masters: Mapping[str, str], wanted: list[tuple[str, str]]
) -> None:
    assert [(each.node, each.severity) for each in judge_master("head", gpus, masters)] == wanted


def test_what_nodes_tell_is_compared_with_the_head() -> None:
    def report(gpus: int, is_master: bool, **variables: str) -> NodeReport:
        return NodeReport([], {}, gpus, 0, 0, variables=variables, is_master=is_master)

    reports = {
        "10.0.0.1": report(0, True, MASTER_ADDR="10.0.0.1", RAY_gcs_storage="rocksdb"),
        "10.0.0.2": report(8, False, MASTER_ADDR="10.0.0.1"),
        # Its own check tells it.
        "10.0.0.3": report(0, False, MASTER_ADDR="10.0.0.1"),
    }
    found = [(each.name, each.node, each.severity) for each in compare_with_head("10.0.0.1", reports)]
    assert found == [
        ("GCS storage", "10.0.0.1", "ok"),
        ("master address", "10.0.0.1", "warning"),
        ("master address", "10.0.0.1", "ok"),
    ]


def test_a_master_address_of_another_machine_is_a_warning(tmp_path: Path) -> None:
    for address, wanted in (("10.0.0.9", ["warning"]), ("10.0.0.7", []), ("127.0.0.1", [])):
        found = list(settings.check_master_address(build(tmp_path, MASTER_ADDR=address)))
        assert [each.severity for each in found] == wanted
    assert list(settings.check_master_address(build(tmp_path))) == []


def test_this_machine_knows_its_own_addresses() -> None:
    assert Host().is_here("127.0.0.1")
    assert Host().is_here("localhost")
    assert not Host().is_here("203.0.113.7")
    assert not Host().is_here("no-such-host.invalid")


def test_a_raylet_that_lags_is_found() -> None:
    slow, fast = judge_lags({"a": 1.2, "b": 0.004})
    assert (slow.node, slow.severity, slow.action) == ("a", "warning", "restart process")
    assert (fast.node, fast.severity, fast.evidence) == ("b", "ok", "a task that does nothing takes 0.004 s")
