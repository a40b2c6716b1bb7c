"""The model of a step against what others published: how good a plan is from one batch size, and from two."""

from __future__ import annotations

import statistics

from fusionray.planning.published import PublishedCheck, check_published


def choose(name: str, origin: str) -> list[PublishedCheck]:
    found = [check for check in check_published() if check.name.startswith(name) and check.origin == origin]
    assert found
    return found


def test_two_batch_sizes_predict_eight_gpus_within_some_percent() -> None:
    errors = [abs(check.error) for check in choose("StyleGAN3", "1 and 4 GPUs")]
    assert len(errors) == 6
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.12


def test_one_batch_size_is_too_hopeful_where_each_gpu_gets_fewer_images() -> None:
    one, two = (choose("StyleGAN3", origin) for origin in ("1 GPU", "1 and 4 GPUs"))
    assert len(one) == 16
    assert all(-0.25 < check.error < 0 for check in one)
    both = {check.name for check in two}
    assert statistics.median(check.error for check in one if check.name in both) < -0.13


def test_more_nodes_are_predicted_a_little_too_fast() -> None:
    errors = {check.name: check.error for check in choose("ArcFace", "16 GPUs")}
    assert -0.06 < errors["ArcFace r100"] < 0
    # There, each GPU got a quarter of the images.
    assert -0.2 < errors["ArcFace r50"] < -0.1
    assert -0.07 < choose("ArcFace", "8 GPUs")[0].error < 0
