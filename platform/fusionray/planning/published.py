"""The model of a step, tried on published times: StyleGAN3 on 1 to 8 GPUs, ArcFace on 8 to 32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from fusionray.planning.config import NetworkConfig
from fusionray.planning.scaling import exchange_seconds, fit_model, predict_step

GPUS_PER_NODE = 8
FLOAT_BYTES, HALF_BYTES = 4, 2
# Networks whose gradients are exchanged.
GAN_NETWORKS = 2


@dataclass(frozen=True)
class PublishedCheck:
    """A published time of a step, what the model predicts for it, and from what."""

    name: str
    workers: int
    measured_seconds: float
    predicted_seconds: float
    origin: str

    @property
    def error(self) -> float:
        """The prediction over the measurement, less 1: below zero, the plan is too hopeful."""
        return self.predicted_seconds / self.measured_seconds - 1


def check_published() -> list[PublishedCheck]:
    """Predict published times of more GPUs from those of fewer."""
    text = resources.files(__package__).joinpath("published.yaml").read_text(encoding="utf-8")
    tables = yaml.safe_load(text)
    return [*check_stylegan3(tables["stylegan3"]), *check_arcface(tables["arcface"])]


def check_stylegan3(table: Mapping[str, Any]) -> list[PublishedCheck]:
    """Predict a step on eight GPUs from one GPU alone; and, where another batch was used there, from one and four."""
    found = []
    for name, rows in table["rows"].items():
        card = name.split("-")[-1]
        network = NetworkConfig(node_gbytes_per_second=table["node_gbytes_per_second"][card])
        sent = table["parameters"] * FLOAT_BYTES
        passes, seconds = {}, {}
        for gpus, images, kimg_seconds in rows:
            step = kimg_seconds * table["batch"] / 1000
            exchange = exchange_seconds(network, gpus, GPUS_PER_NODE, sent, GAN_NETWORKS)
            # A step is so many passes, then one exchange.
            passes[gpus] = images
            seconds[gpus] = (step - exchange) * gpus * images / table["batch"]
        step = rows[-1][2] * table["batch"] / 1000
        calibrations = {"1 GPU": (1,), "1 and 4 GPUs": (1, 4)} if passes[1] != passes[4] else {"1 GPU": (1,)}
        for origin, used in calibrations.items():
            model = fit_model(
                tuple(passes[gpus] for gpus in used),
                tuple(seconds[gpus] for gpus in used),
                spread=0.0,
                exchanged_bytes=sent,
                messages=GAN_NETWORKS,
            )
            predicted = predict_step(model, network, 8, GPUS_PER_NODE, passes[8])
            found.append(PublishedCheck(f"StyleGAN3 {name}", 8, step, predicted.seconds, origin))
    return found


def check_arcface(table: Mapping[str, Any]) -> list[PublishedCheck]:
    """Predict the next larger number of GPUs from the one before it."""
    network = NetworkConfig(
        node_gbytes_per_second=table["node_gbytes_per_second"],
        between_nodes_gbits_per_second=table["between_nodes_gbits_per_second"],
    )
    found = []
    for name, row in table["rows"].items():
        sent = row["parameters"] * HALF_BYTES
        for (few, few_batch, few_rate), (more, batch, rate) in zip(row["measured"], row["measured"][1:], strict=False):
            own = few * few_batch / few_rate - exchange_seconds(network, few, GPUS_PER_NODE, sent, 1)
            model = fit_model((few_batch,), (own,), spread=0.0, exchanged_bytes=sent, messages=1)
            predicted = predict_step(model, network, more, GPUS_PER_NODE, batch)
            found.append(PublishedCheck(f"ArcFace {name}", more, more * batch / rate, predicted.seconds, f"{few} GPUs"))
    return found
