"""Divide pictures into shards: who is held out, and which people share a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusionray.data.prepare.source import Entry
from fusionray.data.shards import Split


@dataclass(frozen=True, slots=True)
class Chunk:
    """The work for one shard: its file name, its split and the pictures to try."""

    file: str
    split: Split
    entries: tuple[Entry, ...]

    @property
    def report_file(self) -> str:
        """Name the small file that says how the work went, relative to the output."""
        return f"parts/{self.file.removesuffix('.parquet')}.json"


def plan_chunks(entries: Sequence[Entry], *, seed: int, validation_fraction: float, rows_per_shard: int) -> list[Chunk]:
    """Divide pictures into chunks of about `rows_per_shard`, whole people in each; a larger person fills several."""
    people: dict[str, list[Entry]] = {}
    for entry in entries:
        people.setdefault(entry.identity, []).append(entry)
    held_out = choose_validation(people, seed=seed, fraction=validation_fraction)
    splits: dict[Split, list[list[Entry]]] = {"train": [], "validation": []}
    for identity, pictures in people.items():
        splits["validation" if identity in held_out else "train"].append(pictures)
    chunks: list[Chunk] = []
    for split, persons in splits.items():
        for number, group in enumerate(_fill(persons, rows_per_shard)):
            chunks.append(Chunk(f"shard-{split}-{number:05d}.parquet", split, tuple(group)))
    return chunks


def choose_validation(identities: Iterable[str], *, seed: int, fraction: float) -> set[str]:
    """Choose the people to hold out by a keyed hash of the name, so that people who join move nobody else.

    If the hash takes nobody of two or more people, the nearest one is taken; if it takes all, one is given back.
    """
    place = {identity: _place(identity, seed) for identity in identities}
    held_out = {identity for identity, where in place.items() if where < fraction}
    if fraction > 0 and len(place) > 1:
        if not held_out:
            held_out = {min(place, key=lambda identity: (place[identity], identity))}
        elif len(held_out) == len(place):
            held_out.remove(max(place, key=lambda identity: (place[identity], identity)))
    return held_out


def _place(identity: str, seed: int) -> float:
    digest = hashlib.blake2b(identity.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") / 2**64


def _fill(persons: Iterable[list[Entry]], rows_per_shard: int) -> list[list[Entry]]:
    groups: list[list[Entry]] = []
    current: list[Entry] = []
    for pictures in persons:
        if len(pictures) > rows_per_shard:
            groups += [pictures[start : start + rows_per_shard] for start in range(0, len(pictures), rows_per_shard)]
            continue
        if len(current) + len(pictures) > rows_per_shard:
            groups.append(current)
            current = []
        current = current + pictures
    return [*groups, current] if current else groups
