"""Suggestions for a name that the user may have misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def find_closest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that is most like `name`; None if none is."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return found[0] if found else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Write "; did you mean 'NAME'?" behind an error about an unknown name; "" if no known name is like it."""
    closest = find_closest(name, known)
    return "" if closest is None else f"; did you mean '{closest}'?"
