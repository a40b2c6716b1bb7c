"""The paths of the evaluator networks: small enough to send to a worker, which builds the networks from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusionray.checkpoint.models import load_encoder, load_reader
from fusionray.faces.align import load_template
from fusionray.metrics.feature_network import FeatureNetwork, FeaturesConfig
from fusionray.metrics.fusion_metrics import Evaluators
from fusionray.metrics.landmarks import CropLandmarks


@dataclass(frozen=True)
class EvaluatorPaths:
    """Checkpoint or run folders of the evaluators; every worker must be able to read them."""

    encoder: str
    reader: str | None
    features: FeaturesConfig | None
    with_landmarks: bool

    def build(self, device: torch.device, *, template: str, size: int) -> Evaluators:
        """Build the evaluators on `device`, for crops of `size` px that are aligned to `template`.

        Raises: CheckpointMissing, InputMissing.
        """
        return Evaluators(
            load_encoder(self.encoder).build().to(device),
            load_reader(self.reader).to(device) if self.reader else None,
            FeatureNetwork(self.features).to(device) if self.features else None,
            CropLandmarks(load_template(template), size) if self.with_landmarks else None,
        )
