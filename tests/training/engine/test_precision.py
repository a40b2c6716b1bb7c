from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
import torch

from fusionray.training.engine.precision import Precision, PrecisionName, load_scaler_state, scaler_state

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", get_args(PrecisionName))
def test_autocast_computes_matrix_products_in_the_dtype(name: PrecisionName) -> None:
    precision = Precision(name, CPU)
    with precision.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert precision.dtype == product.dtype == DTYPES[name]


@pytest.fixture
def process_settings() -> Iterator[None]:
    cudnn, products = torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.benchmark
    yield
    cudnn.allow_tf32, cudnn.benchmark = before
    torch.set_float32_matmul_precision(products)


@pytest.mark.usefixtures("process_settings")
@pytest.mark.parametrize(("device", "measures"), [("cuda", torch.version.hip is None), ("cpu", False)])
@pytest.mark.parametrize("name", get_args(PrecisionName))
def test_only_fp32_forbids_tf32_and_cudnn_chooses_by_time_on_gpus(
    name: PrecisionName, device: str, measures: bool
) -> None:
    Precision(name, torch.device(device)).apply_to_process()
    assert torch.backends.cudnn.allow_tf32 == (name != "fp32")
    assert torch.get_float32_matmul_precision() == ("highest" if name == "fp32" else "high")
    assert torch.backends.cudnn.benchmark == measures


def test_a_saved_scaler_continues_with_its_scale_and_growth() -> None:
    saved, loaded = (Precision("fp16", CPU).build_scaler() for _ in range(2))
    saved.load_state_dict({**saved.state_dict(), "scale": 2.0**9, "_growth_tracker": 7})
    state = scaler_state(saved)
    assert {key: (value.dtype, value.ndim) for key, value in state.items()} == {
        "scale": (torch.float64, 0),
        "growth": (torch.int64, 0),
    }
    load_scaler_state(loaded, state)
    assert loaded.state_dict() == saved.state_dict()


def test_a_disabled_scaler_has_no_state() -> None:
    scaler = Precision("bf16", CPU).build_scaler()
    assert scaler_state(scaler) == {}
    load_scaler_state(scaler, {})
    assert not scaler.is_enabled()
