from __future__ import annotations

import subprocess
import sys
import time
from email import message_from_bytes
from pathlib import Path

import numpy as np

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.serve.client_pool import ClientPool, ClientRequest, judge
from fusionray.benchmarks.serve.clients import Answer, Checker, parse_stages
from fusionray.benchmarks.serve.competitors import COMPETITORS, SERVERS
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.benchmarks.serve.inputs import Body, write_form
from fusionray.benchmarks.serve.load import Load, Request, Turn
from fusionray.benchmarks.serve.overhead import sum_stages
from fusionray.benchmarks.serve.overload import find_enough
from fusionray.benchmarks.serve.servers import Server
from fusionray.benchmarks.serve.soak import measure_growth
from fusionray.benchmarks.serve.throughput import OURS, compare, leave_out, plan_load
from fusionray.errors import ServiceFailed
from fusionray.faces.decode import encode_image
from fusionray.hardware.processes import measure_cpu
from tests.support.pictures import draw_person

PIXELS = draw_person(3, 96)


def answer(data: bytes = b"", status: int = 200, seconds: float = 0.1) -> Answer:
    return Answer(status, {}, data, 0.0, seconds)


def test_stages_are_read_and_the_total_is_not_counted_twice() -> None:
    stages = parse_stages("decode;dur=1.50, fuse;dur=30, queue;dur=0.25, total;dur=33.1")
    assert stages == {"decode": 1.5, "fuse": 30.0, "queue": 0.25, "total": 33.1}
    assert sum_stages(stages) == 31.75
    assert parse_stages("") == {}


def test_right_pictures_are_told_from_wrong_ones() -> None:
    checker = Checker(PIXELS)
    assert checker.is_right(answer(encode_image(PIXELS)))
    nearly = PIXELS.copy()
    nearly[::9, ::9] ^= 1
    assert checker.is_right(answer(encode_image(nearly)))
    assert not checker.is_right(answer(encode_image(np.ascontiguousarray(PIXELS[:, ::-1]))))
    assert not checker.is_right(answer(encode_image(PIXELS[:64])))
    assert not checker.is_right(answer(encode_image(PIXELS), status=503))


def test_a_form_is_read_back_by_another_parser() -> None:
    form = write_form({"source": b"\xff\xd8one", "target": b"\xff\xd8two"}, {"format": "jpeg"})
    message = message_from_bytes(f"Content-Type: {form.media_type}\r\n\r\n".encode() + form.data)
    parts = {part.get_param("name", header="content-disposition"): part for part in message.get_payload()}
    assert parts["source"].get_payload(decode=True) == b"\xff\xd8one"
    assert parts["target"].get_filename() == "target.jpg"
    assert parts["format"].get_payload() == "jpeg"


def test_a_refusal_that_was_answered_later_is_no_failure() -> None:
    checker = Checker(PIXELS)
    asks = [
        judge([answer(encode_image(PIXELS))], checker),
        judge([answer(status=503, seconds=0.01), answer(encode_image(PIXELS), seconds=0.2)], checker),
        judge([answer(status=503, seconds=0.01), answer(status=503, seconds=0.02)], checker),
        judge([answer(status=-1)], checker),
    ]
    assert asks[1] == ClientRequest(200, 0.2, 0.01, True)
    crowd = ClientPool(tuple(asks), 1.0)
    assert crowd.failed == 2
    assert crowd.wrong == 0
    assert crowd.answered == [0.1, 0.2]
    assert sorted(crowd.refused) == [0.01, 0.01, 0.02]


def test_the_fewest_clients_that_nearly_reach_the_best_rate_saturate() -> None:
    assert find_enough({2: 10.0, 4: 19.2, 8: 20.0, 16: 19.0}) == 4


def test_growth_leaves_the_first_fifth_out() -> None:
    assert measure_growth([10.0] * 2 + [100.0] * 6 + [110.0] * 2) == 1.1
    assert measure_growth([5.0]) == 1.0


def test_the_best_way_of_a_competitor_counts_in_rate_and_in_latency_each() -> None:
    def turns(rate: int, seconds: float) -> list[Turn]:
        return [Turn((Request(0.0, 200, seconds),) * rate, 1.0)]

    found = Findings()
    all_turns = {OURS: turns(30, 0.5), "fastapi-1": turns(20, 1.0), "fastapi-2": turns(25, 2.0)}
    compare("fastapi", all_turns, found)
    assert found.values == {"vs_fastapi_throughput": [1.2], "vs_fastapi_p99": [2.0]}


def test_a_way_that_fails_is_left_out_and_told_and_the_others_of_that_server_count() -> None:
    turn = Turn((Request(0.0, 200, 0.5),) * 20, 1.0)
    found = Findings()
    turns = {OURS: [turn, turn], "fastapi-1": [turn, turn], "fastapi-2": [turn], "litserve-1": [turn]}
    for name in ("fastapi-2", "litserve-1"):
        leave_out(name, ServiceFailed(f"{name} gave a wrong picture"), found)
        del turns[name]
    for server in ("fastapi", "litserve"):
        compare(server, turns, found)
    assert found.values == {"vs_fastapi_throughput": [1.0, 1.0], "vs_fastapi_p99": [1.0, 1.0]}
    assert found.missing.keys() == {"vs_litserve_throughput", "vs_litserve_p99"}
    assert [note.partition(":")[0] for note in found.notes] == ["fastapi-2 is left out", "litserve-1 is left out"]


def test_a_way_that_drops_requests_is_not_the_soonest() -> None:
    def turn(seconds: float, *statuses: int) -> Turn:
        return Turn(tuple(Request(0.0, status, seconds) for status in (200, 200, *statuses)), 1.0)

    found = Findings()
    turns = {OURS: [turn(0.5)], "bentoml-batches-1": [turn(0.1, 500)], "bentoml-threads-1": [turn(1.0)]}
    compare("bentoml", turns, found)
    assert found.values == {"vs_bentoml_throughput": [1.0], "vs_bentoml_p99": [2.0]}
    del turns["bentoml-threads-1"]
    found = Findings()
    compare("bentoml", turns, found)
    assert not found.values
    assert found.missing.keys() == {"vs_bentoml_throughput", "vs_bentoml_p99"}


def test_the_next_turn_waits_until_a_server_has_worked_off_what_it_holds(tmp_path: Path) -> None:
    work = "import time; end = time.process_time() + 2\nwhile time.process_time() < end: pass\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", work]) as process:
        try:
            while measure_cpu({process.pid}) < 0.1:
                time.sleep(0.02)
            Server("busy", 0, Body(b"", ""), process, tmp_path / "log").settle()
            assert measure_cpu({process.pid}) >= 2
        finally:
            process.kill()
    assert measure_cpu({process.pid}) == 0


def test_turns_are_as_long_as_four_answers_of_the_bare_generator_take_on_a_slow_machine() -> None:
    config = ServeBenchConfig(output="out", clients=32, turn_seconds=10, warm_up_seconds=6)
    assert plan_load(config, faces_per_second=16.0) == Load(32, 10, 6)
    assert plan_load(config, faces_per_second=4.0) == Load(32, 32, 16)


def test_every_competitor_has_its_keys() -> None:
    keys = load_keys("serve")
    assert {f"vs_{server}_{what}" for server in SERVERS for what in ("throughput", "p99")} <= set(keys)
    assert {competitor.server for competitor in COMPETITORS.values()} == set(SERVERS)


def test_goals_are_those_that_were_promised() -> None:
    goals = {name: key.goal for name, key in load_keys("serve").items() if key.goal}
    assert {name: goal.at_least for name, goal in goals.items() if goal.at_least is not None} == {
        "vs_bare_runtime": 0.85,
        **{f"vs_{server}_{what}": 1.0 for server in SERVERS for what in ("throughput", "p99")},
        "http_requests_per_second_vs_python_proxy": 3.0,
    }
    assert {name: goal.at_most for name, goal in goals.items() if goal.at_most is not None} == {
        "overhead_ms": 3.0,
        "warm_start_ratio": 0.25,
        "overload_p99_ratio": 2.0,
        "overload_refused_seconds": 0.5,
        "soak_failed_share": 0.001,
        "soak_wrong_answers": 0.0,
        "soak_memory_growth": 1.05,
    }
