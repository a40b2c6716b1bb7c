"""By what a family's models are measured: held-out rows, the validator of a run, the scorer of an evaluation.

Shape suffixes: N rows, M draws, R roles (one: single rows; two: source and target), S side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class HeldOutRows(Protocol):
    """The validation rows of a run, encoded; the input of a `Validator`."""

    @property
    def groups(self) -> Sequence[str]:
        """Return the group of each row [N]: a person, or in shards of pictures the picture that the row is cut from."""

    def decode(self, rows: NDArray[np.int64]) -> Tensor:
        """Decode rows to uint8 [N,3,S,S] RGB on the CPU."""

    def batches(self, draws: NDArray[np.int64], size: int) -> Iterator[Any]:
        """Yield batches of at most `size` draws, as the family collates them, on the CPU; `draws` int64 [M,R]."""

    def draw(self, num_roles: int, seed: int, source_folder: str | None = None) -> NDArray[np.int64]:
        """Draw every row once, int64 [N,R], with a partner if there are two roles; `RecipeFamily.source_folder`."""


class Validator(Protocol):
    """An independent validation of a recipe while it trains; as `Recipe.measure` and `summarise`, on its own draws."""

    @property
    def draws(self) -> NDArray[np.int64]:
        """Return the draws [M,R] to measure."""

    def measure(self, recipe: Any, networks: Mapping[str, nn.Module], batch: Any) -> dict[str, Tensor]:
        """Measure a batch of draws: columns by name, each with one entry for each draw."""

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metrics by name from the columns of all draws, on the CPU."""


class PictureScorer(Protocol):
    """Scores the outputs of a model of pictures in `fusionray evaluate`.

    `ratios`: further metrics, each the quotient of the means of two scores. `ranking_name`: describes what `rank`
    returns. `roles`: names of the inputs.
    """

    @property
    def ratios(self) -> Mapping[str, tuple[str, str]]: ...

    @property
    def ranking_name(self) -> str: ...

    @property
    def roles(self) -> Sequence[str]: ...

    def score(self, output: Tensor, pictures: Sequence[Tensor]) -> dict[str, Tensor]:
        """Score outputs for the inputs of all roles, float32 [N,3,S,S] in [-1,1] each: float32 [N] by name."""

    def rank(self, scores: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the numbers by which examples are ranked [N], from all scores; the highest is the best."""

    def reference(self, pictures: Sequence[Tensor]) -> Tensor | None:
        """Return the reference output for the inputs, to be shown beside the output; None if there is none."""
