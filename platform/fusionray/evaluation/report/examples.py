"""The example pairs of a report: some over the whole ranking, then the best, the median and the worst ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusionray.evaluation.report.charts import draw_grid
from fusionray.metrics.fusion_metrics import MetricColumns
from fusionray.metrics.pair_plan import RowIndices
from fusionray.reporting.page import PageSection
from fusionray.reporting.parts import PageImage, PartGroup

GRID_ROWS = 6
SHOWN_ROWS = 3
SHOWN = {"best": "Best", "median": "Median", "worst": "Worst"}
HEADS = ("source", "target", "fused", "true fusion")

# Maps rows of the list of pairs to columns of crops, uint8 [R,3,S,S] each.
Fuse = Callable[[RowIndices], Sequence[Tensor]]


@dataclass(frozen=True)
class Ranking:
    """The score by which pairs are ranked, higher is better, and how the pairs are shown.

    `scores`: the score of each pair, [N]; `score_name`: its description; `heads`: names of the columns that `fuse`
    returns; `describe`: the figures of one pair in words.
    """

    scores: NDArray[np.float32]
    score_name: str
    heads: Sequence[str]
    fuse: Fuse
    describe: Callable[[int], str]


def show_examples(ranking: Ranking) -> Iterator[PageSection]:
    """Show pairs: some that are spread over the ranking, then the best, median and worst ones with their figures."""
    yield show_grid(ranking)
    yield show_extremes(ranking)


def show_grid(ranking: Ranking) -> PageSection:
    """Show pairs that are spread over the ranking as one image, a row for each pair."""
    columns = ranking.fuse(spread_examples(ranking.scores))
    heads = ranking.heads[: len(columns)]
    alt = f"{len(columns[0])} pairs from best to worst, a row each: {', '.join(heads)}"
    note = (
        f"Evenly over the ranking of {len(ranking.scores)} pairs, the best on top, the worst at the bottom. Pairs are "
        f"ranked by the {ranking.score_name}."
    )
    return PageSection("Examples", [PageImage("grid", alt, draw_grid(columns), column_names=heads)], note, narrow=True)


def show_extremes(ranking: Ranking) -> PageSection:
    """Show the best, median and worst pairs, each with its own figures."""
    order, groups = sort_pairs(ranking.scores).tolist(), []
    for name, rows in choose_examples(ranking.scores).items():
        columns, strips = ranking.fuse(rows), []
        heads = ranking.heads[: len(columns)]
        for number, row in enumerate(rows.tolist()):
            png = draw_grid([column[number : number + 1] for column in columns])
            alt = f"{SHOWN[name]} pair {number + 1}: {', '.join(heads)}"
            caption = f"Rank {order.index(row) + 1} of {len(order)}: {ranking.describe(row)}"
            strips.append(PageImage(f"{name}-{number + 1}", alt, png, caption, heads))
        groups.append(PartGroup(SHOWN[name], strips))
    note = f"{len(groups[0].parts)} of each kind, by the same ranking, each with its own figures."
    return PageSection("Best, median and worst pairs", groups, note, columns=True)


def rank_pairs(scores: MetricColumns, fuse: Fuse) -> Ranking:
    """Rank fused pairs by their gain in SSIM, or by similarity to the source if there is no true fusion."""
    if "ssim_to_truth" in scores:
        score_N = scores["ssim_to_truth"] - scores["ssim_target"]
        name = "gain in SSIM to the true fusion over the unchanged target (ssim_to_truth - ssim_target)"
    else:
        score_N, name = scores["cosine_to_source"], "similarity of fused and source to the evaluator (cosine_to_source)"
    return Ranking(score_N, name, HEADS, fuse, partial(describe_pair, scores))


def describe_pair(scores: MetricColumns, row: int) -> str:
    """Describe the main figures of a pair in one line."""
    words = []
    if "ssim_to_truth" in scores:
        near, target = scores["ssim_to_truth"][row], scores["ssim_target"][row]
        words.append(f"SSIM to the true fusion {near:.3f} ({near - target:+.3f} over the target)")
    words.append(f"cosine to source {scores['cosine_to_source'][row]:.3f}")
    words.append(f"nearest person is {'the source' if scores['retrieval_top1'][row] else 'another person'}")
    return ", ".join(words)


def sort_pairs(score_N: NDArray[np.float32]) -> RowIndices:
    """Sort the rows from the highest score to the lowest; nan counts as lowest."""
    return np.argsort(-np.nan_to_num(score_N, nan=-np.inf), kind="stable")


def spread_examples(score_N: NDArray[np.float32]) -> RowIndices:
    """Choose rows that are spread evenly from the highest score to the lowest."""
    order = sort_pairs(score_N)
    return order[np.linspace(0, len(order) - 1, min(GRID_ROWS, len(order))).round().astype(np.int64)]


def choose_examples(score_N: NDArray[np.float32]) -> dict[str, RowIndices]:
    """Choose the rows with the highest, middle and lowest scores, each from better to worse."""
    order = sort_pairs(score_N)
    count = min(SHOWN_ROWS, len(order))
    middle = (len(order) - count) // 2
    return {"best": order[:count], "median": order[middle : middle + count], "worst": order[-count:]}
