"""The one place where environment variables are read and set."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

# Set before Ray or MLflow is imported. Nothing is sent home; Ray's behaviour does not depend on what lies in ~/.ray.
QUIET_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    # Ray Train polls its workers this often: at the default of 2 s a killed driver can lose a finished checkpoint.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # A group that cannot be placed, since a node is lost, is asked for again in another size after this time.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    # A worker that does not answer for so long is given up; a cut-off node is noticed sooner by Ray itself.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    # Notices come as SIGTERM (training/faults/preemption.py); the watcher would poll the head beside.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # Of a search, its own records are kept: Tune's tables, loggers and snapshots would only stand beside them.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "RAY_AIR_NEW_OUTPUT": "0",
    # A trial that is halted has nothing new to report; and Ctrl-C is the search's own to answer.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # A relative PYTHONPATH means the folder that the command was started in.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # What they report at INFO and WARNING while all is well would lie between our lines and bars.
    "RAY_DATA_LOGGING_CONFIG": str(Path(__file__).with_name("ray_data_logging.yaml")),
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
# What every node of a Ray is started with: warm spares (training/faults/warm_spares.py) preload modules, and are kept.
NODE_DEFAULTS = {"RAY_preload_python_modules": "fusionray.training.faults.preload", "RAY_num_workers_soft_limit": "32"}
# Requests reach the replicas through HAProxy, which comes with ray[serve]: Ray's own proxy answers a fifth as many.
SERVE_DEFAULTS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # On a busy machine HAProxy is not ready within Ray's five seconds, and the service would not start.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    # The routes never hold up the event loop: work on pictures is done in threads. So it can be Ray Serve's own loop.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # A replica that dies takes its requests with it: those that fit the buffer are sent to another one.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "2",
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(256 * 2**10),
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "75",
    # A replica that ends is out of HAProxy's list within a second.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "60",
}
HAPROXY_SCRIPT = "fusionray-haproxy"
ROOT_VARIABLE = "FUSIONRAY_ROOT"
# Where programs keep what is a user's own, as the XDG base directory specification has it.
DATA_VARIABLE = "XDG_DATA_HOME"
# Modules that register model families of other packages, separated by commas (recipes/registry.py).
RECIPES_VARIABLE = "FUSIONRAY_RECIPES"
# Where Ray tells the driver of a job how it was submitted.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# Set to 1 in processes that will train: they import what that takes before they are given anything to do.
AHEAD_VARIABLE = "FUSIONRAY_WORKER"


def apply_defaults(address: str | None = None) -> None:
    """Set what the user has not set; call it before Ray or MLflow is imported.

    Without an address a cluster of our own will be started: it gets a token that only this process and its children
    know. Ray reads its authentication once, at import, and left to itself decides it by what lies in the home folder.
    """
    for name, value in (QUIET_DEFAULTS | NODE_DEFAULTS | serve_defaults()).items():
        os.environ.setdefault(name, value)
    if not cluster_address(address) and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def serve_defaults() -> dict[str, str]:
    """Choose how requests reach Ray Serve: through HAProxy, where it can be started with our stricter settings."""
    script = Path(sys.executable).with_name(HAPROXY_SCRIPT)
    if not script.is_file():
        return {}
    return {**SERVE_DEFAULTS, "RAY_SERVE_HAPROXY_BINARY_PATH": str(script)}


def keep_proxy_files() -> None:
    """Let HAProxy keep its files beside those of the Ray that is about to be started.

    Names are short: a socket's path may have 107 characters, of which Ray Serve takes 57 for the node.
    """
    folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray-ha"
    names = {
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "a.sock",
        "SERVER_STATE_BASE": folder,
        "SERVER_STATE_FILE": folder / "server-state",
        "METRICS_SOCKET_PATH": folder / "m.sock",
    }
    os.environ.update({f"RAY_SERVE_HAPROXY_{name}": str(path) for name, path in names.items()})


def cluster_address(address: str | None) -> str | None:
    """Choose the cluster to use: the one named, else the one of a surrounding Ray job, else none."""
    return address or os.environ.get("RAY_ADDRESS") or None


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
    """Make a local path absolute, relative to FUSIONRAY_ROOT or else to the working folder; URIs stay.

    A submitted Ray job runs in a copy of its working folder that is thrown away: `cluster/runtime-env.yaml` sets
    FUSIONRAY_ROOT, so that what it writes stays.
    """
    if "://" in location:
        return location
    root = Path(os.environ.get(ROOT_VARIABLE) or ".").expanduser()
    return str((root / Path(location).expanduser()).resolve())


def find_data_folder() -> Path:
    """Name the folder for what this user keeps: $XDG_DATA_HOME/fusionray, else ~/.local/share/fusionray.

    Not under FUSIONRAY_ROOT: that may be a checkout, which `ray job submit --working-dir` uploads, keys and all.
    """
    home = os.environ.get(DATA_VARIABLE) or "~/.local/share"
    return Path(home).expanduser() / "fusionray"
