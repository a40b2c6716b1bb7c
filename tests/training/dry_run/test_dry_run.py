from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fusionray.cli import main, parse
from fusionray.commands.learning import train_overrides
from fusionray.errors import ConfigInvalid, ShardMismatch
from fusionray.training.config import TrainConfig
from fusionray.training.dry_run.dry_run import dry_run, load_dry_config
from tests.support.tiny_shards import write_tiny_shards

TINY = [
    "data.size=32",
    "recipe.generator={size: 32, channels: [8, 16], bottleneck_blocks: 1, style_length: 16, source: null}",
    "recipe.discriminator={channels: [4, 8], scales: 2}",
    "recipe.matching_from_layer=1",
    "engine.precision=fp32",
    "workers.device=cpu",
]


def load(*overrides: str, preset: str = "fast-128") -> TrainConfig:
    return load_dry_config(None, [*TINY, *overrides], preset)


def test_it_shows_everything_and_takes_a_step_with_every_phase() -> None:
    said: list[str] = []
    found = dry_run(load("engine.global_batch=64", "workers.num_workers=2"), said.append)
    tree = yaml.safe_load(said[0])
    assert tree["recipe"]["generator"]["channels"] == [8, 16]
    text = "\n".join(said[1:])
    for part in (
        "profile cpu",
        "preset:identity-small: untrained here",
        "parameters: generator 0.0",
        "FLOP a training step (generator",
        "every 16 steps",
        "inference",
        "strategy: ddp",
        "images a step: 64 over 2 worker(s), 32 a worker at once",
        "2 workers, GiB: ddp",
        "peak learning rates at 64 images a step: generator 0.0008",
        "one step of 1 random image(s), all phases due",
    ):
        assert part in text, part
    assert {"identity", "adversarial", "cycle", "discriminator", "gradient_penalty"} <= found.losses.keys()
    assert found.footprint.flops > 0


def test_auto_is_resolved_by_the_estimate() -> None:
    roomy = dry_run(load("engine.batch_size=auto", "engine.global_batch=256"), lambda line: None)
    tight = dry_run(
        load("engine.batch_size=auto", "engine.global_batch=256", "engine.memory_gib=0.2"), lambda line: None
    )
    assert 0 < tight.plan.batch_size < roomy.plan.batch_size <= 256
    assert tight.plan.estimate.total < 0.2 * 2**30


def test_a_global_batch_may_be_left_to_the_memory() -> None:
    plan = dry_run(load("engine.global_batch=auto", "workers.num_workers=2"), lambda line: None).plan
    assert plan.global_batch == 2 * plan.batch_size > 0


def test_the_identity_recipe_has_a_dry_run_of_its_own() -> None:
    said: list[str] = []
    config = load_dry_config(None, ["data.size=64", "workers.device=cpu"], "identity-small")
    found = dry_run(config, said.append)
    assert set(found.losses) == {"classification", "classification_accuracy"}
    assert any("built for 1000 people" in line for line in said)


def test_the_attributes_recipe_has_a_dry_run_of_its_own_but_not_on_photographs(tmp_path: Path) -> None:
    said: list[str] = []
    found = dry_run(load_dry_config(None, ["workers.device=cpu"], "attributes-small"), said.append)
    assert set(found.losses) == {"pose", "expression", "light"}
    assert not any("margin head" in line for line in said)
    write_tiny_shards(tmp_path, size=32)
    overrides = ["workers.device=cpu", "data.size=32", f"data.shards={tmp_path}"]
    with pytest.raises(ShardMismatch, match="holds photographs"):
        dry_run(load_dry_config(None, overrides, "attributes-small"), said.append)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match=r"recipe\.generator\.size=32 and data\.size=64"):
        dry_run(load("data.size=64"), lambda line: None)


def test_shards_need_not_be_named_and_may_be_missing(tmp_path: Path) -> None:
    assert load().data.shards == "none"
    dry_run(load(f"data.shards={tmp_path}/nothing"), lambda line: None)


def test_preset_file_and_overrides_win_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: fast-128\nengine: {clip_norm: 2.0, global_batch: 16}\n")
    config = load_dry_config(str(file), ["engine.global_batch=8"], None)
    assert (config.data.size, config.engine.clip_norm, config.engine.global_batch) == (128, 2.0, 8)


def test_the_command_needs_no_ray_and_writes_nothing(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from fusionray.cli import main\n"
        f"code = main(['train', '--preset', 'fast-128', '--dry-run', *{TINY!r}])\n"
        "print(json.dumps([code, 'ray' in sys.modules, 'mlflow' in sys.modules]))"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root / "platform"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, False, False], done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_in_one_line_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "fast-128", "--dry-run", "engine.accumulate=2"]) == 1
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert "engine.accumulate" in error[0]


@pytest.mark.parametrize(("extra", "steps"), [([], 5), (["tracking.profile_steps=2"], 2)])
def test_profile_asks_for_five_steps_unless_another_number_is_set(extra: list[str], steps: int) -> None:
    options = parse(["train", "--profile", *extra])
    assert load_dry_config(None, train_overrides(options), "fast-128").tracking.profile_steps == steps
