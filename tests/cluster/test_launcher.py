"""The files of Ray's cluster launcher, read by Ray itself; their commands by the command line of Ray."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli

from tests.cluster.manifests import ROOT

FILES = ("on-premise.yaml", "aws.yaml")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "cluster" / "launcher" / name).read_text())
    return found


@pytest.mark.parametrize("name", FILES)
def test_ray_reads_the_file_and_refuses_a_key_that_is_misspelt(name: str) -> None:
    validate_config(prepare_config(read(name)))
    with pytest.raises(Exception, match="max_workerz"):
        validate_config(read(name) | {"max_workerz": 3})


@pytest.mark.parametrize("name", FILES)
def test_commands_are_those_of_ray(name: str) -> None:
    config = read(name)
    for command in (*config["head_start_ray_commands"], *config["worker_start_ray_commands"]):
        program, verb, *arguments = shlex.split(command)
        assert program == "ray"
        # An unknown option is an error.
        options = cli.commands[verb].make_context(verb, arguments).params
        if options.get("head"):
            assert (options["port"], options["dashboard_host"]) == (6379, "127.0.0.1")
    assert "--env=RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
