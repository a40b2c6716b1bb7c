"""Environment variables: all of them are read and set here."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

# Set before Ray or MLflow is imported. No telemetry is sent; Ray's behaviour does not depend on files in ~/.ray.
QUIET_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray starts where a command asks for it (ray_cluster/connection.py), never by the first call of a function of Ray.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    # How often Ray Train polls its workers: at the default of 2 s, a killed driver can lose a finished checkpoint.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # If a worker group cannot be placed because a node is lost, Ray Train asks again in another size after this time.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    # A worker that does not answer for this long is given up; Ray itself notices a lost node sooner.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    # Preemption arrives as SIGTERM (training/faults/preemption.py); Ray's watcher would poll the head in addition.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # A search keeps its own records, so Tune's tables, loggers and snapshots are off.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "RAY_AIR_NEW_OUTPUT": "0",
    # A paused trial reports no new metrics, and the search itself handles Ctrl-C.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # A relative PYTHONPATH is relative to the folder in which the command started.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # At INFO and WARNING these libraries print between our lines and bars although nothing is wrong.
    "RAY_DATA_LOGGING_CONFIG": str(Path(__file__).with_name("ray_data_logging.yaml")),
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
# OpenMP's own setting of how threads wait, and GNU's, which overrides it.
WAIT_VARIABLE, SPIN_VARIABLE = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
# Settings of a cluster that a command starts for itself. Ray's servers then listen on loopback and on nothing else: on
# Windows and macOS Ray does so by default, and this is the only switch.
PRIVATE_DEFAULTS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Settings of every Ray node.
NODE_DEFAULTS = {
    # Processes import what they will need before they get work, warm spares above all.
    "RAY_preload_python_modules": "fusionray.training.run.preload,fusionray.ray_cluster.preload",
    "RAY_num_workers_soft_limit": "32",
    # Workers have the priority of the command that started Ray. At Ray's niceness of 15, any other busy process of the
    # machine takes nearly all of its time: beside six of them on two cores, a service did not start within minutes.
    "RAY_worker_niceness": "0",
    # How often a waiting thread of OpenMP looks before it sleeps. At GNU's 300,000 it holds its core for milliseconds:
    # two steps with two threads each on the same two cores took six times as long as two that take turns.
    SPIN_VARIABLE: "10000",
    # Memory in pages of 2 MiB where the kernel lets programs ask for them: a step takes and frees hundreds of
    # megabytes, and each page of 4 KiB would be a fault.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# Requests reach the replicas through HAProxy, which is part of ray[serve]; Ray's own proxy is five times slower.
SERVE_DEFAULTS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # On a busy machine HAProxy is not ready within Ray's five seconds, and the service would not start.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    # The routes never block the event loop, because threads process the pictures; so Ray Serve's own loop runs them.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # If a replica dies, HAProxy sends those of its requests that fit the buffer to another replica.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "2",
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(256 * 2**10),
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "75",
    # How often the controller looks at its replicas. At Ray's 0.1 s it takes a third of what an idle service takes.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
    # How often replicas hand their counts to Ray's metrics, which leave a process every ten seconds. At Ray's 0.1 s it
    # takes a sixth of what an idle replica takes.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    # HAProxy drops a stopping replica from its list within a second.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "60",
    # How often replicas and callers report their load. At Ray's ten seconds, new replicas would come that much later.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}
# Longest path of the folder in which HAProxy gets its own: 107 characters of a socket less all that follows.
MAX_PROXY_PARENT = 23
HAPROXY_SCRIPT = "fusionray-haproxy"
ROOT_VARIABLE = "FUSIONRAY_ROOT"
# Folder of a user's own data, in the XDG base directory specification.
DATA_VARIABLE = "XDG_DATA_HOME"
# Folder of files that can be made again, in the same specification.
CACHE_VARIABLE = "XDG_CACHE_HOME"
# Modules that register model families of other packages, separated by commas (recipes/registry.py).
RECIPES_VARIABLE = "FUSIONRAY_RECIPES"
# Where Ray tells the driver of a job how it was submitted.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# What a process of Ray will do: it imports the modules for that before it gets work (training/run/preload.py,
# ray_cluster/preload.py).
WORKER_VARIABLE = "FUSIONRAY_WORKER"
TRAINS, SERVES = "train", "serve"
# Set to its id in all processes of a cluster that a command of ours started for itself, on one node, and stops again.
PRIVATE_CLUSTER_VARIABLE = "FUSIONRAY_PRIVATE_CLUSTER"
# Address on which HAProxy listens, if not on that of Ray Serve. In a private cluster Ray Serve, its replicas and its
# fallback proxy stay on loopback, whatever address the service has.
HTTP_HOST_VARIABLE = "FUSIONRAY_HTTP_HOST"
# Secret that signs webhooks, as Standard Webhooks writes it: whsec_ and 24 to 64 bytes in base64.
WEBHOOK_SECRET_VARIABLE = "FUSIONRAY_WEBHOOK_SECRET"  # noqa: S105 - its name
# Key of the operator for a service, and the key that a client sends.
KEY_VARIABLE = "FUSIONRAY_API_KEY"
# Start of the location of a bundle in the MLflow registry: models:/name@alias or models:/name/version.
REGISTRY_PREFIX = "models:/"


def apply_defaults(address: str | None = None) -> None:
    """Set the defaults of variables that the user has not set; call it before Ray or MLflow is imported.

    Without an address, a local cluster will start: it listens on loopback, and gets a token that only this process and
    its children know. Ray reads both once, at import; otherwise it would take its authentication mode from files in the
    home folder.
    """
    for name, value in (QUIET_DEFAULTS | NODE_DEFAULTS | serve_defaults()).items():
        if name != SPIN_VARIABLE or WAIT_VARIABLE not in os.environ:
            os.environ.setdefault(name, value)
    if cluster_address(address):
        return
    for name, value in PRIVATE_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def serve_defaults() -> dict[str, str]:
    """Return the variables that route requests to Ray Serve through HAProxy; none if our start script is missing."""
    script = Path(sys.executable).with_name(HAPROXY_SCRIPT)
    if not script.is_file():
        return {}
    return {**SERVE_DEFAULTS, "RAY_SERVE_HAPROXY_BINARY_PATH": str(script)}


def make_proxy_folder() -> Path:
    """Make a folder that only this user can enter, and let HAProxy of the Ray cluster that is about to start use it.

    Names are short: a socket's path has at most 107 characters, of which Ray Serve uses 57 for the node, and HAProxy 12
    for a suffix while it starts. So a long temporary folder is not used.
    """
    wanted = (os.environ.get("RAY_TMPDIR"), tempfile.gettempdir())
    parent = Path(next((path for path in wanted if path and len(path) <= MAX_PROXY_PARENT), "/tmp"))  # noqa: S108
    parent.mkdir(parents=True, exist_ok=True)
    # Only this user can enter it, and nobody can have made it before.
    folder = parent / f"h{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    names = {
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "a.sock",
        "SERVER_STATE_BASE": folder,
        "SERVER_STATE_FILE": folder / "server-state",
        "METRICS_SOCKET_PATH": folder / "m.sock",
    }
    os.environ.update({f"RAY_SERVE_HAPROXY_{name}": str(path) for name, path in names.items()})
    return folder


def cluster_address(address: str | None) -> str | None:
    """Choose the cluster: the named one, otherwise that of a surrounding Ray job, otherwise None."""
    return address or os.environ.get("RAY_ADDRESS") or None


def is_private_cluster() -> bool:
    """Return whether this process belongs to a cluster of one node that ends with the command that started it."""
    return PRIVATE_CLUSTER_VARIABLE in os.environ


def read_http_host() -> str | None:
    """Return the address on which HAProxy listens, if it is not that of Ray Serve."""
    return os.environ.get(HTTP_HOST_VARIABLE) or None


def read_webhook_secret() -> str | None:
    """Return the secret that signs webhooks, if it is set."""
    return os.environ.get(WEBHOOK_SECRET_VARIABLE) or None


def read_api_key() -> str | None:
    """Return the API key, if there is one."""
    return os.environ.get(KEY_VARIABLE) or None


def list_recipe_modules() -> list[str]:
    """List the modules that FUSIONRAY_RECIPES names."""
    return [name.strip() for name in os.environ.get(RECIPES_VARIABLE, "").split(",") if name.strip()]


def passed_on() -> dict[str, str]:
    """Give the variables that every process of a cluster must see as this one does, those that are set.

    What the runtime environment of a surrounding Ray job sets is there already, and Ray refuses it a second time.
    """
    job = json.loads(os.environ.get(JOB_VARIABLE, "{}")).get("runtime_env") or {}
    names = {RECIPES_VARIABLE} - set(job.get("env_vars", {}))
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def resolve_location(location: str) -> str:
    """Make a local path absolute, relative to FUSIONRAY_ROOT or to the working folder; a URI stays as it is.

    A submitted Ray job runs in a temporary copy of its working folder: `cluster/runtime-env.yaml` sets FUSIONRAY_ROOT,
    so that its outputs are kept.
    """
    if "://" in location:
        return location
    root = Path(os.environ.get(ROOT_VARIABLE) or ".").expanduser()
    return str((root / Path(location).expanduser()).resolve())


def find_data_folder() -> Path:
    """Return the folder of this user's own data: $XDG_DATA_HOME/fusionray, else ~/.local/share/fusionray.

    It is not under FUSIONRAY_ROOT, which may be a checkout: `ray job submit --working-dir` would upload the keys in it.
    """
    home = os.environ.get(DATA_VARIABLE) or "~/.local/share"
    return Path(home).expanduser() / "fusionray"


def find_cache_folder() -> Path:
    """Return the folder of files that can be made again: $XDG_CACHE_HOME/fusionray, else ~/.cache/fusionray."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache").expanduser() / "fusionray"
