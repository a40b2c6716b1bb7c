from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray import serve

from fusionray.serving.pipeline import core_share
from fusionray.serving.pipeline.core_share import CoreShare, share_cores
from tests.support.waiting import wait_for

CHILD = """
import sys
from fusionray.serving.pipeline.core_share import CoreShare
share = CoreShare(sys.argv[1])
print("holds", flush=True)
sys.stdin.readline()
with share.working(), share.working():
    print("works", flush=True)
    sys.stdin.readline()
print("rests", flush=True)
sys.stdin.read()
"""


# As long as those of a cluster in Kubernetes.
NAME = f"fusionray-raycluster-head-svc.fusionray.svc.cluster.local:6379/test/{uuid.uuid4()}"


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Iterator[CoreShare]:
    monkeypatch.setattr(core_share, "COUNT_SECONDS", 0.0)
    share = CoreShare(NAME, num_cpus=5)
    yield share
    assert share.socket is not None
    share.socket.close()


def start_child(name: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"holds\n"
    return child


def test_processes_of_one_name_divide_the_cores_and_a_killed_one_gives_its_share_back(share: CoreShare) -> None:
    assert share.count_cores() == 5
    with start_child(NAME) as first, start_child(NAME) as second, start_child(f"{NAME}-other") as other:
        assert share.count_cores() == 5 // 3
        first.kill()
        first.wait()
        wait_for(lambda: share.count_cores() == 5 // 2, seconds=5)
        for child in (second, other):
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
    assert share.count_cores() == 5


def count_room(share: CoreShare, num_threads: int) -> int:
    """Let threads begin until there is no room for one more."""
    num_running = 0
    while share.has_room(num_running, num_threads):
        num_running += 1
    return num_running


def test_threads_of_a_process_are_limited_while_another_one_works(share: CoreShare) -> None:
    assert [count_room(share, threads) for threads in (1, 5, 9)] == [1, 5, 9]
    with start_child(NAME) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert [count_room(share, threads) for threads in (1, 5, 9)] == [1, 5, 9]
        child.stdin.write(b"go\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"works\n"
        assert [count_room(share, threads) for threads in (1, 5, 9)] == [1, 2, 2]
        child.kill()


def test_a_process_that_can_open_no_socket_goes_on(share: CoreShare, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(core_share.socket, "socket", fail)
        with share.working():
            assert share.num_working == 1
        assert CoreShare(f"{NAME}-another", num_cpus=3).count_cores() == 3
    assert share.num_working == 0
    with share.working():
        assert core_share.list_names(share.work_prefix) == {str(os.getpid())}
    assert core_share.list_names(share.work_prefix) == set()


def test_a_process_sees_whether_another_one_works(share: CoreShare) -> None:
    assert not share.do_others_work()
    with share.working(), start_child(NAME) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for said, works in ((b"works\n", True), (b"rests\n", False)):
            assert share.do_others_work() != works
            child.stdin.write(b"go\n")
            child.stdin.flush()
            assert child.stdout.readline() == said
            assert share.do_others_work() == works
        child.kill()


def test_a_process_that_is_killed_at_work_works_no_more(share: CoreShare) -> None:
    with start_child(NAME) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"works\n"
        assert share.do_others_work()
        child.kill()
        child.wait()
        wait_for(lambda: not share.do_others_work(), seconds=5)


def test_every_process_has_a_core(share: CoreShare) -> None:
    share.num_cpus = 1
    with start_child(NAME) as child:
        assert share.count_cores() == 1
        child.kill()


def test_processes_are_counted_once_a_second(share: CoreShare, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share.count_cores() == 5
    monkeypatch.setattr(core_share, "COUNT_SECONDS", 60.0)
    with start_child(NAME) as child:
        assert share.count_cores() == 5
        child.kill()


def test_without_a_table_of_sockets_a_process_has_all_cores(
    share: CoreShare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(core_share, "SOCKET_TABLE", tmp_path / "missing")
    assert share.count_cores() == 5


def test_outside_of_a_replica_nothing_is_shared() -> None:
    assert share_cores() is None


class Sharing:
    """Says how many cores its share of two has."""

    def __init__(self) -> None:
        share = share_cores()
        assert share is not None
        assert share_cores() is share
        share.num_cpus = 2
        self.share = share

    def count(self) -> int:
        return self.share.count_cores()


@pytest.mark.slow(seconds=17)
@pytest.mark.usefixtures("no_service")
def test_replicas_of_one_deployment_share_the_cores_and_those_of_others_do_not(port: int) -> None:
    serve.start(http_options={"port": port})
    kind = serve.deployment(Sharing, num_replicas=2, ray_actor_options={"num_cpus": 0.1})
    pair = serve.run(kind.bind(), name="pair", route_prefix="/pair")
    alone = serve.run(kind.options(num_replicas=1).bind(), name="alone", route_prefix="/alone")
    wait_for(lambda: {pair.count.remote().result() for _ in range(8)} == {1}, seconds=20)
    assert alone.count.remote().result() == 2
