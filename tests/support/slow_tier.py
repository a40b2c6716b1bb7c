"""The slow tier: tests of half a minute and more, which a plain `pytest` leaves out.

A test joins it by `@pytest.mark.slow(seconds=N)`: N is the wall time of the test on a quiet machine with two cores,
with its share of the fixtures that it needs. `--tier slow` runs the tier; with `--slow-budget SECONDS` it runs one
slice of it, and `--slow-turn NUMBER` chooses which: as many turns in a row as there are slices run every test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

TIERS = ("fast", "slow", "all")
BUDGET, TURN = "--slow-budget", "--slow-turn"
# A fixture of these scopes is made once for several tests: they stay together.
SHARED_SCOPES = {"class", "module", "package"}
# What the report of the collection says of the slice.
LINE = pytest.StashKey[str]()


def pack_slices(groups: Mapping[str, float], budget: float) -> list[list[str]]:
    """Pack groups of tests, by name with their seconds, into slices.

    Each slice takes `budget` seconds at most, unless a single group takes more: that one is a slice of its own. The
    same groups give the same slices, in whatever order they come (first fit, the longest first).
    """
    slices: list[list[str]] = []
    free: list[float] = []
    for name, seconds in sorted(groups.items(), key=lambda group: (-group[1], group[0])):
        place = next((place for place, left in enumerate(free) if seconds <= left), None)
        if place is None:
            slices.append([name])
            free.append(budget - seconds)
        else:
            slices[place].append(name)
            free[place] -= seconds
    return slices


def read_seconds(item: pytest.Item) -> float | None:
    """Read how long a test of the slow tier takes; None for a test outside of it.

    Raises: pytest.UsageError if its mark does not say so.
    """
    mark = item.get_closest_marker("slow")
    if mark is None:
        return None
    seconds = mark.kwargs.get("seconds")
    if mark.args or set(mark.kwargs) != {"seconds"} or not isinstance(seconds, int | float) or seconds <= 0:
        raise pytest.UsageError(f"{item.nodeid}: write @pytest.mark.slow(seconds=N), N the seconds that it takes")
    return float(seconds)


def name_group(item: pytest.Item) -> str:
    """Name the tests that have to run together with this one: its module where it shares a fixture, else itself."""
    definitions = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    shares = any(definition.scope in SHARED_SCOPES for found in definitions for definition in found)
    return item.nodeid.partition("::")[0] if shares else item.nodeid


def choose_slice(items: Sequence[pytest.Item], budget: float, turn: int) -> tuple[list[pytest.Item], str]:
    """Choose the tests of a turn among those of the slow tier, and describe the slice in a line."""
    groups: dict[str, float] = {}
    for item in items:
        groups[name_group(item)] = groups.get(name_group(item), 0.0) + (read_seconds(item) or 0.0)
    slices = pack_slices(groups, budget)
    if not slices:
        return [], "slow tier: no tests"
    number = turn % len(slices)
    chosen = slices[number]
    seconds = sum(groups[name] for name in chosen)
    line = f"slow tier: turn {turn} runs slice {number + 1} of {len(slices)}, about {seconds:.0f} s"
    return [item for item in items if name_group(item) in chosen], line


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tier")
    group.addoption("--tier", choices=TIERS, default="fast", help="which tests to run: %(choices)s (default: fast)")
    group.addoption(BUDGET, type=float, metavar="SECONDS", help="run a slice of the slow tier that takes no longer")
    group.addoption(TURN, type=int, default=0, metavar="NUMBER", help="which slice to run; consecutive numbers rotate")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow(seconds): a test of the slow tier, and how long it takes")
    budget = config.getoption(BUDGET)
    if budget is not None and (budget <= 0 or config.getoption("--tier") != "slow"):
        raise pytest.UsageError(f"{BUDGET} takes seconds, more than 0, beside --tier slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, budget = config.getoption("--tier"), config.getoption(BUDGET)
    slow = [item for item in items if read_seconds(item) is not None]
    chosen = {"fast": [item for item in items if item not in slow], "slow": slow, "all": items}[tier]
    if budget is not None:
        chosen, config.stash[LINE] = choose_slice(slow, budget, config.getoption(TURN))
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return [config.stash[LINE]] if LINE in config.stash else []
