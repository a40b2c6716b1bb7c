"""What `fusionray verify` prints: a line a file, or a JSON list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusionray.errors import ImageRejected, InputMissing, ProvenanceInvalid
from fusionray.safety.verify import MAX_BYTES, verify


def verify_files(files: Sequence[str], *, trust: str | None = None, as_json: bool = False) -> None:
    """Judge files and print what each proves. `trust` is the PEM file of the CAs that are believed.

    Raises: ProvenanceInvalid if not every file holds; InputMissing, ConfigInvalid for a `trust` that cannot be used.
    """
    anchors = read_bounded(trust).decode("ascii", errors="replace") if trust is not None else None
    findings = [examine(file, anchors) for file in files]
    for finding in findings if not as_json else []:
        if finding["holds"]:
            print(f"{finding['file']}: {finding['said']}")
    if as_json:
        print(json.dumps(findings, indent=1))
    failed = [finding for finding in findings if not finding["holds"]]
    if failed:
        said = "; ".join(f"{finding['file']}: {finding['said']}" for finding in failed)
        raise ProvenanceInvalid(said)


def examine(file: str, anchors: str | None) -> dict[str, Any]:
    """Judge one file; what is not a picture, or cannot be read, does not hold."""
    try:
        verdict = verify(read_bounded(file), anchors)
    except (ImageRejected, InputMissing) as error:
        return {"file": file, "said": str(error).removeprefix(f"{file}: "), "holds": False}
    return {"file": file, "said": verdict.describe()} | verdict.to_json()


def read_bounded(file: str) -> bytes:
    """Read a file, or the first part of one that is too long: what comes after is refused by its length.

    Raises: InputMissing.
    """
    try:
        with Path(file).open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputMissing(f"{file}: cannot be read ({error.strerror}); check the path") from None
