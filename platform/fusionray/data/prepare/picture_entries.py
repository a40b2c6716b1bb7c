"""The pictures of an input, as columns: a million file names as Python objects would take three times the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, overload

import numpy as np
import pyarrow as pa

from fusionray.data.segments import RowIndices

# Entries that exist as Python objects at the same time.
CHUNK_ENTRIES = 16_384


SCHEMA = pa.schema(
    [
        ("identity", pa.large_string()),
        ("source", pa.large_string()),
        ("locator", pa.large_binary()),
        ("size_bytes", pa.int64()),
        ("offset", pa.int64()),
    ]
)


class PictureEntry(NamedTuple):
    """One picture of an input. `identity` and `source` (its path) are printable; only the input reads `locator`."""

    identity: str
    source: str
    locator: str
    size_bytes: int = 0
    offset: int = 0


class PictureEntries(Sequence[PictureEntry]):
    """Entries in their order, some 150 bytes each; `identities`: the people, in the order of their first picture."""

    def __init__(self, entries: Iterable[PictureEntry] = ()) -> None:
        remaining = iter(entries)
        chunks = []
        while chunk := list(islice(remaining, CHUNK_ENTRIES)):
            identities, sources, locators, sizes, offsets = zip(*chunk, strict=True)
            # Most inputs locate a picture by its path; a name that is not UTF-8 differs from what is printed.
            differing = [
                None if locator == source else locator.encode("utf-8", "surrogateescape")
                for locator, source in zip(locators, sources, strict=True)
            ]
            columns = (identities, sources, differing, sizes, offsets)
            chunks.append(
                pa.record_batch([pa.array(*column) for column in zip(columns, SCHEMA.types, strict=True)], SCHEMA)
            )
        self._set(pa.Table.from_batches(chunks, SCHEMA))

    def _set(self, table: pa.Table) -> None:
        encoded = table.column("identity").dictionary_encode().combine_chunks()
        self._person_codes: RowIndices = encoded.indices.to_numpy().astype(np.int64)
        self.identities: pa.LargeStringArray = encoded.dictionary
        self._table = table.drop_columns("identity")

    def __len__(self) -> int:
        return len(self._person_codes)

    @overload
    def __getitem__(self, index: int) -> PictureEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[PictureEntry]: ...
    def __getitem__(self, index: int | slice) -> PictureEntry | list[PictureEntry]:
        rows = np.arange(len(self))[index]
        return self.take(rows) if isinstance(index, slice) else self.take(rows[None])[0]

    def __iter__(self) -> Iterator[PictureEntry]:
        for start in range(0, len(self), CHUNK_ENTRIES):
            yield from self[start : start + CHUNK_ENTRIES]

    def take(self, rows: RowIndices) -> list[PictureEntry]:
        """Return the entries with the given numbers."""
        people = self.identities.take(pa.array(self._person_codes[rows])).to_pylist()
        columns = (column.to_pylist() for column in self._table.take(pa.array(rows)).columns)
        return [
            PictureEntry(
                person, source, source if other is None else other.decode("utf-8", "surrogateescape"), size, offset
            )
            for person, source, other, size, offset in zip(people, *columns, strict=True)
        ]

    def rows_by_person(self) -> tuple[RowIndices, RowIndices]:
        """Return the numbers of all entries, person by person, and how many each person has."""
        order = np.argsort(self._person_codes, kind="stable")
        return order, np.bincount(self._person_codes, minlength=len(self.identities))

    def with_own_identities(self) -> PictureEntries:
        """Return the entries with their sources as identities: each picture is its own group."""
        alone = PictureEntries()
        alone._set(self._table.add_column(0, "identity", self._table.column("source")))
        return alone
