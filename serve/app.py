"""Put the service together: `serve run serve/config.yaml` calls `build`, `fusionray serve` calls `run`."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.schema import ApplicationStatus

from fusionray.config import validate
from fusionray.errors import ConfigInvalid, ServiceFailed
from fusionray.export.bundle import read_bundle
from fusionray.ops.environment import resolve_location
from serve.fuser_deployment import FuserReplica
from serve.guards import check_exposure, read_key_digest
from serve.ingress import Ingress, find_address
from serve.schema import ServeConfig

APP_NAME = "fusionray"
POLL_SECONDS = 0.2
SPARE_REQUESTS = 16
# How a traceback that Serve hands over names our errors.
ERROR_PREFIX = "fusionray.errors."


def build(args: dict[str, Any]) -> Application:
    """Build the application from the `args` of a Serve configuration file.

    Raises: ConfigInvalid naming the keys that are unknown or wrong.
    """
    return build_application(with_absolute_paths(validate(ServeConfig, args, "args of the serve configuration")))


def build_application(config: ServeConfig) -> Application:
    """Bind the two deployments: a light ingress, and the fuser with copies and hardware of its own."""
    fuser = serve.deployment(
        FuserReplica,
        name="Fuser",
        max_ongoing_requests=config.max_ongoing_requests,
        max_queued_requests=config.max_queued_requests,
        ray_actor_options={"num_cpus": config.cpus_per_replica, "num_gpus": config.gpus_per_replica},
        **scale(config),
    )
    # The ingress only moves bytes, so it reserves no CPU. It holds what runs, what waits, and some that ask for health.
    num_replicas = config.max_replicas or config.num_replicas
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="Ingress",
        max_ongoing_requests=num_replicas * config.max_ongoing_requests + config.max_queued_requests + SPARE_REQUESTS,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(fuser.bind(config), config, read_key_digest())


def with_absolute_paths(config: ServeConfig) -> ServeConfig:
    """Make local paths absolute: replicas may have another working folder."""
    paths: dict[str, str] = {}
    if not config.bundle.startswith("models:/"):
        paths["bundle"] = resolve_location(config.bundle)
    if config.detector != "default":
        paths["detector"] = resolve_location(config.detector)
    return config.model_copy(update=paths)


def scale(config: ServeConfig) -> dict[str, Any]:
    if config.max_replicas is None or config.max_replicas == config.num_replicas:
        return {"num_replicas": config.num_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": config.num_replicas,
            "max_replicas": config.max_replicas,
            "target_ongoing_requests": max(1, config.max_ongoing_requests // 2),
        }
    }


def run(config: ServeConfig, host: str = "127.0.0.1", port: int = 8000, *, blocking: bool = True) -> None:
    """Serve in the Ray that this process is connected to; return once the service is ready, or never if `blocking`.

    Raises: ConfigInvalid, BundleInvalid before anything is started; ServiceFailed with the reason.
    """
    check_exposure(host, read_key_digest())
    # Serve reports each of its steps at INFO, also those that do not concern this service.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    config = with_absolute_paths(config)
    read_bundle(config.bundle, config.tracking_uri)
    serve.start(http_options={"host": host, "port": port})
    found_host, found_port = find_address()
    if (found_host, found_port) != (host, port):
        raise ConfigInvalid(f"{host}:{port}: Ray Serve runs already, on {found_host}:{found_port}; use that or stop it")
    target = serve.RunTarget(target=build_application(config), name=APP_NAME, route_prefix="/")
    serve.run_many([target], wait_for_applications_running=False)
    wait_until_running(APP_NAME, config.start_timeout_seconds)
    if blocking:
        threading.Event().wait()


def wait_until_running(name: str, timeout_seconds: float) -> None:
    """Wait until every deployment is up; take the application away again if that does not come about.

    Raises: ServiceFailed with the last line of what a deployment says.
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
    said = [deployment.message for deployment in application.deployments.values() if deployment.message]
    reason = (said or [application.message or "no CPU or GPU is free in Ray"])[0].strip().splitlines()[-1]
    serve.delete(name)
    if reason.startswith(ERROR_PREFIX):
        reason = reason.partition(": ")[2]
    when = "" if failed else f" within {timeout_seconds:g} seconds"
    raise ServiceFailed(f"the service did not start{when}: {reason}")
