"""What processes of Ray import before they get work."""

from __future__ import annotations

import pytest

from fusionray.environment import SERVES, WORKER_VARIABLE
from tests.support.child_python import run_python

LIST = "import sys, {module}; print([name in sys.modules for name in ('ray.serve', 'torch', 'pandas')])"


@pytest.mark.parametrize(("kind", "wanted"), [("", "[False, False, False]"), (SERVES, "[True, False, False]")])
def test_a_process_preloads_what_it_will_need(kind: str, wanted: str) -> None:
    code = LIST.format(module="fusionray.ray_cluster.preload")
    assert run_python("-c", code, **{WORKER_VARIABLE: kind}).strip() == wanted


def test_pandas_is_there_after_ray_serve_was_imported_without_it() -> None:
    code = """
from fusionray.ray_cluster.serve_import import import_serve
import_serve()
import pandas, ray.serve
print(pandas.DataFrame({"a": [1]}).a.sum(), ray.serve.deployment.__name__)
import_serve()
assert pandas is __import__("pandas")
"""
    assert run_python("-c", code).split() == ["1", "deployment"]
