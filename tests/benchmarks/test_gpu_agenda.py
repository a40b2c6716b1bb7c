"""Items run in processes of their own: what fails or hangs costs no other item, and a second call goes on."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fusionray.benchmarks.gpu_agenda.__main__ import main
from fusionray.benchmarks.gpu_agenda.agenda import Item, Workplace, read_result, run_agenda
from fusionray.benchmarks.gpu_agenda.items import ITEMS
from fusionray.hardware.processes import find_processes

HERE = __name__


def add_up(place: Workplace, numbers: list[int]) -> dict[str, Any]:
    """Count how often the item ran."""
    with (place.folder / "ran").open("a") as log:
        log.write("x")
    return {"sum": sum(numbers)}


def compare(place: Workplace) -> dict[str, Any]:
    """Use what another item found."""
    return {"twice": 2 * place.read("sum")["sum"]}


def break_down(place: Workplace) -> dict[str, Any]:
    """Fail as code that was never run on a GPU might."""
    raise RuntimeError(f"no kernel for {place.device}")


def hang(place: Workplace) -> dict[str, Any]:
    """Wait for ever, and leave a process behind that does as well."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(place.folder)]
    subprocess.Popen(command, start_new_session=True)
    (place.folder / "hangs").touch()
    time.sleep(600)
    return {}


def build_items(*, with_hanging: bool = False) -> list[Item]:
    items = [
        Item("broken", f"{HERE}:break_down", 60, needs_gpu=False),
        Item("sum", f"{HERE}:add_up", 60, {"numbers": [1, 2, 3]}, needs_gpu=False),
        Item("compared", f"{HERE}:compare", 60, needs_gpu=False),
        Item("kernels", f"{HERE}:break_down", 60),
    ]
    return [Item("hanging", f"{HERE}:hang", 4, needs_gpu=False)] if with_hanging else items


def run(items: list[Item], folder: Path, seconds: float = 120) -> tuple[dict[str, str], list[str]]:
    said: list[str] = []
    results = run_agenda(items, folder, "cpu", seconds, said.append)
    return {name: result.status for name, result in results.items()}, said


def test_items_that_are_done_stay_done_and_what_failed_is_tried_again(tmp_path: Path) -> None:
    found, said = run(build_items(), tmp_path)
    assert found == {"broken": "failed", "sum": "done", "compared": "done"}
    assert "kernels: not measured, needs a GPU" in said
    compared, broken = read_result(tmp_path, "compared"), read_result(tmp_path, "broken")
    assert compared is not None
    assert broken is not None
    assert compared.values == {"twice": 12}
    assert "no kernel for cpu" in broken.last_lines
    again, said = run(build_items(), tmp_path)
    assert again == found
    assert said[1:3] == ["sum: done before", "compared: done before"]
    assert (tmp_path / "ran").read_text() == "x"


def test_an_item_that_hangs_ends_with_all_its_processes(tmp_path: Path) -> None:
    found, _ = run(build_items(with_hanging=True), tmp_path)
    assert (tmp_path / "hangs").exists()
    assert found == {"hanging": "timed out"}
    assert find_processes(str(tmp_path)) == []


def test_no_item_begins_without_time(tmp_path: Path) -> None:
    found, said = run(build_items(), tmp_path, seconds=1)
    assert found == {}
    assert said == ["broken: not begun, no time is left"]


def test_every_item_is_a_function_that_takes_its_arguments(tmp_path: Path) -> None:
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        module, _, name = item.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        inspect.signature(function).bind(Workplace(tmp_path, "cpu", 1.0), **item.arguments)


def test_a_machine_without_a_gpu_and_an_unknown_item_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "gpu_agenda: torch sees no GPU here; --device cpu tries what needs none"
    ]
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path), "--items", "losses-fp64"])
    assert "no item losses-fp64 (items: dry-run-tiny-64" in capsys.readouterr().err


@pytest.mark.slow(seconds=60)
def test_what_needs_no_gpu_is_tried_on_a_cpu(tmp_path: Path) -> None:
    names = ["dry-run-tiny-64", "exchange-bf16", "exchange-powersgd", "kill-in-saves"]
    assert main(["--output", str(tmp_path), "--device", "cpu", "--items", *names]) == 0
    for name in names:
        result = read_result(tmp_path, name)
        assert result is not None
        assert result.status == "done"
        assert result.values
