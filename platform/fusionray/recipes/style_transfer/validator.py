"""Validation of style transfer during training: the metrics of `fusionray evaluate` on held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fusionray.recipes.style_transfer.pair_recipe import PairRecipe, StylePairs, score_pairs, summarise_scores
from fusionray.recipes.style_transfer.scoring import StyleScorer


class StyleValidator:
    """Scores a recipe on held-out pairs of style and content by a network that does not supervise it.

    `draws`: the pairs, int64 [M,2].
    """

    def __init__(self, scorer: StyleScorer, draws: NDArray[np.int64]) -> None:
        self.scorer = scorer
        self.draws = draws

    def measure(self, recipe: PairRecipe, networks: Mapping[str, nn.Module], batch: StylePairs) -> dict[str, Tensor]:
        """Score the painted pictures of a batch, [N] by name."""
        return score_pairs(self.scorer, recipe.build_model(networks), batch)

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metrics named `validation_<name>`, with the names of an evaluation."""
        return summarise_scores(columns)
