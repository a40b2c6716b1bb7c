from __future__ import annotations

import gc

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fusionray.training.dry_run.operation_tracker import OperationTracker, count_bytes, count_flops
from fusionray.types import FaceBatch


def build_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, 4)
    )


def watch(network: nn.Module, images: int) -> tuple[OperationTracker, int]:
    """Run forward and backward; return the watcher and the bytes at the end of the forward pass."""
    watcher = OperationTracker(network.parameters())
    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(watcher.release_gradient)
    picture = torch.randn(images, 3, 8, 8)
    with watcher:
        output = network(picture)
        kept = watcher.bytes
        output.sum().backward()
    return watcher, kept


def test_operations_equal_what_torch_counts_forward_and_backward() -> None:
    network = build_network()
    with FlopCounterMode(display=False) as counter:
        network(torch.randn(2, 3, 8, 8)).sum().backward()
    network.zero_grad()
    watcher, _ = watch(network, 2)
    assert watcher.flops == counter.get_total_flops()


def test_kept_bytes_are_the_activations_and_nothing_else() -> None:
    _, kept = watch(build_network(), 2)
    # First convolution, its activation, second convolution (flattened without a copy), output.
    assert kept == 2 * 4 * (8 * 64 + 8 * 64 + 8 * 64 + 4)


def test_what_was_followed_is_forgotten_when_it_is_freed() -> None:
    watcher, kept = watch(build_network(), 2)
    gc.collect()
    assert watcher.bytes == watcher.fixed_bytes == 0
    assert watcher.peak_bytes > kept


def test_what_is_made_of_parameters_alone_does_not_count_by_the_sample() -> None:
    network = nn.Linear(64, 64, bias=False)
    watcher = OperationTracker(network.parameters())
    with watcher:
        squared = network.weight.square()
        mixed = torch.ones(1, 64) @ squared
    assert watcher.fixed_bytes == 64 * 64 * 4
    assert watcher.bytes == 2 * 64 * 4
    del mixed


def test_a_storage_behind_several_tensors_counts_once() -> None:
    picture = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    batch = FaceBatch(picture, torch.zeros(2, dtype=torch.int64))
    assert count_bytes([batch, picture[:1]]) == picture.nbytes + 16


def test_inference_keeps_no_graph_and_counts_the_forward_pass() -> None:
    network = nn.Linear(8, 4)
    assert count_flops(lambda: network(torch.zeros(2, 8))) == 2 * 2 * 8 * 4
