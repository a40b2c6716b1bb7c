"""The zip of a batch or a job."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from fusionray.client.answers import FusedItem
from fusionray.client.reading import build_answer
from fusionray.errors import AnswerInvalid

RESULTS_NAME = "results.json"


def read_archive(archive: str | os.PathLike[str] | IO[bytes]) -> Iterator[FusedItem]:
    """Yield the items of a zip in their order, each with its picture, which is read when its turn comes.

    Raises: AnswerInvalid if it is not the zip of a service; OSError.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            for entry in json.loads(opened.read(RESULTS_NAME)):
                item = build_answer(FusedItem, entry)
                yield item if item.file is None else replace(item, data=opened.read(item.file))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise AnswerInvalid(f"{archive}: not the zip of a fusionray service ({error})") from None
