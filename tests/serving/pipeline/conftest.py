"""The port of the services that the modules here start and stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray import serve

from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.ray_cluster.connection import find_free_port


@pytest.fixture(scope="module")
def port(no_service: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = find_free_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv(KEY_VARIABLE, raising=False)
        environment.setenv(ROOT_VARIABLE, str(tmp_path_factory.mktemp("root")))
        yield port
    serve.shutdown()
