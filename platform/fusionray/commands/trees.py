"""The configuration tree of each verb; imported on demand, since most trees import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fusionray.commands.bench import BENCHMARKS

if TYPE_CHECKING:
    from fusionray.config import Section


def load_prepare() -> type[Section]:
    from fusionray.data.prepare.config import PrepareConfig

    return PrepareConfig


def load_train() -> type[Section]:
    from fusionray.training.config import TrainConfig

    return TrainConfig


def load_tune() -> type[Section]:
    from fusionray.tuning.config import TuneConfig

    return TuneConfig


def load_evaluate() -> type[Section]:
    from fusionray.evaluation.config import EvaluateConfig

    return EvaluateConfig


def load_export() -> type[Section]:
    from fusionray.export.export import ExportConfig

    return ExportConfig


def load_import() -> type[Section]:
    from fusionray.export.import_layouts import ImportConfig

    return ImportConfig


def load_compile() -> type[Section]:
    from fusionray.runtime.config import RuntimeConfig

    return RuntimeConfig


def load_serve() -> type[Section]:
    from fusionray.commands.service import load_service_section

    return load_service_section()


def load_plan() -> type[Section]:
    from fusionray.planning.config import PlanConfig

    return PlanConfig


TREES: Mapping[str, Callable[[], type[Section]]] = {
    "prepare": load_prepare,
    "train": load_train,
    "tune": load_tune,
    "evaluate": load_evaluate,
    "export": load_export,
    "import": load_import,
    "compile": load_compile,
    "serve": load_serve,
    "plan": load_plan,
    **{f"bench {each.name}": each.load_section for each in BENCHMARKS},
}
