from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

SUITE = """
    import os
    import pytest

    @pytest.fixture(scope="session")
    def ray_session(): ...

    @pytest.fixture
    def service(ray_session): ...

    @pytest.mark.parametrize("number", range(4))
    def test_of_the_session(service, number, record_property):
        record_property("process", os.getpid())

    @pytest.mark.starts_ray
    def test_of_its_own(record_property):
        record_property("process", os.getpid())

    @pytest.mark.parametrize("number", range(4))
    def test_without(number, record_property):
        record_property("process", os.getpid())
"""


def test_tests_with_a_ray_are_lanes_and_files_stay_together(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one=SUITE, test_two=SUITE)
    result = pytester.inline_run("-p", "tests.support.lanes", "-n", "2", "--strict-markers")
    passed, _, failed = result.listoutcomes()
    assert (len(passed), len(failed)) == (18, 0)
    lanes: dict[str, set[object]] = {}
    for report in passed:
        file, _, name = report.nodeid.partition("::")
        kind = file if name.startswith("test_without") else name.partition("[")[0]
        lanes.setdefault(kind, set()).add(dict(report.user_properties)["process"])
    kinds = ("test_of_the_session", "test_of_its_own", "test_one.py", "test_two.py")
    assert {kind: len(processes) for kind, processes in lanes.items()} == dict.fromkeys(kinds, 1)
