"""The wheel and the lock file."""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.child_python import ROOT
from tests.support.wheel import build_wheel


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """File names in the wheel."""
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))).namelist()


def test_the_wheel_holds_the_package_and_nothing_else(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {re.sub(r"-[0-9.]+\.dist-info$", ".dist-info", top) for top in tops} == {"fusionray", "fusionray.dist-info"}


def test_the_wheel_holds_every_module_and_data_file_of_the_package(wheel_names: list[str]) -> None:
    package = ROOT / "platform" / "fusionray"
    wanted = {
        f"fusionray/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert wanted == {name for name in wheel_names if name.startswith("fusionray/")}
    assert {"fusionray/py.typed", "fusionray/recipes/presets/tiny-64.yaml", "fusionray/faces/templates.yaml"} <= wanted


def test_the_wheel_holds_its_licence(wheel_names: list[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)


def locked_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def collect_closure() -> set[str]:
    """Follow the requirements of the installed fusionray with its development extra, as this environment sees them."""
    closure: set[str] = set()
    queue = [("fusionray", frozenset({"dev"}))]
    seen = set(queue)
    while queue:
        name, extras = queue.pop()
        for text in distribution(name).requires or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                continue
            needed = canonicalize_name(requirement.name)
            # The CUDA build of torch brings libraries of its own, which it pins itself.
            if needed.startswith(("nvidia-", "cuda-")) or needed == "triton":
                continue
            closure.add(needed)
            entry = (needed, frozenset(requirement.extras))
            if entry not in seen:
                seen.add(entry)
                queue.append(entry)
    return closure - {"fusionray"}


def test_the_lock_pins_everything_that_is_needed() -> None:
    locked = {canonicalize_name(line.split("==")[0]) for line in locked_lines()}
    closure = collect_closure()
    assert {"torch", "ray", "mlflow", "pytest", "fastapi", "aiohttp"} <= closure
    assert sorted(closure - locked) == []


def test_the_lock_serves_the_cpu_build_and_the_cuda_build_of_torch() -> None:
    for line in locked_lines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==([0-9]+!)?[0-9][A-Za-z0-9.]*", line), f"{line}: pin one public version"
        assert not line.lower().startswith(("nvidia-", "triton", "cuda-")), line


def test_the_lock_pins_the_carrier_of_the_face_models() -> None:
    assert "mediapipe==0.10.21" in locked_lines()
