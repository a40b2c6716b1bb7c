"""The command line of the agenda."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from fusionray.benchmarks.gpu_agenda.agenda import run_agenda
from fusionray.benchmarks.gpu_agenda.items import ITEMS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agenda; 1 if an item failed or ran out of time, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description="Measure on a GPU, in order, resumably."
    )
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder of results; items that are done stay done"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no item after this time (default: 10)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try what needs no GPU")
    parser.add_argument("--items", nargs="+", metavar="NAME", default=[], help="run only these; without: all of them")
    options = parser.parse_args(arguments)
    if unknown := set(options.items) - {item.name for item in ITEMS}:
        parser.error(f"no item {', '.join(sorted(unknown))} (items: {', '.join(item.name for item in ITEMS)})")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu_agenda: torch sees no GPU here; --device cpu tries what needs none", file=sys.stderr)
        return 2
    chosen = [item for item in ITEMS if not options.items or item.name in options.items]
    folder = Path(options.output).resolve()
    results = run_agenda(chosen, folder, options.device, 60 * options.minutes, lambda line: print(line, flush=True))
    summary = {name: {**asdict(result), "last_lines": ""} for name, result in results.items()}
    (folder / "results.json").write_text(json.dumps(summary, indent=1))
    return int(any(result.status != "done" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
