"""Show that a refactoring changed no number: two commits do the same work, and what they make is compared bit for bit.

    python -m tests.support.compare_commits 6e89494 HEAD --keep /tmp/compare        # what both make stays there
    python -m tests.support.compare_commits 6e89494 HEAD --baseline /tmp/compare    # the first commit is not run again

Each commit is checked out into a temporary folder and used through the entry points of its `pyproject.toml` alone, so
modules may move. Everything runs on the CPU of this machine, with the Python of this script. Exit 1: something differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.commit_answers import draw_pictures, keep_answers, read_answers
from tests.support.commit_artifacts import (
    NAMES,
    Values,
    compute_onnx,
    list_differences,
    read_figures,
    read_shards,
    read_tensors,
)

ROOT = Path(__file__).resolve().parents[2]
WORLD = "synthetic://people=32,images=6,size=128,seed=5"
# Name -> preset, images of fifty steps, settings. The profile of the machine may choose bf16, so one run is float32.
ENCODER = "recipe.identity_encoder=runs/identity"
RUNS = {
    "identity": ("identity-small", 1600, ()),
    "fusion": ("tiny-64", 800, (ENCODER,)),
    "fusion-2": ("tiny-64", 800, (ENCODER, "workers.num_workers=2", "engine.precision=fp32")),
}
# Settings and options that a refactoring renamed: new -> old. A commit that refuses the new one gets the old one.
KEYS: dict[str, str] = {}
COMMAND_SECONDS, START_SECONDS, STOP_SECONDS = 1800, 300, 120
MOST_SHOWN = 8


@dataclass(frozen=True)
class Side:
    """A commit: the folder that its commands run in, where all that they make lies, and their environment."""

    commit: str
    made: Path
    environment: dict[str, str]

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a verb, and end it when the `with` block ends; what it prints goes to log.txt."""
        print(f"{self.commit[:9]}: {' '.join(arguments)}", file=sys.stderr, flush=True)
        command = [sys.executable, "bin/fusionray", *arguments]
        with (self.made / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.made, env=self.environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def printed(self) -> str:
        return (self.made / "log.txt").read_text()

    def run(self, *arguments: str) -> None:
        """Run a verb to its end; what the commit refuses is given by its old name. Exits if it fails."""
        with self.start(*arguments) as process:
            process.wait(COMMAND_SECONDS)
        if process.returncode:
            said = self.printed()
            refused = [new for new in KEYS if new in said and any(each.startswith(new) for each in arguments)]
            if not refused:
                sys.exit(f"{self.commit[:9]} fails: {said[-2000:]}")
            self.run(*(each.replace(refused[0], KEYS[refused[0]], 1) for each in arguments))

    def make(self) -> None:
        """Prepare, train and export."""
        self.run("prepare", WORLD, "shards", "size=64")
        fixed = ("--output", "runs", "data.shards=shards", "budget.max_seconds=null", "workers.threads=1")
        for name, (preset, images, more) in RUNS.items():
            self.run("train", "--preset", preset, *fixed, f"run.name={name}", f"budget.images={images}", *more)
        self.run("export", "runs/fusion", "--output", "bundle", "--precision", "fp32,fp16,int8")

    def serve(self, pictures: Path, *bundles: Path) -> None:
        """Serve the first of these bundles that the commit can read, and keep the answers. Exits if it reads none."""
        for bundle in bundles:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = listener.getsockname()[1]
            address = f"http://127.0.0.1:{port}"
            with self.start("serve", "--bundle", str(bundle), "--port", str(port)) as process:
                deadline = time.monotonic() + START_SECONDS
                while process.poll() is None and address not in self.printed() and time.monotonic() < deadline:
                    time.sleep(0.3)
                if address in self.printed():
                    keep_answers(address, pictures, self.made / "answers.json")
                    return
            print(self.printed()[-2000:], file=sys.stderr)
        sys.exit(f"{self.commit[:9]} serves none of {', '.join(map(str, bundles))}")


def check_out(commit: str, checkout: Path, made: Path) -> Side:
    """Put the files of a commit into a folder, and scripts for its entry points where it will make things."""
    checkout.mkdir()
    (made / "bin").mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], input=archive.stdout, cwd=checkout, check=True)
    project = tomllib.loads((checkout / "pyproject.toml").read_text())
    for name, entry in project["project"]["scripts"].items():
        module, function = entry.split(":")
        code = f"import sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    sys.exit({function}())\n"
        script = made / "bin" / name
        script.write_text(f"#!{sys.executable}\n{code}")
        script.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "FUSIONRAY_"))}
    ours = {
        "PYTHONPATH": str(checkout / project["tool"]["setuptools"]["packages"]["find"]["where"][0]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_TMPDIR": str(checkout.parent / "r"),
        "XDG_DATA_HOME": str(made / "data"),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(made / "bin" / "fusionray-haproxy"),
    }
    return Side(commit, made, inherited | ours)


def compare(first: Path, second: Path) -> Iterator[tuple[str, Values, Values]]:
    """Read what both commits made, thing by thing."""
    sides = (first, second)
    yield "shards", *(read_shards(side / "shards") for side in sides)
    for run in RUNS:
        yield f"{run}: tensors", *(read_tensors(side / "runs" / run) for side in sides)
        yield f"{run}: figures", *(read_figures(side / "runs" / run) for side in sides)
    for name in sorted({path.name for side in sides for path in (side / "bundle").glob("*.onnx")}):
        models = [side / "bundle" / name for side in sides]
        same = len({model.read_bytes() for model in models if model.is_file()}) == 1
        yield f"{name} ({'same' if same else 'other'} file)", *map(compute_onnx, models)
    answers = [read_answers(side / "answers.json") for side in sides]
    for name in dict.fromkeys((*answers[0], *answers[1])):
        yield name, *(answer.get(name, {}) for answer in answers)


def report(title: str, wanted: Values, found: Values) -> bool:
    """Print a line, and the first differences; tell whether anything differs."""
    differences = list_differences(wanted, found)
    said = (
        f"DIFFERENT in {len(differences)} of {len(wanted)} values" if differences else f"equal ({len(wanted)} values)"
    )
    print(f"{title:<36} {said}")
    for difference in differences[:MOST_SHOWN]:
        print(f"    {difference}")
    return bool(differences)


def find_commit(name: str) -> str:
    command = ["git", "rev-parse", "--verify", f"{name}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise argparse.ArgumentTypeError(f"{name} is no commit of this repository")
    return found.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="Show that the second commit computes what the first one does.")
    parser.add_argument("commits", nargs=2, metavar="COMMIT", type=find_commit)
    parser.add_argument("--keep", metavar="DIR", type=Path, help="new folder: leave there what both commits make")
    parser.add_argument("--baseline", metavar="DIR", type=Path, help="--keep of a former call with this first commit")
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"--keep {options.keep}: is there already; name a new folder")
    if KEYS or NAMES:
        print(f"renamed, new: old: {KEYS | NAMES}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="fr-cmp-", ignore_cleanup_errors=True) as temporary:
        kept = (options.keep or Path(temporary) / "made").absolute()
        first = (options.baseline or kept).absolute() / f"first-{options.commits[0]}"
        if not options.baseline:
            side = check_out(options.commits[0], Path(temporary) / "first", first)
            side.make()
            draw_pictures(first / "shards", first / "pictures")
            side.serve(first / "pictures", first / "bundle")
        elif not (first / "answers.json").is_file():
            parser.error(f"--baseline {options.baseline}: holds no finished {first.name}; leave it out")
        side = check_out(options.commits[1], Path(temporary) / "second", kept / f"second-{options.commits[1]}")
        side.make()
        side.serve(first / "pictures", first / "bundle", side.made / "bundle")
        return min(1, sum(report(*check) for check in compare(first, side.made)))


if __name__ == "__main__":
    raise SystemExit(main())
