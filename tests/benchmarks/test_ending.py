"""How a benchmark ends before its time."""

from __future__ import annotations

import argparse
import os
import signal
import time

import pytest

from fusionray.commands.bench import ending_cleanly


def test_sigterm_ends_what_a_benchmark_has_started() -> None:
    ended = []

    def run(_: argparse.Namespace) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            ended.append("server")

    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        ending_cleanly(run)(argparse.Namespace())
    assert ended == ["server"]
    assert signal.getsignal(signal.SIGTERM) is former
