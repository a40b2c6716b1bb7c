from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ({"output": "s3://bucket/out"}, "output=s3://bucket/out"),
        ({"output": "/out", "runs": "s3://bucket/runs"}, "runs=s3://bucket/runs"),
    ],
)
def test_an_evaluation_without_a_local_folder_names_its_tracker(places: dict[str, str], named: str) -> None:
    config = EvaluateConfig.model_validate({"model": "m", "data": "d", **places})
    with pytest.raises(ValueError, match=f"^tracking_uri: .* since {named} is not a local folder"):
        config.choose_tracker()
    named_store = config.model_copy(update={"tracking_uri": "http://tracker:5000"})
    assert named_store.choose_tracker() == "http://tracker:5000"


def test_an_evaluation_keeps_its_tracker_with_the_runs(tmp_path: Path) -> None:
    config = EvaluateConfig(model="m", data="d", output="s3://bucket/out", runs=str(tmp_path))
    assert config.choose_tracker() == f"sqlite:///{tmp_path}/mlflow.db"
