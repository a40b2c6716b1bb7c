from __future__ import annotations

import io

import pytest

from fusionray.benchmarks.serve import load
from fusionray.benchmarks.serve.load import LoadResult, Request, parse_record
from fusionray.errors import InputMissing, ServiceFailed


def test_the_log_of_the_generator_is_parsed() -> None:
    lines = io.StringIO("1795355408268793\t503\t51902\n1795355408320764\t200\t51919\n1795355410184673\t-1\t52108\n")
    first, second, third = parse_record(lines)
    assert first == Request(1795355408.268793, 503, 0.051902)
    assert (second.status, second.seconds) == (200, 0.051919)
    assert third.status == -1


def test_additional_columns_are_ignored() -> None:
    assert parse_record(["1000000\t200\t2000\tnew\n"]) == [Request(1.0, 200, 0.002)]


def test_a_result_counts_and_times_only_answers() -> None:
    requests = tuple(Request(0.0, status, seconds) for status, seconds in ((200, 0.1), (200, 0.3), (503, 9.0)))
    result = LoadResult(requests, 0.5, 2)
    assert result.rate == 4.0
    assert result.failed == 1
    assert result.latency_ms(50) == pytest.approx(200.0)


def test_without_an_answer_there_is_no_latency() -> None:
    with pytest.raises(ServiceFailed, match="no request was answered"):
        LoadResult((Request(0.0, 503, 0.1),), 1.0, 1).latency_ms(99)


def test_a_missing_generator_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputMissing, match=r"h2load is not on PATH; install it .*nghttp2-client"):
        load.find_generator()
