"""Ray Train with fewer processes and imports at every start.

`TorchTrainer` makes its controller import torch, only for the class `TorchConfig`, and it starts three more actors: for
datasets, for the autoscaler of the cluster, and to remove the placement group of a controller that died. The first has
nothing to do here, the second has nothing to do on a private cluster, and `faults/leftover_workers.py` replaces the
third. Each one imports Ray Train, which takes more than a second of CPU time and 250 MB. This module and two of
`faults/` use internals of Ray Train; `tests/training/run/test_light_trainer.py` names the Ray version that they were
written for. Only functions that run in the workers import torch.

Source: ray 2.60, ray/train/torch/config.py and ray/train/v2/api/data_parallel_trainer.py,
ray/train/v2/_internal/execution/scaling_policy.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from fusionray.environment import is_private_cluster
from fusionray.hardware.network import find_interface
from fusionray.storage import filesystem as storage
from fusionray.training.faults.leftover_workers import RecordWorkers

# Time-out of a collective, in seconds: torch's default.
COLLECTIVE_SECONDS = 1800


class LightTrainer(DataParallelTrainer):  # type: ignore[misc, unused-ignore]
    """Run a function without arguments in a group of workers that share a torch process group."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        left_out = (DatasetsCallback, PlacementGroupCleanerCallback)
        run_folder = storage.join(self.run_config.storage_path, self.run_config.name)
        return [each for each in callbacks if not isinstance(each, left_out)] + [RecordWorkers(run_folder)]

    def _initialize_and_run_controller(self, **settings: Any) -> Any:
        if is_private_cluster() and type(settings["scaling_policy"]) is FixedScalingPolicy:
            settings["scaling_policy"] = SilentScalingPolicy(self.scaling_config)
        return super()._initialize_and_run_controller(**settings)


class SilentScalingPolicy(FixedScalingPolicy):  # type: ignore[misc, unused-ignore]
    """A fixed number of workers, without requests to the actor that talks to an autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Request nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass


class ProcessGroupConfig(BackendConfig):  # type: ignore[misc, unused-ignore]
    """The backend of the process group: `nccl` or `gloo`."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that sets up the process group."""
        return ProcessGroupBackend

    @property
    def train_func_context(self) -> type[WorkerDevice]:
        """The context manager in which the training function runs."""
        return WorkerDevice

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for the state of the run that Ray keeps."""
        return {"backend": self.backend}


class ProcessGroupBackend(Backend):  # type: ignore[misc, unused-ignore]
    """Set up `torch.distributed` in all workers, and shut it down."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        """Make every worker join the group; rank 0 gives the address."""
        host, port = worker_group.execute_single(0, find_address)
        world_size = len(worker_group)
        joins = [
            worker_group.execute_single_async(
                rank, join_group, backend_config.backend, world_rank=rank, world_size=world_size, host=host, port=port
            )
            for rank in range(world_size)
        ]
        ray.get(joins)

    def on_shutdown(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        """Make every worker leave the group; Ray ends workers that do not answer."""
        del backend_config
        leaves = worker_group.execute_async(leave_group)
        ray.wait(leaves, num_returns=len(leaves), timeout=5.0)


class WorkerDevice:
    """Make the worker's GPU torch's current device while the training function runs."""

    def __enter__(self) -> None:
        import ray.train.torch
        import torch

        if torch.cuda.is_available():
            device = ray.train.torch.get_device()
            if device.type == "cuda":
                torch.cuda.set_device(device)

    def __exit__(self, *failure: object) -> None:
        pass


def find_address() -> tuple[str, int]:
    """Return the address of this worker's node, and a free port on it."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
    return ray.util.get_node_ip_address(), port


def join_group(backend: str, *, world_rank: int, world_size: int, host: str, port: int) -> None:
    """Join the process group; runs in a worker.

    The environment variables are those of `torchrun`, which other libraries read too.
    """
    from datetime import timedelta

    import torch.distributed as dist

    context = ray.train.get_context()
    os.environ.update(
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        LOCAL_RANK=str(context.get_local_rank()),
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
        NODE_RANK=str(context.get_node_rank()),
        RANK=str(world_rank),
        WORLD_SIZE=str(world_size),
    )
    if "nccl" in backend and "TORCH_NCCL_BLOCKING_WAIT" not in os.environ:
        # A collective that times out ends the process instead of blocking for ever.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if context.get_local_world_size() < world_size:
        choose_interface(ray.util.get_node_ip_address())
    dist.init_process_group(
        backend, rank=world_rank, world_size=world_size, timeout=timedelta(seconds=COLLECTIVE_SECONDS)
    )


def choose_interface(address: str) -> None:
    """Let gloo use the interface that has the node's address, unless the user chose one; runs in a worker.

    Otherwise gloo uses the address that the host's name resolves to. On many systems it is 127.0.1.1, which other nodes
    cannot reach. NCCL looks for an interface itself, and may use several.
    """
    interface = find_interface(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def leave_group() -> None:
    """Leave the process group and release cached GPU memory; runs in a worker."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.destroy_process_group()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
