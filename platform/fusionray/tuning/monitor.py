"""Monitor a search: draw its table on the terminal, limit its time, and stop it on signals."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ray.tune import Callback, Stopper
from ray.tune.search import SearchAlgorithm
from tqdm import tqdm

from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.tuning.metrics import SearchMetrics
from fusionray.tuning.plan import SearchPlan
from fusionray.tuning.records import SearchRecords, TrialRecord
from fusionray.tuning.result import choose_best
from fusionray.tuning.space import format_value, short_names

SHOW_SECONDS = 2.0
# Seconds between two prints of the table to a log, where it cannot be redrawn, if no trial reports.
PRINT_SECONDS = 60.0
# If all trials of a population are paused for this long, they wait for a member that has ended.
STUCK_SECONDS = 10.0


class SearchMonitor(Callback, Stopper):  # type: ignore[misc]
    """Show the table, measure the time, and stop the trials when the time is up or a signal arrives.

    Tune pickles its callbacks when it starts, so every attribute can be pickled.
    """

    def __init__(self, plan: SearchPlan, stop_handle: ProgressHandle, searcher: SearchAlgorithm) -> None:
        self.plan = plan
        self.stop_handle = stop_handle
        self.searcher = searcher
        self.records = SearchRecords(plan.folder)
        self.ray_metrics = SearchMetrics(plan.config)
        self.spent_before = self.records.spent_seconds()
        self.started = time.monotonic()
        self.shown_at = 0.0
        self.shown: list[str] = []
        self.num_shown = 0
        self.signal = 0
        self.ending = False
        self.idle_since: float | None = None

    @property
    def spent_seconds(self) -> float:
        """Return how long the search has run, over all of its starts."""
        return self.spent_before + time.monotonic() - self.started

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        """Check time and signals and refresh the table; Tune calls this several times a second."""
        found = {trial.status for trial in trials}
        idle = "PAUSED" in found and not found & {"RUNNING", "PENDING"}
        self.idle_since = (self.idle_since or time.monotonic()) if idle else None
        limit = self.plan.config.max_minutes
        late = limit is not None and self.spent_seconds > limit * 60
        if (self.signal or late) and not self.ending:
            self.ending = True
            self.searcher.set_finished()
            self.stop_handle.request_stop()
        now = time.monotonic()
        if now - self.shown_at > SHOW_SECONDS:
            self.shown_at = now
            self.records.write_spent(self.spent_seconds)
            self.ray_metrics.set(self.records.trials(), self.spent_seconds)
            self.show()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:  # noqa: ARG002
        """Free the workers of a trial that will not start again; a trial that starts again does so itself."""
        from fusionray.training.faults.leftover_workers import end_leftover_workers

        for attempt in self.records.attempts(trial.trial_id)[-1:]:
            end_leftover_workers(attempt.run)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002 - Tune's signature
        """Stop no single trial; `stop_all` decides for all of them."""
        return False

    def stop_all(self) -> bool:
        """Stop the search once no trial runs and it is ending; paused trials have their checkpoints.

        A synchronous population would wait without limit for members that have ended or failed, so the search also
        stops if no trial runs for a while.
        """
        waited = 0.0 if self.idle_since is None else time.monotonic() - self.idle_since
        return self.idle_since is not None and (self.ending or waited > STUCK_SECONDS)

    def show(self, *, final: bool = False) -> None:
        """Redraw the table on a terminal; elsewhere print it when it has changed."""
        table = format_table(self.plan, self.records, self.spent_seconds)
        if sys.stderr.isatty():
            # A wrapped line could not be overwritten.
            width = shutil.get_terminal_size().columns - 1
            table = [line[:width] for line in table]
            up = f"\x1b[{len(self.shown)}A\x1b[J" if self.shown else ""
            sys.stderr.write(up + "\n".join(table) + "\n")
            sys.stderr.flush()
        elif final or changed(self.shown, table) or time.monotonic() - self.started > PRINT_SECONDS * self.num_shown:
            self.num_shown += 1
            tqdm.write("\n".join(table), file=sys.stderr)
        else:
            return
        self.shown = table


def changed(former: Sequence[str], table: Sequence[str]) -> bool:
    """Return whether a trial started, reported or ended; time and images are ignored, because they always change."""
    return [row.split()[:2] for row in former[2:]] != [row.split()[:2] for row in table[2:]]


def format_table(plan: SearchPlan, records: SearchRecords, spent_seconds: float) -> list[str]:
    """Format the state of a search: a summary line, the header, a line for each trial."""
    config, trials = plan.config, records.trials()
    names = short_names(config.space)
    rows = [("trial", "status", "images", config.metric.removeprefix("validation_"), *names.values())]
    rows += [format_row(plan, record, records) for record in trials]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    ended = sum(record.status in ("finished", "stopped", "failed") for record in trials)
    best = choose_best(trials, config.mode)
    leader = f", best {best.last.value:.4g} ({best.name})" if best and best.last else ""
    limit = f" of {config.max_minutes:g}" if config.max_minutes else ""
    minutes = f"{spent_seconds / 60:.1f}{limit} minutes"
    return [f"tune {config.name}: {ended} of {config.trials} trials ended{leader}, {minutes}", *lines]


def format_row(plan: SearchPlan, record: TrialRecord, records: SearchRecords) -> tuple[str, ...]:
    attempts = records.attempts(record.name)
    images = attempts[-1].last_images if attempts else 0
    value = f"{record.last.value:.4g}" if record.last else ""
    settings = (format_value(record.settings[key]) for key in plan.config.space)
    return (record.name, record.status, f"{images}/{plan.images}", value, *settings)


@contextlib.contextmanager
def stop_on_signals(monitor: SearchMonitor) -> Iterator[None]:
    """During a block, stop the search in order on the first SIGINT or SIGTERM; a second one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, _frame: Any) -> None:
        monitor.signal = number
        for other, handler in former.items():
            signal.signal(other, handler)

    for number in former:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
