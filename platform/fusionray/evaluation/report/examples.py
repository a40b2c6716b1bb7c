"""The pairs that a report shows: some over the whole ranking, then the best, the median and the worst ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusionray.evaluation.report.drawing import draw_grid
from fusionray.metrics.measure import Columns
from fusionray.metrics.protocol import Rows
from fusionray.reporting.page import PageSection
from fusionray.reporting.parts import PageImage, PartGroup

GRID_ROWS = 6
SHOWN_ROWS = 3
SHOWN = {"best": "Best", "median": "Median", "worst": "Worst"}
HEADS = ("source", "target", "fused", "true fusion")

# From rows of the list of pairs to columns of crops, uint8 [R,3,S,S] each.
Fuse = Callable[[Rows], Sequence[Tensor]]


@dataclass(frozen=True)
class Ranking:
    """What pairs are ranked by, higher is better, and how they are shown.

    `scores`: the score of each pair, [N]; `what`: its name; `heads`: names of the columns that `fuse` gives;
    `describe`: the figures of one pair in words.
    """

    scores: NDArray[np.float32]
    what: str
    heads: Sequence[str]
    fuse: Fuse
    describe: Callable[[int], str]


def show_examples(ranking: Ranking) -> Iterator[PageSection]:
    """Show pairs: some that are spread over the ranking, then the best, median and worst ones with their figures."""
    yield show_grid(ranking)
    yield show_extremes(ranking)


def show_grid(ranking: Ranking) -> PageSection:
    """Show pairs that are spread over the ranking as one picture, a row each."""
    columns = ranking.fuse(spread_examples(ranking.scores))
    heads = ranking.heads[: len(columns)]
    alt = f"{len(columns[0])} pairs from best to worst, a row each: {', '.join(heads)}"
    note = (
        f"Evenly over the ranking of {len(ranking.scores)} pairs, the best on top, the worst at the bottom. Pairs are "
        f"ranked by the {ranking.what}."
    )
    return PageSection("Examples", [PageImage("grid", alt, draw_grid(columns), column_names=heads)], note, narrow=True)


def show_extremes(ranking: Ranking) -> PageSection:
    """Show the best, median and worst pairs, each with its own figures beneath."""
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


def rank_pairs(scores: Columns, fuse: Fuse) -> Ranking:
    """Rank fused pairs by their gain in SSIM, or by similarity to the source if there is no true fusion."""
    if "ssim_to_truth" in scores:
        score_N = scores["ssim_to_truth"] - scores["ssim_target"]
        what = "gain in SSIM to the true fusion over the unchanged target (ssim_to_truth - ssim_target)"
    else:
        score_N, what = scores["cosine_to_source"], "similarity of fused and source to the evaluator (cosine_to_source)"
    return Ranking(score_N, what, HEADS, fuse, partial(describe_pair, scores))


def describe_pair(scores: Columns, row: int) -> str:
    """Put the main figures of a pair into words."""
    words = []
    if "ssim_to_truth" in scores:
        near, target = scores["ssim_to_truth"][row], scores["ssim_target"][row]
        words.append(f"SSIM to the true fusion {near:.3f} ({near - target:+.3f} over the target)")
    words.append(f"cosine to source {scores['cosine_to_source'][row]:.3f}")
    words.append(f"nearest person is {'the source' if scores['retrieval_top1'][row] else 'somebody else'}")
    return ", ".join(words)


def sort_pairs(score_N: NDArray[np.float32]) -> Rows:
    """Sort the rows from the highest score to the lowest; nan counts as lowest."""
    return np.argsort(-np.nan_to_num(score_N, nan=-np.inf), kind="stable")


def spread_examples(score_N: NDArray[np.float32]) -> Rows:
    """Choose rows that are spread evenly from the highest score to the lowest."""
    order = sort_pairs(score_N)
    return order[np.linspace(0, len(order) - 1, min(GRID_ROWS, len(order))).round().astype(np.int64)]


def choose_examples(score_N: NDArray[np.float32]) -> dict[str, Rows]:
    """Choose the rows with the highest, middle and lowest scores, each from better to worse."""
    order = sort_pairs(score_N)
    count = min(SHOWN_ROWS, len(order))
    middle = (len(order) - count) // 2
    return {"best": order[:count], "median": order[middle : middle + count], "worst": order[-count:]}
