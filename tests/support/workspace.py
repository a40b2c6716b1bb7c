"""A folder of work with shards, a trained identity encoder and fusion runs, made by the verbs of the command line.

The verbs run in this process, on the Ray of the session: a Ray of its own for each would cost ten seconds and show
nothing more. Only `serve` is a process, as it is for its users.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fusionray.checkpoint.info import find_checkpoint
from fusionray.cli import main
from fusionray.hardware.processes import find_processes
from fusionray.tracking.store import make_client
from tests.faults.driver import meanwhile, wait_until
from tests.support.tiny_fusion import TINY_SOURCE, save_encoder

ROOT = Path(__file__).resolve().parents[2]
WORLD = "synthetic://people=24,images=6,size=96,seed=3"
RUN_SECONDS = 240
LINGER_SECONDS = 60
IMAGES = 640

TINY: dict[str, Any] = {
    "preset": "tiny-64",
    "run": {"name": "fusion"},
    "recipe": {
        "generator": {
            "channels": [8, 16, 24],
            "style_length": 32,
            "source": TINY_SOURCE.model_dump(mode="json"),
        },
        "discriminator": {"channels": [8, 16]},
    },
    "data": {"shuffle_buffer_rows": 32, "validation_images": 16},
    "engine": {"global_batch": 16, "schedule": {"warmup_images": 32}},
    "budget": {
        "images": IMAGES,
        "checkpoint_every_images": 160,
        "log_every_images": 32,
        "validate_every_images": IMAGES,
    },
    "workers": {"num_workers": 2, "threads": 1, "warm_spares": False},
}


@dataclass(frozen=True)
class Workspace:
    """Where commands work; `ray_folder` marks all processes that they start."""

    folder: Path
    ray_folder: str

    @property
    def shards(self) -> Path:
        return self.folder / "shards"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {**inherited, "PYTHONPATH": str(ROOT / "platform"), "RAY_TMPDIR": self.ray_folder}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fusionray.cli", *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment()
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            output, errors = process.communicate(timeout=RUN_SECONDS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def settings(self, name: str, tree: dict[str, Any]) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(tree))
        return str(path)

    def processes(self) -> list[int]:
        """List the processes of commands that still run."""
        return find_processes(variable=f"RAY_TMPDIR={self.ray_folder}")

    def assert_nothing_runs(self) -> None:
        deadline = time.monotonic() + LINGER_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.processes() == []

    def make_inputs(self) -> None:
        """Prepare the shards of a synthetic world, and write an identity encoder that learned nothing yet."""
        sizes = ["size=64", "validation_fraction=0.2", "rows_per_shard=36"]
        assert main(["prepare", WORLD, str(self.shards), *sizes]) == 0
        save_encoder(self.runs / "encoder")

    def fusion_run(self, output: str = "runs") -> FusionRun:
        """The fusion run in a folder of this one."""
        return FusionRun(self, self.folder / output)


@dataclass(frozen=True)
class FusionRun:
    """A run that trains a fusion model on the shards and with the encoder of a workspace; `output`: its `--output`."""

    workspace: Workspace
    output: Path

    @property
    def folder(self) -> Path:
        return self.output / TINY["run"]["name"]

    def command(self, *overrides: str) -> list[str]:
        """The arguments of `fusionray` that start or resume the run."""
        work = self.workspace
        places = [f"data.shards={work.shards}", f"recipe.identity_encoder={work.runs / 'encoder'}"]
        return ["train", "--config", work.settings("fusion", TINY), "--output", str(self.output), *places, *overrides]

    def train(self, *overrides: str) -> int:
        """Start or resume the run in this process; return the exit status."""
        return main(self.command(*overrides))

    def train_until_sigterm(self) -> tuple[int, str]:
        """Start the run and end it by SIGTERM after its next checkpoint; return the exit status and what it printed."""

        def end() -> None:
            self.wait_for_checkpoint()
            os.kill(os.getpid(), signal.SIGTERM)

        with meanwhile(end), contextlib.redirect_stderr(io.StringIO()) as printed:
            status = self.train()
        return status, printed.getvalue()

    def checkpoints(self) -> list[int]:
        """List how many images the run had seen at each of its checkpoints."""
        folders = self.folder.glob("checkpoint-*/info.json")
        return sorted(int(folder.parent.name.removeprefix("checkpoint-")) for folder in folders)

    def newest(self) -> Path:
        """The folder of the newest checkpoint."""
        return Path(find_checkpoint(str(self.folder)))

    def wait_for_checkpoint(self) -> None:
        """Wait until the run has a checkpoint that it does not have now."""
        known = max(self.checkpoints(), default=0)
        wait_until("another checkpoint", lambda: max(self.checkpoints(), default=0) > known)

    def find_in_mlflow(self) -> tuple[Any, str]:
        """Find the run in MLflow: a client, and the id of the run."""
        client = make_client(f"sqlite:///{self.output}/mlflow.db")
        experiment = client.get_experiment_by_name("fusionray")
        runs = client.search_runs([experiment.experiment_id], filter_string="attributes.run_name = 'fusion'")
        assert len(runs) == 1, "a resumed run stays one run in MLflow"
        return client, runs[0].info.run_id
