"""The verbs of the service: serve, keys."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from pathlib import Path

from fusionray.commands.options import add_common

TEST_KEY_NOTE = (
    "outputs are signed with a TEST KEY, which proves nothing to others: give one of your own with signing.certificate "
    "and signing.key before anybody relies on it (docs/provenance.md)"
)


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", help="bundle folder, or models:/name@alias")
    parser.add_argument("--host", help="address to listen on (127.0.0.1); beyond loopback it wants a key")
    parser.add_argument("--port", type=int, help="port to listen on (8000)")
    add_common(parser)
    parser.set_defaults(run=run_serve)


def run_serve(options: argparse.Namespace) -> None:
    from ray import serve

    from fusionray.ray_cluster.connection import cluster
    from fusionray.serving.application import APP_NAME, run
    from fusionray.serving.config import load_service

    places = [f"bundle={options.bundle}"] if options.bundle else []
    service = load_service(options.config, [*options.overrides, *places], options.host, options.port)
    with cluster(options.address):
        # Before the service starts: a signal during the start ends it as one after it does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        run(service.config, service.host, service.port, blocking=False)
        served = ", ".join(model.bundle for model in service.config.models)
        print(f"serving {served} on http://{service.host}:{service.port}; stop with Ctrl-C", flush=True)
        if service.config.signing.certificate is None:
            print(TEST_KEY_NOTE, file=sys.stderr, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        # What is being answered is finished first; a shutdown alone would cut it off.
        serve.delete(APP_NAME)
        serve.shutdown()


def add_keys(parser: argparse.ArgumentParser) -> None:
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    add = acts.add_parser("add", help="make a key and print it, this once; the file keeps its digest")
    for act in (add, acts.add_parser("remove", help="take a key out of the file; the service follows within a second")):
        act.add_argument("name", metavar="NAME", help="whose key it is")
    listing = acts.add_parser("list", help="say what each key is good for")
    for act in (add, acts.choices["remove"], listing):
        act.add_argument("--file", required=True, metavar="FILE", help="YAML file of keys (keys.file of the service)")
    add.add_argument("--expires", metavar="DATE", help="refuse the key from then on: 2027-01-31, or with time and zone")
    add.add_argument("--requests-per-minute", type=int, metavar="N", help="answer more requests 429")
    add.add_argument("--images-per-day", type=int, metavar="N", help="answer more images 429, until midnight UTC")
    add.add_argument("--models", metavar="A,B", help="models that the key may use; all if left out")
    parser.set_defaults(run=run_keys)


def run_keys(options: argparse.Namespace) -> None:
    from fusionray.serving.auth.api_keys import add_key, describe, read_keys, remove_key

    file = Path(options.file)
    if options.act == "list":
        print("\n".join(describe(key) for key in read_keys(file)) or f"{file}: holds no keys")
    elif options.act == "remove":
        remove_key(file, options.name)
        print(f"{file}: {options.name} is removed", file=sys.stderr)
    else:
        limits = {"requests_per_minute": options.requests_per_minute, "images_per_day": options.images_per_day}
        models = tuple(options.models.split(",")) if options.models else None
        print(add_key(file, options.name, expires=options.expires, models=models, **limits))
        print(f"{file}: {options.name} is added; the key above is shown this once", file=sys.stderr)
