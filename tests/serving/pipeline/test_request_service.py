from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import Mock

from fusionray.safety.audit import AuditConfig
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import ServeConfig
from fusionray.serving.pipeline.request_service import NamedInputs, RequestService
from fusionray.serving.schema import IdentityReply, Problem


async def fail() -> IdentityReply:
    raise RuntimeError("what nobody expected")


def test_an_unexpected_error_is_a_problem_with_a_line_in_the_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    service = RequestService(ServeConfig(bundle="tiny", audit=AuditConfig(path=str(path))), Mock())
    request = NamedInputs("identities", Caller("ada", request="r-1"), {"source": b"a picture"})

    async def run() -> IdentityReply | Problem:
        return await service.close(request, await service.wait_for(fail()), "")

    ended = asyncio.run(run())
    assert isinstance(ended, Problem)
    assert (ended.status, ended.reason) == (500, "internal")
    assert "nobody" not in ended.detail
    entry = json.loads(path.read_text())
    assert (entry["request"], entry["status"], entry["reason"]) == ("r-1", 500, "internal")
