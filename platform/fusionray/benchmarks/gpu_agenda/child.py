"""The process of one item: `python -m fusionray.benchmarks.gpu_agenda.child FUNCTION ARGUMENTS WORKPLACE ANSWER`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from fusionray.benchmarks.gpu_agenda.agenda import Workplace
from fusionray.environment import apply_defaults
from fusionray.errors import FusionRayError


def main(function: str, arguments: str, workplace: str, answer: str) -> int:
    """Run an item and write the values that it returns; an error of the product is one line."""
    apply_defaults()
    place = json.loads(workplace)
    module, _, name = function.partition(":")
    run = getattr(importlib.import_module(module), name)
    try:
        values = run(Workplace(Path(place["folder"]), place["device"], place["seconds"]), **json.loads(arguments))
    except (FusionRayError, LookupError) as error:
        print(error, file=sys.stderr)
        return 1
    Path(answer).write_text(json.dumps(values, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
