from __future__ import annotations

from typing import Any

import pytest
import torch

from fusionray.hardware.profiles import HardwareProfile
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.resolve import ResolvedEngine, check_optimizers, resolve

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PROFILE = HardwareProfile(
    name="test",
    match=("none",),
    precision="bf16",
    tf32=True,
    channels_last=True,
    compile=True,
    decode_threads=1,
    source="made up",
)


def chosen(
    parallel: dict[str, Any] | None = None, *, ranks: int = 2, device: torch.device = CPU, **settings: Any
) -> ResolvedEngine:
    config = EngineConfig(parallel=ParallelConfig.model_validate(parallel or {}), **settings)
    return resolve(config, PROFILE, device, num_parameters=10, num_ranks=ranks, memory_bytes=2**30)


def test_auto_is_what_the_profile_says() -> None:
    found = chosen()
    assert (found.precision, found.channels_last, found.compile) == ("bf16", True, True)


def test_a_setting_wins_over_the_profile() -> None:
    found = chosen(precision="fp32", channels_last=False, compile=False)
    assert (found.precision, found.channels_last, found.compile) == ("fp32", False, False)


@pytest.mark.parametrize(
    ("parallel", "device", "ranks", "overlap"),
    [
        ({}, GPU, 2, False),  # CUDA graphs save more
        ({"compression": "powersgd"}, GPU, 2, True),
        ({"overlap": True}, GPU, 2, True),
        ({}, CPU, 2, False),
        ({}, GPU, 1, False),
        ({"overlap": True}, CPU, 2, True),
        ({"overlap": True}, CPU, 1, False),
        ({"overlap": False}, GPU, 2, False),
        ({"compression": "powersgd"}, CPU, 2, True),
    ],
)
def test_gradients_are_exchanged_beside_the_backward_pass_where_that_is_faster(
    parallel: dict[str, Any], device: torch.device, ranks: int, overlap: bool
) -> None:
    assert chosen(parallel, device=device, ranks=ranks).overlap is overlap


def test_a_gpu_records_its_passes_and_then_need_not_compile() -> None:
    found = chosen(device=GPU)
    assert (found.cuda_graphs, found.compile, found.overlap) == (True, False, False)
    found = chosen(device=GPU, compile=True)
    assert (found.cuda_graphs, found.compile) == (True, True)
    found = chosen(device=GPU, cuda_graphs=False)
    assert (found.cuda_graphs, found.compile, found.overlap) == (False, True, True)


UNRECORDED: list[tuple[dict[str, Any], dict[str, Any], torch.device, str]] = [
    ({}, {}, CPU, "a device other than an NVIDIA GPU"),
    ({}, {"activation_checkpointing": True}, GPU, "activation_checkpointing=true, which reads the state"),
    ({"strategy": "fsdp"}, {}, GPU, "strategy=fsdp, which exchanges parameters"),
    ({"overlap": True}, {}, GPU, "overlap=true, which exchanges gradients"),
    ({"compression": "powersgd"}, {}, GPU, "compression=powersgd, which exchanges gradients"),
    ({"static_graph": True}, {}, GPU, "static_graph=true, which exchanges gradients"),
]


@pytest.mark.parametrize(("parallel", "settings", "device", "reason"), UNRECORDED)
def test_what_cannot_be_recorded_is_compiled_and_refused_if_asked_for(
    parallel: dict[str, Any], settings: dict[str, Any], device: torch.device, reason: str
) -> None:
    found = chosen(parallel, device=device, **settings)
    assert (found.cuda_graphs, found.compile) == (False, True)
    with pytest.raises(ValueError, match=rf"cuda_graphs=true is not possible with .*{reason}.*; set auto, or false"):
        chosen(parallel, device=device, cuda_graphs=True, **settings)


EXCLUSIVE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"strategy": "fsdp"}, {"precision": "fp16"}, r"engine\.precision=fp16 .* use bf16, or zero"),
    ({"strategy": "fsdp", "compression": "powersgd"}, {}, r"compression=powersgd does not support sharded parameters"),
    ({"compression": "powersgd", "overlap": False}, {}, r"powersgd needs engine\.parallel\.overlap=true"),
    ({"static_graph": True, "overlap": True}, {"batch_size": 4}, r"static_graph=true needs .* no engine\.batch_size"),
    ({"static_graph": True, "overlap": True}, {"global_batch": "auto"}, r"a number as engine\.global_batch"),
    ({"strategy": "fsdp", "compression": "fp16"}, {}, r"compression=fp16 scales gradients .* use bf16, or zero"),
    ({"overlap": True, "bucket_megabytes": 0.5}, {}, r"bucket_megabytes must be at least 1 with engine\.compile"),
    ({"static_graph": True, "overlap": False}, {}, r"static_graph=true needs engine\.parallel\.overlap=true"),
    ({"static_graph": True}, {}, r"static_graph=true needs engine\.parallel\.overlap=true"),
]


@pytest.mark.parametrize(("parallel", "settings", "message"), EXCLUSIVE)
def test_settings_that_exclude_each_other_are_refused(
    parallel: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(parallel, **settings)


def test_matrices_are_not_stepped_in_pieces() -> None:
    kinds = {"generator": "muon", "discriminator": "adamw"}
    for strategy in ("ddp", "zero"):
        check_optimizers(kinds, chosen({"strategy": strategy}))
    divided = chosen({"strategy": "fsdp"})
    check_optimizers({"generator": "adamw"}, divided)
    with pytest.raises(ValueError, match=r"the generator uses muon, .* use strategy zero or ddp, or kind adamw"):
        check_optimizers(kinds, divided)


@pytest.mark.parametrize(("parallel", "settings"), [case[:2] for case in EXCLUSIVE])
def test_they_mean_nothing_to_a_worker_alone(parallel: dict[str, Any], settings: dict[str, Any]) -> None:
    assert chosen(parallel, ranks=1, **settings).strategy == "ddp"


@pytest.mark.parametrize(
    ("parallel", "settings"),
    [
        ({"strategy": "fsdp", "compression": "bf16"}, {"precision": "bf16"}),
        ({"strategy": "zero"}, {"precision": "fp16"}),
        ({"strategy": "zero", "compression": "powersgd"}, {}),
        ({"static_graph": True, "overlap": True}, {}),
    ],
)
def test_settings_that_agree_are_taken(parallel: dict[str, Any], settings: dict[str, Any]) -> None:
    assert chosen(parallel, **settings).strategy == parallel.get("strategy", "ddp")
