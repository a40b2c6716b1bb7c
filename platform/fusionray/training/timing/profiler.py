"""A PyTorch profiler trace of a few steps, written to the run folder."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from fusionray.storage import filesystem as storage

WARM_UP_STEPS = 3
SUMMARY_ROWS = 30
# Viewers also read .json.gz; smaller traces stay uncompressed.
LARGEST_PLAIN_BYTES = 8 * 2**20


class StepProfiler:
    """Record steps after a warm-up, then write `trace.json` (or `trace.json.gz`) and `summary.txt`, once."""

    def __init__(
        self, folder: str, steps: int, *, device: torch.device, log_line: Callable[[str], None] = print
    ) -> None:
        """Start the warm-up. `folder`: a local folder or a URI. `log_line`: receives the location of the result."""
        self.folder = folder
        self.steps = steps
        self.device = device
        self.log_line = log_line
        self.running = steps > 0
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.profile = profile(
            activities=activities,
            # The profiler's own warm-up is slow, so it gets only the last of the warm-up steps.
            schedule=schedule(wait=WARM_UP_STEPS - 1, warmup=1, active=max(1, steps), repeat=1),
            on_trace_ready=self.write,
        )
        if self.running:
            self.profile.start()

    def step(self) -> None:
        """Mark the end of a training step; after the last recorded step, write the result."""
        if self.running:
            self.profile.step()

    def close(self) -> None:
        """Stop, and write what has been recorded so far."""
        if self.running:
            self.profile.stop()
            if self.running:
                self.running = False
                self.log_line(f"profile: the run ended within the {WARM_UP_STEPS} warm-up steps; nothing was recorded")

    def write(self, recorded: profile) -> None:
        """Write trace and summary."""
        self.running = False
        order = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        table = recorded.key_averages().table(sort_by=order, row_limit=SUMMARY_ROWS, max_name_column_width=70)
        with TemporaryDirectory(prefix="fusionray-profile-") as place:
            path = Path(place) / "trace.json"
            recorded.export_chrome_trace(str(path))
            trace = path.read_bytes()
        name = "trace.json"
        if len(trace) > LARGEST_PLAIN_BYTES:
            name, trace = "trace.json.gz", gzip.compress(trace, compresslevel=6)
        storage.write_atomic(storage.join(self.folder, name), trace)
        storage.write_atomic(storage.join(self.folder, "summary.txt"), table.encode())
        self.log_line(
            f"profile of {self.steps} steps: {storage.join(self.folder, name)} (Perfetto), and summary.txt next to it"
        )
