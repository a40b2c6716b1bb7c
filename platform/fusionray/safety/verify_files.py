"""The output of `fusionray verify`: one line for each file or picture of a report, or a JSON list."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fusionray.errors import ImageRejected, InputMissing, ProvenanceInvalid
from fusionray.safety.verification_summary import ProvenanceResult
from fusionray.safety.verify import MAX_BYTES, verify, verify_file

# Certificate bundles of operating systems have a quarter of it.
LONGEST_ANCHORS = 2**20
REPORT_ENDINGS = (".html", ".htm")
EMBEDDED_PICTURE = re.compile(rb'src="data:image/[a-z]+;base64,([^"]*)"')


def verify_files(files: Sequence[str], *, trust: str | None = None, as_json: bool = False) -> None:
    """Verify files and print what each proves. `trust` is the PEM file of the trusted CAs.

    Raises: ProvenanceInvalid if a file does not hold; InputMissing, ConfigInvalid if `trust` cannot be used.
    """
    anchors = read_anchors(trust) if trust is not None else None
    results = [result for file in files for result in describe_file(file, anchors)]
    for result in results if not as_json else []:
        if result["holds"]:
            print(f"{result['file']}: {result['summary']}")
    if as_json:
        print(json.dumps(results, indent=1))
    failed = [result for result in results if not result["holds"]]
    if failed:
        raise ProvenanceInvalid("; ".join(f"{result['file']}: {result['summary']}" for result in failed))


def describe_file(file: str, anchors: str | None) -> Iterator[dict[str, Any]]:
    """Verify one file, or each picture of a report; what is unreadable or not a picture does not hold."""
    is_report = Path(file).suffix.lower() in REPORT_ENDINGS
    try:
        verified = verify_report(file, anchors) if is_report else [(file, verify_path(file, anchors))]
        for name, result in verified:
            yield {"file": name, "summary": result.describe()} | result.to_json()
    except (ImageRejected, InputMissing) as error:
        yield {"file": file, "summary": str(error).removeprefix(f"{file}: "), "holds": False}


def verify_path(file: str, anchors: str | None) -> ProvenanceResult:
    """Verify the file at a path.

    Raises: InputMissing; ImageRejected.
    """
    try:
        return verify_file(Path(file), anchors)
    except OSError as error:
        raise explain_unreadable(file, error) from None


def verify_report(file: str, anchors: str | None) -> Iterator[tuple[str, ProvenanceResult]]:
    """Verify the pictures that lie in an HTML report, in their order; C2PA knows no manifest of HTML itself.

    Raises: InputMissing; ImageRejected if one is no picture, or there is none.
    """
    try:
        with Path(file).open("rb") as stream:
            page = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise explain_unreadable(file, error) from None
    if len(page) > MAX_BYTES:
        raise ImageRejected("too_large", f"{file}: the report has more than {MAX_BYTES} bytes")
    pictures = EMBEDDED_PICTURE.findall(page)
    if not pictures:
        raise ImageRejected("not_an_image", f"{file}: no picture lies in this report; verify the files that it shows")
    for number, encoded in enumerate(pictures, 1):
        name = f"{file}, picture {number}"
        try:
            data = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise ImageRejected("not_an_image", f"{file}: picture {number} is not base64") from None
        yield name, verify(data, anchors)


def explain_unreadable(file: str, error: OSError) -> InputMissing:
    """Return the error of a file that cannot be read."""
    return InputMissing(f"{file}: cannot be read ({error.strerror}); check the path")


def read_anchors(file: str) -> str:
    """Read a file of certificates.

    Raises: InputMissing.
    """
    try:
        with Path(file).open("rb") as stream:
            return stream.read(LONGEST_ANCHORS).decode("ascii", errors="replace")
    except OSError as error:
        raise explain_unreadable(file, error) from None
