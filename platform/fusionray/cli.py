"""The command line: one verb per stage. Each verb reads a configuration, calls a function and prints its result."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from fusionray import __version__
from fusionray.commands.audit import add_audit
from fusionray.commands.bench import add_bench
from fusionray.commands.bundles import add_compile, add_export, add_import
from fusionray.commands.completion import add_completion
from fusionray.commands.doctor import add_doctor
from fusionray.commands.learning import add_evaluate, add_prepare, add_train, add_tune
from fusionray.commands.parser import Parser
from fusionray.commands.pictures import add_fuse, add_verify
from fusionray.commands.planning import add_plan
from fusionray.commands.service import add_keys, add_serve
from fusionray.commands.styles import add_stylize
from fusionray.commands.videos import add_fuse_video
from fusionray.environment import apply_defaults
from fusionray.errors import FusionRayError, RunStopped
from fusionray.spelling import suggest
from fusionray.training.faults.preemption import EXIT_STATUS

# In the order of the path: from pictures to a served model, then what goes with it.
VERBS = (
    add_prepare,
    add_train,
    add_tune,
    add_evaluate,
    add_export,
    add_import,
    add_compile,
    add_serve,
    add_keys,
    add_fuse,
    add_fuse_video,
    add_stylize,
    add_verify,
    add_audit,
    add_bench,
    add_plan,
    add_doctor,
    add_completion,
)
EPILOG = """\
examples:
  # a synthetic dataset, a small model, its bundle, and a server
  fusionray prepare synthetic://people=60,images=8 runs/mine/shards size=64 landmarks=exact
  fusionray train --preset tiny-64 --output runs/mine data.shards=runs/mine/shards run.name=first
  fusionray export runs/mine/first --output runs/mine/bundle
  fusionray serve --bundle runs/mine/bundle

`fusionray VERB --help` explains a verb; `fusionray VERB --settings` lists its settings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return 0, or print one line that says what is wrong and return 1 (143 after SIGTERM)."""
    options = parse(arguments)
    apply_defaults(getattr(options, "address", None))
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
        sys.stdout.flush()
    except RunStopped as error:
        print(f"{options.prog}: {error}", file=sys.stderr)
        return EXIT_STATUS
    except (FusionRayError, ValueError) as error:
        print(f"{options.prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed it; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        late = isinstance(error, TimeoutError)
        remedy = "when the machine is less busy" if late else "after you free some space, or fix the permissions"
        said = f"{str(error).rstrip('.')}; run the same command again {remedy}"
        print(f"{options.prog}: {' '.join(said.split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{options.prog}: interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; arguments that are neither options nor positional are `key=value` overrides.

    argparse cannot take overrides as a positional argument: it would refuse `INPUT --output DIR a=1`, where they do not
    stand together.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    check_verb(parser, given)
    if any(item == "--settings" or item.startswith("--settings=") for item in given):
        from fusionray.commands.settings import parse_settings

        # What the verb itself requires may be left out.
        return parse_settings(given)
    options, rest = parser.parse_known_args(given)
    strange = [item for item in rest if item.startswith("-") or not getattr(options, "takes_overrides", False)]
    if strange:
        parser.find(options.prog.split()[1:]).refuse(strange)
    options.overrides = rest
    options.parser = parser
    return options


def check_verb(parser: Parser, arguments: Sequence[str]) -> None:
    """Refuse a misspelt verb, and a misspelt second word of `keys` and `bench`, with a suggestion."""
    for word in arguments:
        if word.startswith("-") or not parser.verbs:
            return
        if word not in parser.verbs:
            known = ", ".join(parser.verbs)
            parser.error(f"unknown verb '{word}'{suggest(word, parser.verbs) or ';'} choose from {known}")
        parser = parser.verbs[word]
    if parser.verbs:
        parser.error(f"a verb is missing; choose from {', '.join(parser.verbs)}")


def run_job(verb: str) -> int:
    """Run a verb with the command line of a script in `jobs/`."""
    return main([verb, *sys.argv[1:]])


def build_parser() -> Parser:
    """Describe the verbs."""
    parser = Parser(
        prog="fusionray", description="Train and serve face-fusion and style-transfer models on Ray.", epilog=EPILOG
    )
    parser.usage = "fusionray VERB ..."
    parser.add_argument("--version", action="version", version=f"fusionray {__version__}")
    verbs = parser.add_verbs("verb", metavar="VERB [OPTION]", title="verbs")
    for add in VERBS:
        add(verbs)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
