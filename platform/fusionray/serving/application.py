"""Build and start the application: `serve run serve/config.yaml` calls `build`, `fusionray serve` calls `run`."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application, Deployment
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.schema import ApplicationStatus

from fusionray.bundle.bundle import read_bundle
from fusionray.config import validate
from fusionray.environment import WEBHOOK_SECRET_VARIABLE, read_webhook_secret
from fusionray.errors import ConfigInvalid, ServiceFailed
from fusionray.ray_cluster.connection import require_cluster
from fusionray.runtime.restorer import open_restorer
from fusionray.safety.target_policy import open_target_policy
from fusionray.serving.addresses import (
    LOOPBACK,
    WILDCARDS,
    check_exposure,
    choose_serve_host,
    find_address,
    keep_replica_on_loopback,
    wait_until_reachable,
)
from fusionray.serving.auth.api_keys import read_key_digest
from fusionray.serving.auth.rate_limits import RateLimiter
from fusionray.serving.config import ServeConfig, with_absolute_paths
from fusionray.serving.config_sections.jobs import JobConfig
from fusionray.serving.config_sections.stages import StageConfig
from fusionray.serving.ingress import Ingress
from fusionray.serving.jobs.service_key import open_jobs_key
from fusionray.serving.jobs.webhooks import parse_secret
from fusionray.serving.pipeline.model_registry import ModelRegistry
from fusionray.serving.pipeline.stage_replicas import FaceReplica, GeneratorReplica
from fusionray.serving.replicas import list_nodes, plan_replicas, scaling_options
from fusionray.serving.shared_folders import check_shared_folders
from fusionray.serving.tasks.registry import check_tasks

APP_NAME = "fusionray"
POLL_SECONDS = 0.05
# `ConcurrencyLimitMiddleware` refuses requests above the limit at once; Ray Serve would queue them instead.
UNLIMITED_REQUESTS = 100_000
# Start of the line in a traceback of Ray Serve that names one of our errors.
ERROR_PREFIX = "fusionray.errors."


def build(args: dict[str, Any]) -> Application:
    """Build the application from the `args` of a Serve configuration file.

    Raises: ConfigInvalid naming the keys that are unknown or wrong.
    """
    return build_application(with_absolute_paths(validate(ServeConfig, args, "args of the serve configuration")))


def build_application(config: ServeConfig) -> Application:
    """Bind the deployments: the ingress, the parts with a deployment of their own, and the rate limiter.

    Ray must be connected: the number of replicas depends on the cluster.
    """
    config = plan_replicas(config, list_nodes())
    parts: dict[str, Application] = {}
    if config.fuser.separate_deployment:
        parts["fuser"] = deploy(GeneratorReplica, "Fuser", config.fuser, config.fuser.max_ongoing_requests).bind(config)
    if config.faces.separate_deployment:
        faces = deploy(FaceReplica, "Faces", config.faces, config.faces.max_ongoing_requests)
        parts = {**parts, "faces": faces.bind(config, **parts)}
    if config.keys.file is not None:
        limiter = serve.deployment(
            RateLimiter,
            name="RateLimiter",
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=UNLIMITED_REQUESTS,
        )
        parts["rate_limiter"] = limiter.bind(Path(config.keys.usage_file) if config.keys.usage_file else None)
    if config.listen_on_every_node and (num_nodes := count_nodes()) > 1:
        parts["listeners"] = deploy_listeners(num_nodes).bind()
    ingress = deploy(serve.ingress()(Ingress), "Ingress", config.ingress, UNLIMITED_REQUESTS)
    return ingress.bind(config, read_key_digest(), webhook_secret=seal_webhook_secret(config.jobs), **parts)


def seal_webhook_secret(settings: JobConfig) -> bytes | None:
    """Encrypt the secret that signs webhooks under the key of the service: Ray keeps what replicas are started with.

    Raises: ConfigInvalid if webhooks are allowed without a secret.
    """
    if not settings.webhooks.hosts:
        return None
    return open_jobs_key(settings).cipher.encrypt(parse_secret(read_webhook_secret()), WEBHOOK_SECRET_VARIABLE.encode())


def deploy(part: type, name: str, stage: StageConfig, max_ongoing_requests: int) -> Deployment:
    """Make the deployment of a part from its planned settings."""
    with warnings.catch_warnings():
        # Ray Serve checks this setting, although variables replace it (environment.py sets them).
        warnings.filterwarnings("ignore", "The `metrics_interval_s` field", DeprecationWarning)
        return serve.deployment(part, name=name, max_ongoing_requests=max_ongoing_requests, **scaling_options(stage))


def deploy_listeners(num_nodes: int) -> Deployment:
    """Make a deployment with an empty replica on every node.

    Ray Serve runs a proxy, and with it HAProxy, on the nodes that have a replica of anything
    (ray/serve/_private/controller.py, `_update_proxy_nodes`).
    """
    return serve.deployment(
        NodeListener,
        name="NodeListener",
        num_replicas=num_nodes,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0},
    )


class NodeListener:
    """Do nothing: the replica makes Ray Serve listen on its node."""

    def __init__(self) -> None:
        keep_replica_on_loopback()


def count_nodes() -> int:
    """Count the nodes of the connected cluster."""
    return sum(node["Alive"] for node in ray.nodes())


def run(config: ServeConfig, host: str = "127.0.0.1", port: int = 8000, *, blocking: bool = True) -> None:
    """Serve on the connected Ray cluster; return once the service is ready, or never if `blocking`.

    Raises: ConfigInvalid, BundleInvalid before anything starts; ServiceFailed with the reason.
    """
    check_exposure(host, read_key_digest() is not None or config.keys.file is not None)
    # At INFO, Ray Serve reports each of its steps, also those of other applications.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    config = with_absolute_paths(config)
    open_target_policy(config.target_policy)
    open_restorer(config.restorer, config.runtime)
    registry = ModelRegistry(config)
    check_tasks(config, registry.tasks)
    for version in registry.versions():
        read_bundle(version.location, config.tracking_uri)
    require_cluster()
    check_shared_folders(config, registry.tasks)
    nodes = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
    serve_host = choose_serve_host(host, len(nodes))
    with ThreadPoolExecutor(1) as pool:
        # The replicas start at the same time as the proxies.
        proxies = pool.submit(start_serve, serve_host, port)
        wait_for_controller(proxies)
        found_host, found_port = find_address()
        if (found_host, found_port) != (host, port):
            raise ConfigInvalid(
                f"{host}:{port}: Ray Serve is already running on {found_host}:{found_port}; "
                "use that address, or stop it"
            )
        target = serve.RunTarget(target=build_application(config), name=APP_NAME, route_prefix="/")
        with stopped_if_late():
            serve.run_many([target], wait_for_applications_running=False)
        proxies.result()
    wait_until_running(APP_NAME, config.start_timeout_seconds)
    hosts = [LOOPBACK, *nodes] if host in WILDCARDS else [host]
    try:
        wait_until_reachable(hosts, port, config.start_timeout_seconds)
    except ServiceFailed:
        serve.delete(APP_NAME)
        raise
    if blocking:
        threading.Event().wait()


def start_serve(host: str, port: int) -> None:
    """Start Ray Serve and its proxies.

    Raises: ServiceFailed if the proxies are not ready in time.
    """
    with stopped_if_late():
        serve.start("EveryNode", http_options={"host": host, "port": port})


@contextlib.contextmanager
def stopped_if_late() -> Iterator[None]:
    """Stop Ray Serve if a step of its start fails, as its proxies do on a busy machine: they have a minute.

    Raises: ServiceFailed with the reason.
    """
    try:
        yield
    except (TimeoutError, RuntimeError, RayError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        with contextlib.suppress(TimeoutError, RuntimeError, RayError):
            serve.shutdown()
        raise ServiceFailed(
            f"Ray Serve did not start ({lines[-1][:200]}); start again when the machine is less busy"
        ) from None


def wait_for_controller(proxies: Future[None]) -> None:
    """Wait until Ray Serve's controller exists, which is before its proxies are ready.

    Raises: ServiceFailed if `start_serve` fails first.
    """
    while not proxies.done():
        with contextlib.suppress(ValueError):
            ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            return
        time.sleep(POLL_SECONDS)
    proxies.result()


def wait_until_running(name: str, timeout_seconds: float) -> None:
    """Wait until every deployment is running; delete the application if it fails or the time is up.

    Raises: ServiceFailed with the last line of a deployment's message.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        application = serve.status().applications[name]
        if application.status == ApplicationStatus.RUNNING:
            return
        failed = application.status == ApplicationStatus.DEPLOY_FAILED
        if failed or time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    messages = [deployment.message for deployment in application.deployments.values() if deployment.message]
    reason = (messages or [application.message or "no CPU or GPU is free in Ray"])[0].strip().splitlines()[-1]
    serve.delete(name)
    if reason.startswith(ERROR_PREFIX):
        reason = reason.partition(": ")[2]
    when = "" if failed else f" within {timeout_seconds:g} seconds"
    raise ServiceFailed(f"the service did not start{when}: {reason}")
