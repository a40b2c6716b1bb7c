"""Check at the start of a service on several nodes that they share the folders in which replicas meet."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fusionray.bundle.bundle import is_remote
from fusionray.bundle.description import FACE_FUSION
from fusionray.environment import REGISTRY_PREFIX
from fusionray.errors import ConfigInvalid, ServiceFailed
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.service_key import default_key_file, open_jobs_key
from fusionray.serving.tasks.registry import JOB_TASKS
from fusionray.storage.atomic_files import make_private_folder

# Long enough for a node to start a worker; a node that is lost raises at once.
ANSWER_SECONDS = 120.0


def check_shared_folders(config: ServeConfig, tasks: Iterable[str]) -> None:
    """Check that every node of the connected cluster finds the same folders and bundles.

    Raises: ConfigInvalid naming the setting and the node; ServiceFailed if a node does not answer.
    """
    nodes = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}
    if len(nodes) < 2:
        return
    bundles = [version.bundle for model in config.models for version in (model, model.canary) if version is not None]
    folders = [place for place in bundles if not is_remote(place) and not place.startswith(REGISTRY_PREFIX)]
    local = {f"models: {place}": Path(place) for place in folders}
    stores: dict[str, Path] = {}
    served = frozenset(tasks)
    if served & frozenset(JOB_TASKS):
        # A key that one node does not see it would make anew.
        key_file = Path(config.jobs.key_file) if config.jobs.key_file else default_key_file(Path(config.jobs.folder))
        open_jobs_key(config.jobs)
        local["jobs.key_file"] = key_file
        stores["jobs.folder"] = Path(config.jobs.folder)
    if FACE_FUSION in served:
        stores["identities.folder"] = Path(config.identities.folder)
    ask_nodes(nodes, stores, local)


def ask_nodes(nodes: Mapping[str, str], stores: Mapping[str, Path], files: Mapping[str, Path]) -> None:
    """Write a file into each store, and ask each node (by id; its address is for the error) whether it sees them all.

    Raises: ConfigInvalid; ServiceFailed if a node does not answer.
    """
    probes = {name: folder / f".shared-{secrets.token_hex(8)}" for name, folder in stores.items()}
    sought = {**probes, **files}
    try:
        for probe in probes.values():
            make_private_folder(probe.parent)
            probe.touch()
        find = ray.remote(num_cpus=0)(find_missing)
        asked = {
            address: find.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                [str(path) for path in sought.values()]
            )
            for node, address in nodes.items()
        }
        answers = ray.get(list(asked.values()), timeout=ANSWER_SECONDS)
        for address, missing in zip(asked, answers, strict=True):
            for name, path in sought.items():
                if str(path) in missing:
                    place = path.parent if name in probes else path
                    raise ConfigInvalid(
                        f"{name}: the node {address} does not see {place} as this one does; all nodes must share it"
                    )
    except RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise ServiceFailed(f"not every node told what it sees of the folders ({reason}); start again") from None
    except OSError as error:
        raise ConfigInvalid(f"{error.filename}: cannot be written ({error.strerror}); choose another folder") from None
    finally:
        for probe in probes.values():
            with suppress(OSError):
                probe.unlink()


def find_missing(paths: Sequence[str]) -> list[str]:
    """Return those paths that do not exist on this node."""
    return [path for path in paths if not Path(path).exists()]
