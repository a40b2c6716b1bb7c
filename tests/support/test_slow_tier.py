from __future__ import annotations

import random

import pytest

from tests.support.slow_tier import pack_slices

pytest_plugins = ("pytester",)

# Two tests that share a fixture of a module, two that share none, and one that is fast.
SUITE = {
    "test_shared": """
        import pytest

        pytestmark = pytest.mark.slow(seconds=60)

        @pytest.fixture(scope="module")
        def trained():
            return object()

        def test_one(trained): ...
        def test_two(trained): ...
    """,
    "test_alone": """
        import pytest

        @pytest.mark.slow(seconds=100)
        def test_long(): ...

        @pytest.mark.slow(seconds=30)
        def test_short(): ...

        def test_fast(): ...
    """,
}
SLOW = {"test_one", "test_two", "test_long", "test_short"}


@pytest.mark.parametrize("seed", range(20))
def test_slices_hold_every_group_once_and_keep_to_the_budget(seed: int) -> None:
    chance = random.Random(seed)
    groups = {
        f"group {number}": chance.choice([5.0, 20.0, 45.0, 130.0, 299.0]) for number in range(chance.randint(1, 30))
    }
    slices = pack_slices(groups, 300)
    assert sorted(name for names in slices for name in names) == sorted(groups)
    assert all(sum(groups[name] for name in names) <= 300 for names in slices)
    # First fit leaves one slice half empty at most, so that a test is not waited for longer than need be.
    assert sum(sum(groups[name] for name in names) <= 150 for names in slices) <= 1
    mixed = list(groups.items())
    chance.shuffle(mixed)
    assert pack_slices(dict(mixed), 300) == slices


def test_a_group_over_the_budget_is_a_slice_of_its_own() -> None:
    assert pack_slices({"short": 10, "long": 400, "middle": 200}, 300) == [["long"], ["middle", "short"]]


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(**SUITE)
    return pytester.runpytest_inprocess("-p", "tests.support.slow_tier", "--strict-markers", "-v", *arguments)


def names(result: pytest.RunResult) -> set[str]:
    """Name the tests that ran."""
    return {line.split("::")[1].split()[0] for line in result.outlines if line.endswith(("%]",)) and "PASSED" in line}


def test_a_plain_run_leaves_the_tier_out(pytester: pytest.Pytester) -> None:
    result = run(pytester)
    assert names(result) == {"test_fast"}
    result.assert_outcomes(passed=1, deselected=4)


def test_a_tier_is_run_whole_where_there_is_no_budget(pytester: pytest.Pytester) -> None:
    assert names(run(pytester, "--tier", "slow")) == SLOW
    assert names(run(pytester, "--tier", "all")) == {*SLOW, "test_fast"}


def test_turns_in_a_row_run_every_test_and_keep_those_that_share_a_fixture(pytester: pytest.Pytester) -> None:
    slices = ("--tier", "slow", "--slow-budget", "130", "--slow-turn")
    turns = [names(run(pytester, *slices, str(turn))) for turn in (6, 7)]
    assert sorted(turns, key=sorted) == [{"test_long", "test_short"}, {"test_one", "test_two"}]
    told = run(pytester, *slices, "7")
    told.stdout.fnmatch_lines(["slow tier: turn 7 runs slice 2 of 2, about 130 s"])


@pytest.mark.parametrize("arguments", [("--slow-budget", "9"), ("--tier", "slow", "--slow-budget", "0")])
def test_a_budget_without_sense_is_refused(pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--slow-budget takes seconds, more than 0, beside --tier slow"])


@pytest.mark.parametrize("mark", ["slow", "slow()", "slow(60)", "slow(seconds=0)", "slow(seconds=1, why='x')"])
def test_a_mark_that_does_not_say_how_long_is_refused(pytester: pytest.Pytester, mark: str) -> None:
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.{mark}\ndef test_it(): ...")
    result = pytester.runpytest_inprocess("-p", "tests.support.slow_tier")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it: write @pytest.mark.slow(seconds=N), N the seconds that it takes"])
