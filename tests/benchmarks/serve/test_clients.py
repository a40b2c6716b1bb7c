from __future__ import annotations

import subprocess
import sys
import time
from email import message_from_bytes
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.serve.client_pool import ClientRequest, ClientResults, to_request
from fusionray.benchmarks.serve.clients import FAILED, LOST, Checker, Client, ServerAnswer, parse_stages
from fusionray.benchmarks.serve.competitors import COMPETITORS, SERVERS
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.inputs import Body, write_form
from fusionray.benchmarks.serve.load import Load, LoadResult, Request
from fusionray.benchmarks.serve.overhead import sum_stages
from fusionray.benchmarks.serve.overload import find_enough
from fusionray.benchmarks.serve.servers import HOST, Server
from fusionray.benchmarks.serve.soak import measure_growth
from fusionray.benchmarks.serve.throughput import OURS, compare, describe, leave_out, plan_load
from fusionray.errors import ServiceFailed
from fusionray.faces.image_files.decode import encode_image
from fusionray.hardware.processes import measure_cpu
from tests.support.pictures import draw_person
from tests.support.recording_server import NO_ANSWER, Answer, record_requests

PIXELS = draw_person(3, 96)


def answer(data: bytes = b"", status: int = 200, seconds: float = 0.1) -> ServerAnswer:
    return ServerAnswer(status, {}, data, 0.0, seconds)


def test_stages_are_read_and_the_total_is_not_counted_twice() -> None:
    stages = parse_stages("decode;dur=1.50, fuse;dur=30, queue;dur=0.25, total;dur=33.1")
    assert stages == {"decode": 1.5, "fuse": 30.0, "queue": 0.25, "total": 33.1}
    assert sum_stages(stages) == 31.75
    assert parse_stages("") == {}


def test_a_checker_distinguishes_right_and_wrong_pictures() -> None:
    checker = Checker(PIXELS)
    assert checker.is_right(answer(encode_image(PIXELS)))
    nearly = PIXELS.copy()
    nearly[::9, ::9] ^= 1
    assert checker.is_right(answer(encode_image(nearly)))
    assert not checker.is_right(answer(encode_image(np.ascontiguousarray(PIXELS[:, ::-1]))))
    assert not checker.is_right(answer(encode_image(PIXELS[:64])))
    assert not checker.is_right(answer(encode_image(PIXELS), status=503))


def test_an_answer_of_other_code_must_be_nearer_to_the_right_one_than_the_target() -> None:
    target, right = np.full_like(PIXELS, 90), np.full_like(PIXELS, 90)
    right[20:60, 20:60] = PIXELS[20:60, 20:60]
    other = np.full_like(PIXELS, 90)
    other[20:60, 20:60] = PIXELS[20:60, 21:61]
    checker = Checker(right)
    assert checker.is_near(answer(encode_image(other)), encode_image(target))
    assert not checker.is_right(answer(encode_image(other)))
    assert not checker.is_near(answer(encode_image(target)), encode_image(target))
    assert not checker.is_near(answer(encode_image(other[:64])), encode_image(target))
    assert not checker.is_near(answer(encode_image(other), status=503), encode_image(target))


def test_a_form_is_read_back_by_another_parser() -> None:
    form = write_form({"source": b"\xff\xd8one", "target": b"\xff\xd8two"}, {"format": "jpeg"})
    message = message_from_bytes(f"Content-Type: {form.media_type}\r\n\r\n".encode() + form.data)
    parts = {part.get_param("name", header="content-disposition"): part for part in message.get_payload()}
    assert parts["source"].get_payload(decode=True) == b"\xff\xd8one"
    assert parts["target"].get_filename() == "target.jpg"
    assert parts["format"].get_payload() == "jpeg"


def test_a_request_is_repeated_after_a_closed_connection_and_not_after_an_answer_that_is_cut_off() -> None:
    with record_requests() as server:
        client = Client(HOST, urlsplit(server.url).port or 0, "/v1/fuse", Body(b"form", "text/plain"))
        server.answers += [NO_ANSWER, Answer(200, b"made"), Answer(200, b"ma", {"content-length": "4"})]
        assert [each.status for each in client.ask_with_retry()] == [LOST, 200]
        assert [each.status for each in client.ask_with_retry()] == [FAILED]
        client.close()
    assert [each.status for each in client.ask_with_retry()] == [FAILED]


def test_a_refusal_with_a_successful_retry_is_not_a_failure() -> None:
    checker = Checker(PIXELS)
    requests = [
        to_request([answer(encode_image(PIXELS))], checker),
        to_request([answer(status=503, seconds=0.01), answer(encode_image(PIXELS), seconds=0.2)], checker),
        to_request([answer(status=503, seconds=0.01), answer(status=503, seconds=0.02)], checker),
        to_request([answer(status=-1), answer(status=-1)], checker),
    ]
    assert requests[1] == ClientRequest(200, 0.2, 0.01, True)
    results = ClientResults(tuple(requests), 1.0)
    assert results.failures == {503: 1, -1: 1}
    assert results.failed == 2
    assert results.lost == 1
    assert results.wrong == 0
    assert results.answered == [0.1, 0.2]
    assert sorted(results.refused) == [0.01, 0.01, 0.02]


def test_the_fewest_clients_that_nearly_reach_the_best_rate_saturate() -> None:
    assert find_enough({2: 10.0, 4: 19.2, 8: 20.0, 16: 19.0}) == 4


def test_growth_leaves_the_first_fifth_out() -> None:
    assert measure_growth([10.0] * 2 + [100.0] * 6 + [110.0] * 2, [1] * 10) == 1.1
    assert measure_growth([5.0], [1]) == 1.0


def test_growth_compares_as_many_replicas() -> None:
    memory = [10.0] * 3 + [100.0, 100.0, 200.0] + [1.0] * 6 + [210.0, 210.0, 105.0]
    assert measure_growth(memory, [1] * 3 + [1, 1, 2] + [1] * 6 + [2, 2, 1]) == 1.05


def test_the_best_setup_of_a_competitor_counts_in_rate_and_in_latency_each() -> None:
    def loads(rate: int, seconds: float) -> list[LoadResult]:
        return [LoadResult((Request(0.0, 200, seconds),) * rate, 1.0, 10)]

    found = Findings()
    results = {OURS: loads(30, 0.5), "fastapi-1": loads(20, 1.0), "fastapi-2": loads(25, 2.0)}
    compare("fastapi", results, found)
    assert found.values == {"vs_fastapi_throughput": [1.2], "vs_fastapi_p99": [2.0]}


def test_a_failed_setup_is_left_out_with_a_note_and_others_of_its_server_count() -> None:
    load = LoadResult((Request(0.0, 200, 0.5),) * 20, 1.0, 10)
    found = Findings()
    results = {OURS: [load, load], "fastapi-1": [load, load], "fastapi-2": [load], "litserve-1": [load]}
    for name in ("fastapi-2", "litserve-1"):
        leave_out(name, ServiceFailed(f"{name} gave a wrong picture"), found)
        del results[name]
    for server in ("fastapi", "litserve"):
        compare(server, results, found)
    assert found.values == {"vs_fastapi_throughput": [1.0, 1.0], "vs_fastapi_p99": [1.0, 1.0]}
    assert found.missing.keys() == {"vs_litserve_throughput", "vs_litserve_p99"}
    assert [note.partition(":")[0] for note in found.notes] == ["fastapi-2 is left out", "litserve-1 is left out"]


def test_a_setup_that_drops_requests_is_not_compared() -> None:
    def load(seconds: float, *statuses: int) -> LoadResult:
        return LoadResult(tuple(Request(0.0, status, seconds) for status in (200, 200, *statuses)), 1.0, 0)

    found = Findings()
    results = {OURS: [load(0.5)], "bentoml-batches-1": [load(0.1, 500)], "bentoml-threads-1": [load(1.0)]}
    compare("bentoml", results, found)
    assert found.values == {"vs_bentoml_throughput": [1.0], "vs_bentoml_p99": [2.0]}
    del results["bentoml-threads-1"]
    found = Findings()
    compare("bentoml", results, found)
    assert not found.values
    assert found.missing.keys() == {"vs_bentoml_throughput", "vs_bentoml_p99"}


def test_a_setup_that_never_answers_some_clients_is_not_compared() -> None:
    def load(rate: int, seconds: float) -> LoadResult:
        return LoadResult((Request(0.0, 200, seconds),) * rate, 1.0, 32)

    found = Findings()
    # Eight answers a second after 0.18 s each are those of one and a half of the 32 clients.
    results = {OURS: [load(11, 2.9)], "bentoml-batches-2": [load(8, 0.18)], "bentoml-threads-2": [load(10, 3.2)]}
    compare("bentoml", results, found)
    assert found.values["vs_bentoml_throughput"] == [1.1]
    assert 1 < found.values["vs_bentoml_p99"][0] < 1.2
    assert "never answered" in describe("bentoml-batches-2", results["bentoml-batches-2"])


def test_the_next_load_waits_until_a_server_is_idle(tmp_path: Path) -> None:
    work = "import time; end = time.process_time() + 2\nwhile time.process_time() < end: pass\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", work]) as process:
        try:
            while measure_cpu({process.pid}) < 0.1:
                time.sleep(0.02)
            Server("busy", 0, Body(b"", ""), process, tmp_path / "log").settle()
            # The kernel counts hundredths of a second, and rounds down.
            assert measure_cpu({process.pid}) >= 1.95
        finally:
            process.kill()
    assert measure_cpu({process.pid}) == 0


def test_loads_on_a_slow_machine_last_four_answers_of_the_bare_generator() -> None:
    config = ServeBenchConfig(output="out", clients=32, load_seconds=10, warm_up_seconds=6)
    assert plan_load(config, pictures_per_second=16.0) == Load(32, 10, 6)
    assert plan_load(config, pictures_per_second=4.0) == Load(32, 32, 16)


def test_every_competitor_has_its_keys() -> None:
    keys = load_keys("serve")
    assert {f"vs_{server}_{what}" for server in SERVERS for what in ("throughput", "p99")} <= set(keys)
    assert {competitor.server for competitor in COMPETITORS.values()} == set(SERVERS)


def test_goals_are_the_promised_ones() -> None:
    goals = {name: key.goal for name, key in load_keys("serve").items() if key.goal}
    assert {name: goal.at_least for name, goal in goals.items() if goal.at_least is not None} == {
        "vs_bare_runtime": 0.85,
        **{f"vs_{server}_{what}": 1.0 for server in SERVERS for what in ("throughput", "p99")},
        "http_requests_per_second_vs_python_proxy": 3.0,
        "replica_balance": 0.8,
        "replicas_4_throughput": 3.6,
    }
    assert {name: goal.at_most for name, goal in goals.items() if goal.at_most is not None} == {
        "overhead_ms": 3.0,
        "warm_start_ratio": 0.25,
        "scale_up_seconds": 10.0,
        "scale_failed_requests": 0.0,
        "overload_p99_ratio": 2.0,
        "overload_refused_seconds": 0.5,
        "soak_failed_share": 0.001,
        "soak_wrong_answers": 0.0,
        "soak_memory_growth": 1.05,
    }
