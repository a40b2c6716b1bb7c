from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fusionray.errors import ConfigInvalid
from serve.schema import load_service

ROOT = Path(__file__).resolve().parents[2]


def test_the_file_of_serve_run_is_understood() -> None:
    service = load_service(str(ROOT / "serve" / "config.yaml"), [])
    assert service.config.bundle == "runs/demo/bundle"
    assert (service.host, service.port) == ("127.0.0.1", 8000)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump({"bundle": "a", "num_replicas": 2}))
    service = load_service(str(file), ["bundle=b"], port=9000)
    assert (service.config.bundle, service.config.num_replicas) == ("b", 2)
    assert (service.host, service.port) == ("127.0.0.1", 9000)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"bundle": "a", "replicas": 2}, "replicas"),
        ({"applications": [{"import_path": "other:app"}]}, "holds 0 applications"),
        ({"applications": [{"import_path": "serve.app:build", "args": {"bundle": "a", "port": 1}}]}, "port"),
        ({}, "bundle"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_key(tmp_path: Path, tree: dict[str, object], words: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigInvalid, match=words) as caught:
        load_service(str(file), [])
    assert str(file) in str(caught.value)
