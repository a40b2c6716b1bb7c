"""Ask an object store again that refuses for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pyarrow import fs

# Tries, with 0.5, 1, 2 and 4 s between them.
TRIES, PAUSE_SECONDS = 5, 0.25
Value = TypeVar("Value")


def ask_again(filesystem: fs.FileSystem, ask: Callable[[], Value]) -> Value:
    """Return the answer to a question that changes nothing; a local disk is asked once.

    Arrow asks again by itself where it understands a refusal. But it reads into memory of the wanted length, and where
    the text of a refusal is longer than what is wanted, it takes that for a fault of its own.

    What has a number of the operating system is no refusal of a store: a file that is missing, a disk that is full.

    Raises: OSError of the last try, or at once if it has such a number.
    """
    tries = 1 if isinstance(filesystem, fs.LocalFileSystem) else TRIES
    for number in range(1, tries):
        try:
            return ask()
        except OSError as error:
            if error.errno is not None:
                raise
            time.sleep(PAUSE_SECONDS * 2**number)
    return ask()
