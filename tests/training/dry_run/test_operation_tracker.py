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


def track(network: nn.Module, images: int) -> tuple[OperationTracker, int]:
    """Run forward and backward; return the tracker and the bytes at the end of the forward pass."""
    tracker = OperationTracker(network.parameters())
    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(tracker.untrack_gradient)
    picture = torch.randn(images, 3, 8, 8)
    with tracker:
        output = network(picture)
        activation_bytes = tracker.bytes
        output.sum().backward()
    return tracker, activation_bytes


def test_flops_of_forward_and_backward_equal_those_of_torch() -> None:
    network = build_network()
    with FlopCounterMode(display=False) as counter:
        network(torch.randn(2, 3, 8, 8)).sum().backward()
    network.zero_grad()
    tracker, _ = track(network, 2)
    assert tracker.flops == counter.get_total_flops()


def test_bytes_after_the_forward_pass_are_those_of_activations() -> None:
    _, activation_bytes = track(build_network(), 2)
    # First convolution, its activation, second convolution (flattened without a copy), output.
    assert activation_bytes == 2 * 4 * (8 * 64 + 8 * 64 + 8 * 64 + 4)


def test_freed_tensors_are_not_counted() -> None:
    tracker, activation_bytes = track(build_network(), 2)
    gc.collect()
    assert tracker.bytes == tracker.batch_independent_bytes == 0
    assert tracker.peak_bytes > activation_bytes


def test_tensors_computed_from_parameters_alone_are_counted_separately() -> None:
    network = nn.Linear(64, 64, bias=False)
    tracker = OperationTracker(network.parameters())
    with tracker:
        squared = network.weight.square()
        mixed = torch.ones(1, 64) @ squared
    assert tracker.batch_independent_bytes == 64 * 64 * 4
    assert tracker.bytes == 2 * 64 * 4
    del mixed


def test_views_of_tensors_older_than_the_tracker_are_not_counted() -> None:
    images = torch.zeros(4, 3, 8, 8)
    tracker = OperationTracker([])
    with tracker:
        views = [images.detach(), images[:2], images.flatten(1)]
        images.mul_(2)
    assert tracker.bytes == tracker.peak_bytes == 0
    with tracker:
        doubled = images.detach() * 2
    assert tracker.bytes == doubled.nbytes
    del views


def test_a_storage_behind_several_tensors_counts_once() -> None:
    picture = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    batch = FaceBatch(picture, torch.zeros(2, dtype=torch.int64))
    assert count_bytes([batch, picture[:1]]) == picture.nbytes + 16


def test_count_flops_counts_the_forward_pass() -> None:
    network = nn.Linear(8, 4)
    assert count_flops(lambda: network(torch.zeros(2, 8))) == 2 * 2 * 8 * 4
