"""The output of `fusionray verify`: one line for each file, or a JSON list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusionray.errors import ImageRejected, InputMissing, ProvenanceInvalid
from fusionray.safety.verification_summary import ProvenanceResult
from fusionray.safety.verify import verify_file

# Certificate bundles of operating systems have a quarter of it.
LONGEST_ANCHORS = 2**20


def verify_files(files: Sequence[str], *, trust: str | None = None, as_json: bool = False) -> None:
    """Verify files and print what each proves. `trust` is the PEM file of the trusted CAs.

    Raises: ProvenanceInvalid if a file does not hold; InputMissing, ConfigInvalid if `trust` cannot be used.
    """
    anchors = read_anchors(trust) if trust is not None else None
    results = [describe_file(file, anchors) for file in files]
    for result in results if not as_json else []:
        if result["holds"]:
            print(f"{result['file']}: {result['summary']}")
    if as_json:
        print(json.dumps(results, indent=1))
    failed = [result for result in results if not result["holds"]]
    if failed:
        raise ProvenanceInvalid("; ".join(f"{result['file']}: {result['summary']}" for result in failed))


def describe_file(file: str, anchors: str | None) -> dict[str, Any]:
    """Verify one file; a file that is unreadable or not a picture does not hold."""
    try:
        result = verify_path(file, anchors)
    except (ImageRejected, InputMissing) as error:
        return {"file": file, "summary": str(error).removeprefix(f"{file}: "), "holds": False}
    return {"file": file, "summary": result.describe()} | result.to_json()


def verify_path(file: str, anchors: str | None) -> ProvenanceResult:
    """Verify the file at a path.

    Raises: InputMissing; ImageRejected.
    """
    try:
        return verify_file(Path(file), anchors)
    except OSError as error:
        raise InputMissing(f"{file}: cannot be read ({error.strerror}); check the path") from None


def read_anchors(file: str) -> str:
    """Read a file of certificates.

    Raises: InputMissing.
    """
    try:
        with Path(file).open("rb") as stream:
            return stream.read(LONGEST_ANCHORS).decode("ascii", errors="replace")
    except OSError as error:
        raise InputMissing(f"{file}: cannot be read ({error.strerror}); check the path") from None
