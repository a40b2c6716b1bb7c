"""The command line: one verb a stage. Each verb is a configuration, a function and a line about the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from fusionray import __version__
from fusionray.commands.benches import add_bench
from fusionray.commands.bundles import add_compile, add_export, add_import
from fusionray.commands.learning import add_evaluate, add_prepare, add_train, add_tune
from fusionray.commands.pictures import add_fuse, add_verify
from fusionray.commands.service import add_keys, add_serve
from fusionray.environment import apply_defaults
from fusionray.errors import FusionRayError, RunStopped
from fusionray.training.faults.preemption import EXIT_STATUS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; exit 0, or print one line that says what is wrong and exit 1 (143 for what a SIGTERM ended)."""
    options = parse(arguments)
    apply_defaults(getattr(options, "address", None))
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except RunStopped as error:
        print(f"fusionray {options.verb}: {error}", file=sys.stderr)
        return EXIT_STATUS
    except (FusionRayError, ValueError) as error:
        print(f"fusionray {options.verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except OSError as error:
        said = f"{error}; free space or mend the access, then run the same command again"
        print(f"fusionray {options.verb}: {' '.join(said.split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"fusionray {options.verb}: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; what is neither an option nor a named argument are `key=value` overrides.

    A positional argument of any number would swallow them only where they stand together: `INPUT --output DIR a=1`
    is refused by argparse.
    """
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    strange = [item for item in rest if item.startswith("-") or not getattr(options, "takes_overrides", False)]
    if strange:
        parser.error(f"{options.verb}: unknown argument {' '.join(strange)}; see fusionray {options.verb} --help")
    options.overrides = rest
    return options


def run_job(verb: str) -> int:
    """Run a verb with the command line of a script in `jobs/`."""
    return main([verb, *sys.argv[1:]])


def build_parser() -> argparse.ArgumentParser:
    """Describe the verbs."""
    parser = argparse.ArgumentParser(prog="fusionray", description="Train and serve face-fusion models on Ray.")
    parser.add_argument("--version", action="version", version=f"fusionray {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_prepare(verbs.add_parser("prepare", help="pictures -> aligned, sharded crops"))
    add_train(verbs.add_parser("train", help="shards -> checkpoints; the same command goes on where it stopped"))
    add_tune(verbs.add_parser("tune", help="search for better settings; the same command goes on where it stopped"))
    add_evaluate(verbs.add_parser("evaluate", help="judge a model on people that nothing was learned from"))
    add_export(verbs.add_parser("export", help="checkpoint -> checked ONNX bundle"))
    add_compile(verbs.add_parser("compile", help="bundle -> engines in a cache, so that no replica has to build them"))
    add_import(verbs.add_parser("import", help="a face swapper made elsewhere, as ONNX -> bundle"))
    add_fuse(verbs.add_parser("fuse", help="fuse two picture files with a bundle"))
    add_verify(verbs.add_parser("verify", help="say what a picture proves about its making"))
    add_serve(verbs.add_parser("serve", help="serve a bundle over HTTP"))
    add_keys(verbs.add_parser("keys", help="make, list and remove the API keys of the service"))
    add_bench(verbs.add_parser("bench", help="measure what is promised about speed, recovery and serving"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
