from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fusionray.errors import ConfigInvalid
from fusionray.serving.config import load_service

ROOT = Path(__file__).resolve().parents[2]


def test_the_file_of_serve_run_is_read() -> None:
    service = load_service(str(ROOT / "serve" / "config.yaml"), [])
    assert [model.bundle for model in service.config.models] == ["runs/demo/bundle"]
    assert (service.host, service.port) == ("127.0.0.1", 8000)


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(
        yaml.safe_dump({"models": [{"bundle": "a"}, {"name": "b", "bundle": "b"}], "ingress": {"num_replicas": 2}})
    )
    service = load_service(str(file), ["bundle=c"], port=9000)
    assert ([model.bundle for model in service.config.models], service.config.ingress.num_replicas) == (["c"], 2)
    assert (service.host, service.port) == ("127.0.0.1", 9000)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"bundle": "a", "replicas": 2}, "replicas"),
        ({"applications": [{"import_path": "other:app"}]}, "contains 0 applications"),
        ({"applications": [{"import_path": "serve.app:build", "args": {"bundle": "a", "port": 1}}]}, "port"),
        ({}, "models"),
        ({"models": [{"bundle": "a"}, {"bundle": "b"}]}, "two models have the same name"),
    ],
)
def test_an_invalid_file_is_named_with_its_key(tmp_path: Path, tree: dict[str, object], words: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigInvalid, match=words) as caught:
        load_service(str(file), [])
    assert str(file) in str(caught.value)
