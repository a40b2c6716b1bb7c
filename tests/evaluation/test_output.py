from __future__ import annotations

import shlex

import numpy as np

from fusionray.cli import parse
from fusionray.config import load_config
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.report.examples import choose_examples, spread_examples
from fusionray.evaluation.report.output import describe_command


def test_the_command_says_every_setting_that_is_not_the_default() -> None:
    config = EvaluateConfig.model_validate(
        {
            "model": "/runs/my model",
            "data": "/shards",
            "output": "/out",
            "pairs": 7,
            "face_fusion": {
                "attributes": None,
                "features": {"file": "/inception.pt", "size": 299},
                "clips": {"files": ["/a.mp4"]},
            },
            "workers": {"num_workers": 3},
        }
    )
    command, *words = shlex.split(describe_command(config))
    assert command == "fusionray"
    options = parse(words)
    places = [f"model={options.model}", f"data={options.data}", f"output={options.output}"]
    assert load_config(EvaluateConfig, overrides=[*options.overrides, *places]) == config
    assert "pairs=7" in words
    assert not [word for word in words if "people=" in word]


def test_examples_are_the_best_the_middle_and_the_worst() -> None:
    score = np.array([*range(20), np.nan], np.float32)
    chosen = choose_examples(score)
    assert score[chosen["best"]].tolist() == [19, 18, 17]
    assert score[chosen["median"]].tolist() == [10, 9, 8]
    assert score[chosen["worst"]][:2].tolist() == [1, 0]
    assert chosen["worst"][-1] == 20
    assert choose_examples(np.array([1.0, 2.0]))["median"].tolist() == [1, 0]


def test_the_grid_goes_from_the_best_pair_to_the_worst_in_even_steps() -> None:
    assert spread_examples(np.arange(11, dtype=np.float32)).tolist() == [10, 8, 6, 4, 2, 0]
    assert spread_examples(np.array([1.0, 3.0, 2.0])).tolist() == [1, 2, 0]
