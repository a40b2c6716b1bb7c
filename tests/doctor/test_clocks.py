"""GPUs under load, by what `nvidia-smi -q -d` prints: made up after the formats of drivers 470 and 550."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fusionray.doctor.gpu import clocks
from fusionray.doctor.gpu.clocks import judge_clocks, watch_load
from fusionray.doctor.gpu.smi import parse_gpus
from tests.doctor.broken_host import build, record_tools

# One GPU as an H100 tells it: its temperature limits are margins.
H100 = """\
GPU 00000000:{address}:00.0
    Clocks Event Reasons
        Idle                              : {idle}
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : {cap}
        HW Slowdown                       : {hardware}
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : {brake}
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : {soft}
    Temperature
        GPU Current Temp                  : {heat} C
        GPU T.Limit Temp                  : {margin} C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        GPU Max Operating T.Limit Temp    : 0 C
    GPU Power Readings
        Power Draw                        : {power} W
        Current Power Limit               : {limit} W
        Requested Power Limit             : {limit} W
        Default Power Limit               : 700.00 W
    Clocks
        Graphics                          : {clock} MHz
        SM                                : {clock} MHz
        Memory                            : 2619 MHz
    Applications Clocks
        Graphics                          : 1980 MHz
        Memory                            : 2619 MHz
    Default Applications Clocks
        Graphics                          : 1980 MHz
        Memory                            : 2619 MHz
    Max Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
        Memory                            : 2619 MHz
"""
# And as an A100 of an older driver does, which calls the reasons otherwise, and has absolute limits.
A100 = """\
GPU 00000000:{address}:00.0
    Clocks Throttle Reasons
        Idle                              : {idle}
        SW Power Cap                      : {cap}
        HW Slowdown                       : {hardware}
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : {brake}
        SW Thermal Slowdown               : {soft}
    Temperature
        GPU Current Temp                  : {heat} C
        GPU T.Limit Temp                  : N/A
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
    Power Readings
        Power Draw                        : {power} W
        Power Limit                       : {limit} W
        Default Power Limit               : 400.00 W
    Clocks
        Graphics                          : {clock} MHz
        SM                                : {clock} MHz
    Applications Clocks
        Graphics                          : 1275 MHz
    Default Applications Clocks
        Graphics                          : 1275 MHz
    Max Clocks
        SM                                : 1410 MHz
"""
REASONS = ("idle", "cap", "hardware", "thermal", "brake", "soft")


def write_gpu(*reasons: str, model: str = H100, address: str = "19", **values: float) -> str:
    """Write a GPU whose `reasons` are active."""
    states = {reason: "Active" if reason in reasons else "Not Active" for reason in REASONS}
    limit = 700.0 if model == H100 else 400.0
    figures = {"heat": 60, "margin": 27, "power": 390.5, "limit": limit, "clock": 1980 if model == H100 else 1410}
    return model.format(address=address, **states, **{**figures, **values})


def judge(*samples: str) -> list[tuple[str, str, str]]:
    found = list(judge_clocks([parse_gpus(text) for text in samples]))
    assert all(each.remedy for each in found if each.severity != "ok")
    return [(each.name, each.severity, each.action) for each in found]


SOUND = ("GPU clocks", "ok", "none")


def test_a_sound_gpu_has_its_figures_as_evidence() -> None:
    (found,) = judge_clocks([parse_gpus(write_gpu()), parse_gpus(write_gpu(heat=71, clock=1890, power=612.3))])
    assert (found.name, found.severity, found.action) == SOUND
    assert found.evidence == "GPU 0: 1890-1980 MHz, 60-71 degrees, 390-612 W in 2 samples"


@pytest.mark.parametrize("model", [H100, A100])
@pytest.mark.parametrize(
    ("reasons", "severity", "action", "told"),
    [
        (("hardware",), "error", "isolate node", "HW Slowdown in 1 of 3 samples"),
        (("hardware", "thermal"), "error", "isolate node", "HW Thermal Slowdown in 1 of 3 samples"),
        (("hardware", "brake"), "error", "isolate node", "HW Power Brake Slowdown in 1 of 3 samples"),
        (("soft",), "warning", "isolate node", "SW Thermal Slowdown in 1 of 3 samples"),
        (("cap",), "note", "none", "at its power limit in 1 of them"),
    ],
)
def test_what_slows_a_gpu_down_is_named(
    model: str, reasons: tuple[str, ...], severity: str, action: str, told: str
) -> None:
    texts = [write_gpu(model=model), write_gpu(*reasons, model=model), write_gpu(model=model)]
    (found,) = judge_clocks([parse_gpus(text) for text in texts])
    assert (found.name, found.severity, found.action) == ("GPU clocks", severity, action)
    assert told in found.evidence
    remedies = {"brake": "power supplies", "thermal": "fans", "soft": "fans"}
    assert remedies.get(reasons[-1], "") in found.remedy


def test_a_clock_that_falls_is_found() -> None:
    assert judge(write_gpu(), write_gpu(clock=1590)) == [SOUND]  # 0.8 of 1980 is 1584
    assert judge(write_gpu(), write_gpu(clock=1500)) == [("GPU clocks", "warning", "fix setting")]
    # The clock for applications is the measure, not the boost of 1410 MHz: 0.8 of 1275 is 1020.
    assert judge(write_gpu(model=A100, clock=1050)) == [SOUND]
    assert judge(write_gpu(model=A100, clock=1000)) == [("GPU clocks", "warning", "fix setting")]


def test_a_power_limit_is_right_unless_somebody_lowered_it() -> None:
    assert judge(write_gpu("cap", clock=1400)) == [("GPU clocks", "note", "none")]
    assert judge(write_gpu("cap", clock=1400, limit=500)) == [("GPU clocks", "warning", "fix setting")]
    assert judge(write_gpu("cap", model=A100, limit=250)) == [("GPU clocks", "warning", "fix setting")]


def test_heat_past_the_limit_of_slowdown_is_found() -> None:
    heat = ("GPU heat", "error", "isolate node")
    assert judge(write_gpu(margin=-2), write_gpu(margin=-1)) == [SOUND]
    assert judge(write_gpu(), write_gpu(margin=-3, heat=90)) == [heat]
    assert judge(write_gpu(model=A100, heat=89)) == [SOUND]
    assert judge(write_gpu(model=A100, heat=90)) == [heat]


def test_gpus_that_idle_or_vanish() -> None:
    idle = write_gpu("idle", clock=345, address="29")
    assert judge(write_gpu() + idle, write_gpu() + idle) == [SOUND]
    gone = [write_gpu() + write_gpu(address="29"), write_gpu()]
    assert judge(*gone) == [SOUND, ("GPUs", "error", "reboot"), SOUND]


def test_samples_are_taken_while_the_load_runs(tmp_path: Path) -> None:
    host = build(tmp_path, PATH=record_tools(tmp_path, {" ".join(clocks.QUERY): write_gpu(heat=50)}))
    (answer,) = (tmp_path / "tools").glob("*.txt")
    tool, calls = tmp_path / "tools" / "nvidia-smi", tmp_path / "calls"
    tool.write_text(tool.read_text().replace("#!/bin/sh", f"#!/bin/sh\necho >> {calls}"))

    def wait_for(number: int) -> None:
        until = time.monotonic() + 20
        while not calls.exists() or calls.stat().st_size < number:
            assert time.monotonic() < until
            time.sleep(0.01)

    def load() -> None:
        wait_for(2)
        hot = tmp_path / "hot"
        hot.write_text(write_gpu(heat=80))
        hot.replace(answer)
        # The call that began before may still read the former answer.
        wait_for(calls.stat().st_size + 3)

    samples = watch_load(host, load, every_seconds=0.05)
    degrees = [reports[0].number("Temperature/GPU Current Temp") for reports in samples]
    assert (degrees[0], degrees[-1]) == (50, 80)
    assert degrees == sorted(degrees)
    assert len(samples) >= calls.stat().st_size - 1  # the last one may end after the load


def test_an_answer_that_comes_after_the_load_does_not_count(tmp_path: Path) -> None:
    host = build(tmp_path, PATH=record_tools(tmp_path, {" ".join(clocks.QUERY): write_gpu()}))
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.write_text(tool.read_text().replace("#!/bin/sh", "#!/bin/sh\n/bin/sleep 1"))
    assert watch_load(host, lambda: time.sleep(0.2), every_seconds=0.05) == []
    # One that does not answer ends the watch, not the load.
    silent = build(tmp_path / "silent", PATH=str(tmp_path / "nothing"))
    assert watch_load(silent, lambda: time.sleep(0.1), every_seconds=0.01) == []


def test_an_error_of_the_load_ends_the_watch(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        watch_load(build(tmp_path, PATH=""), lambda: 1 / 0)
