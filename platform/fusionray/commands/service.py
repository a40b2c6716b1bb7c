"""The verbs of the service: serve, keys."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionray.background import run_in_background
from fusionray.commands.parser import Verbs, add_settings, add_verb, set_run
from fusionray.environment import is_private_cluster

if TYPE_CHECKING:
    from fusionray.config import Section

TEST_KEY_NOTE = (
    "a TEST KEY signs the outputs, which proves nothing to others; set signing.certificate and signing.key to your own "
    "before anybody relies on the signature (docs/provenance.md)"
)
NO_TARGET_POLICY_NOTE = (
    "no target policy is set: every target is changed, minors and nudity included; set target_policy.model to a "
    "classifier of yours (docs/provenance.md)"
)


def add_serve(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "serve",
        "Serve bundles over HTTP.",
        arguments="[options] [KEY=VALUE ...]",
        details="Outside loopback addresses the service requires an API key.",
        examples=[
            ("fusionray serve --bundle runs/mine/bundle", "one model on http://127.0.0.1:8000"),
            ("fusionray serve --config serve/config.yaml --port 9000", "the models of a file, on another port"),
            ("fusionray serve --settings limits", "the keys of one section"),
        ],
    )
    parser.add_argument("--bundle", help="bundle folder, or models:/name@alias")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8000)")
    add_settings(parser)
    set_run(parser, run_serve)


def run_serve(options: argparse.Namespace) -> None:
    from fusionray.ray_cluster.connection import cluster, require_cluster
    from fusionray.safety.target_policy import open_target_policy
    from fusionray.serving.config import load_service, with_absolute_paths
    from fusionray.serving.pipeline.model_registry import ModelRegistry

    places = [f"bundle={options.bundle}"] if options.bundle else []
    service = load_service(options.config, [*options.overrides, *places], options.host, options.port)
    # Models that cannot be served, and a policy that cannot be asked, are refused before anything starts.
    ModelRegistry(with_absolute_paths(service.config))
    open_target_policy(service.config.target_policy)
    with cluster(options.address, service.host):
        # Of a module that two threads import at the same time, one of them may see half.
        import_module("ray")
        # Ray's processes take seconds to start; the modules of the service are imported meanwhile.
        with run_in_background(import_service, "import"):
            require_cluster()
        from ray import serve

        from fusionray.serving.addresses import write_url
        from fusionray.serving.application import APP_NAME, run

        # Set before the service starts, so that SIGTERM during the start also ends it cleanly.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        run(service.config, service.host, service.port, blocking=False)
        served = ", ".join(model.bundle for model in service.config.models)
        print(f"serving {served} on {write_url(service.host, service.port)}; stop with Ctrl-C", flush=True)
        if service.config.signing.certificate is None:
            print(TEST_KEY_NOTE, file=sys.stderr, flush=True)
        if service.config.target_policy.model is None:
            print(NO_TARGET_POLICY_NOTE, file=sys.stderr, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        # Deleting the application first finishes open requests; a shutdown alone would cut them off.
        serve.delete(APP_NAME)
        # A cluster of the command's own ends with the block; Ray Serve would print an error of its own about its end.
        if not is_private_cluster():
            serve.shutdown()


def import_service(_: threading.Event) -> None:
    """Import the modules of the service."""
    import_module("fusionray.ray_cluster.serve_import").import_serve()
    import_module("fusionray.serving.application")


def add_keys(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "keys",
        "Add, remove and list the API keys of the service.",
        arguments="{add,remove,list} ...",
        details="The setting keys.file of the service names the file. The service notices changes\nwithin a second.",
        examples=[
            ("fusionray keys add ann --file keys.yaml --requests-per-minute 60", "a key for Ann"),
            ("fusionray keys list --file keys.yaml", "names and limits of all keys"),
        ],
    )
    actions = parser.add_verbs("action", metavar="ACTION", title="actions")
    add = add_verb(
        actions,
        "add",
        "Add a key and print it once; the file stores only its digest.",
        arguments="NAME --file FILE [options]",
        examples=[("fusionray keys add ann --file keys.yaml --expires 2027-01-31", "a key that expires")],
    )
    remove = add_verb(
        actions,
        "remove",
        "Remove a key.",
        arguments="NAME --file FILE",
        examples=[("fusionray keys remove ann --file keys.yaml", "the service refuses the key within a second")],
    )
    listing = add_verb(
        actions,
        "list",
        "List the keys with their limits.",
        arguments="--file FILE",
        examples=[("fusionray keys list --file keys.yaml", "names and limits of all keys")],
    )
    for action in (add, remove):
        action.add_argument("name", metavar="NAME", help="name of the key's owner")
    for action in (add, remove, listing):
        action.add_argument(
            "--file", required=True, metavar="FILE", help="YAML file of keys (keys.file of the service)"
        )
        set_run(action, run_keys)
    add.add_argument("--admin", action="store_true", help="let the key list, add and remove keys over HTTP")
    limits = add.add_argument_group("limits")
    limits.add_argument("--expires", metavar="DATE", help="refuse the key from then on: 2027-01-31, or date and time")
    limits.add_argument("--requests-per-minute", type=int, metavar="N", help="answer further requests with 429")
    limits.add_argument(
        "--images-per-day", type=int, metavar="N", help="answer further images with 429, until midnight UTC"
    )
    limits.add_argument("--models", metavar="A,B", help="models that the key may use; default: every model")


def run_keys(options: argparse.Namespace) -> None:
    from fusionray.serving.auth.key_file import add_key, describe, read_keys, remove_key

    file = Path(options.file)
    if options.action == "list":
        print("\n".join(describe(key) for key in read_keys(file)) or f"{file}: contains no keys")
    elif options.action == "remove":
        remove_key(file, options.name)
        print(f"{file}: {options.name} is removed", file=sys.stderr)
    else:
        limits = {"requests_per_minute": options.requests_per_minute, "images_per_day": options.images_per_day}
        models = tuple(options.models.split(",")) if options.models else None
        print(add_key(file, options.name, expires=options.expires, models=models, admin=options.admin, **limits))
        print(f"{file}: {options.name} is added; copy the key above, it is not shown again", file=sys.stderr)


def load_service_section() -> type[Section]:
    """Import the configuration tree of the service."""
    from fusionray.serving.config import ServeConfig

    return ServeConfig


def read_service_settings(file: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Read what a file and overrides set, as an unchecked tree."""
    from fusionray.config import parse_overrides
    from fusionray.serving.config import read_service_tree

    tree, _ = read_service_tree(file, parse_overrides(overrides))
    return tree
