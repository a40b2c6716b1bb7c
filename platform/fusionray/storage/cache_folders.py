"""Folders of this user's cache that are filled once, by whichever process is first."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return a folder, filled by `fill`, which gets another one to write into, unless it is there; it appears at once.

    Raises: OSError if it cannot be written, and what `fill` raises.
    """
    if folder.is_dir():
        return folder
    staging = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
    staging.mkdir(parents=True)
    try:
        fill(staging)
        os.rename(staging, folder)
    except OSError:
        # Another process may have been faster.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder
