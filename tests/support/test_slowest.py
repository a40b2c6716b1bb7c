from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

SUITE = """
    import pytest

    @pytest.fixture(scope="module")
    def shared(): ...

    def test_short(): ...

    @pytest.mark.parametrize("case", ["a@b"])
    def test_long(case, shared): ...

    @pytest.mark.slow(seconds=60)
    def test_of_the_tier(): ...
"""
# Stands for the clock: what each phase of a test took.
CLOCK = """
    import pytest

    SECONDS = {"test_short": 1.0, "test_long[a@b]": 15.0, "test_of_the_tier": 30.0}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        report.duration = SECONDS[item.name]
        return report
"""


@pytest.mark.parametrize("lanes", [(), ("-n", "2")])
def test_the_slowest_are_shown_and_those_outside_of_the_tier_are_named(
    pytester: pytest.Pytester, lanes: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=SUITE)
    pytester.makeconftest(CLOCK)
    plugins = ("-p", "tests.support.slow_tier", "-p", "tests.support.slowest", "-p", "tests.support.lanes")
    result = pytester.runpytest_inprocess(*plugins, "--tier", "all", *lanes)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*10 slowest tests*",
            "  90.0 s  test_it.py::test_of_the_tier",
            "  45.0 s  test_it.py::test_long[[]a@b[]]",
            "   3.0 s  test_it.py::test_short",
            "over 20 s, but not in the slow tier: test_it.py::test_long[[]a@b[]]",
        ],
        consecutive=True,
    )


def test_a_run_of_seconds_shows_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_short(): ...")
    result = pytester.runpytest_inprocess("-p", "tests.support.slowest")
    result.stdout.no_fnmatch_line("*slowest*")
