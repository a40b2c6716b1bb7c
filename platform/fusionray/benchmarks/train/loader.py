"""Shards to decoded batches: our stream against `torch.utils.data.DataLoader` with as many processes as threads."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import pyarrow.parquet as pq
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fusionray.benchmarks.interleaving import Pace
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import DataOrder, DataPosition
from fusionray.data.person_labels import PersonLabels, read_labels
from fusionray.data.prefetch import prefetched
from fusionray.data.shard_files import ShardFiles, list_files
from fusionray.data.shard_readers import LocalReader, ShardReader
from fusionray.data.shards import read_manifest
from fusionray.data.stream import TrainingStream
from fusionray.recipes.registry import find_family
from fusionray.storage.filesystem import open_filesystem
from fusionray.types import Batch

Decode = Callable[[bytes, NDArray[np.uint8]], None]
Labelled = tuple[Tensor, Tensor]

# Batches that each loader prefetches, in all; twice as many are drawn before the measurement.
AHEAD = 8
WINDOW_ROWS = 2048


def decode_with_pillow(image: bytes, pixels_SS3: NDArray[np.uint8]) -> None:
    """Decode to uint8 RGB with Pillow, as most data sets do."""
    pixels_SS3[:] = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


def decode_with_simplejpeg(image: bytes, pixels_SS3: NDArray[np.uint8]) -> None:
    """Decode to uint8 RGB with the decoder and the settings of our own stream."""
    if simplejpeg.is_jpeg(image):
        simplejpeg.decode_jpeg(image, fastdct=True, buffer=pixels_SS3)
    else:
        decoded = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert decoded is not None
        pixels_SS3[:] = decoded


@dataclass
class ShardBatches(IterableDataset[Labelled]):
    """A fast plain data set: each process reads its own files, shuffles a file's rows, and yields whole batches.

    Whole batches go to the trainer in shared memory, which is faster than collating single items.
    """

    files: ShardFiles
    labels: PersonLabels
    size: int
    batch: int
    decode: Decode

    def __iter__(self) -> Iterator[Labelled]:
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        random = np.random.default_rng(number)
        filesystem, root = open_filesystem(self.files.folder)
        names = self.files.names[number::count] or self.files.names
        rows: list[tuple[bytes, str]] = []
        while True:
            for name in random.permutation(names):
                table = pq.read_table(f"{root}/{name}", filesystem=filesystem, columns=["image", "identity"])
                images, identities = (column.to_pylist() for column in table.columns)
                rows += [(images[row], identities[row]) for row in random.permutation(len(images))]
                while len(rows) >= self.batch:
                    yield self.collate(rows[: self.batch])
                    del rows[: self.batch]

    def collate(self, rows: list[tuple[bytes, str]]) -> Labelled:
        """Decode rows to uint8 [N,3,S,S] RGB and their labels."""
        pixels_NSS3 = np.empty((len(rows), self.size, self.size, 3), np.uint8)
        for pixels_SS3, (image, _) in zip(pixels_NSS3, rows, strict=True):
            self.decode(image, pixels_SS3)
        images = torch.from_numpy(pixels_NSS3).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor([self.labels[identity] for _, identity in rows])


def measure_loader(
    shards: str,
    pace: Pace,
    *,
    reader: Callable[[ShardFiles], ShardReader] = LocalReader,
    workers: int = 2,
    batch: int = 64,
) -> dict[str, list[float]]:
    """Measure images/s of `ours`, `dataloader_pillow` and `dataloader_simplejpeg` on the training split of a folder.

    Ours decodes in `workers` threads, the others in as many processes. In every round each yields `pace.steps` batches.
    Returns the rates by round. With RayDataReader as `reader`, Ray must be running.
    """
    with contextlib.ExitStack() as stack:
        loaders: dict[str, Iterator[object]] = {
            "ours": stack.enter_context(open_ours(shards, reader, workers, batch)),
            "dataloader_pillow": open_dataloader(shards, decode_with_pillow, workers, batch),
            "dataloader_simplejpeg": open_dataloader(shards, decode_with_simplejpeg, workers, batch),
        }
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        while pace.goes_on(len(rates["ours"])):
            for name, loader in loaders.items():
                rates[name].append(batch * pace.steps / time_batches(loader, pace.steps))
    return rates


def time_batches(loader: Iterator[object], batches: int) -> float:
    """Return the seconds of some batches, after the prefetched ones are drawn."""
    for _ in range(2 * AHEAD):
        next(loader)
    started = time.perf_counter()
    for _ in range(batches):
        next(loader)
    return time.perf_counter() - started


@contextlib.contextmanager
def open_ours(
    shards: str, reader: Callable[[ShardFiles], ShardReader], threads: int, batch: int
) -> Iterator[Iterator[Batch]]:
    """Open the stream that training uses."""
    manifest = read_manifest(shards)
    files = list_files(shards, manifest, "train")
    labels = read_labels(shards, manifest)
    collate = find_family("identity").collate
    order = DataOrder(files.rows, seed=0, num_ranks=1, window_rows=WINDOW_ROWS)
    decoder = CropDecoder(manifest.size, threads)
    stream = TrainingStream(order, reader(files), decoder, rank=0, step_rows=batch)
    try:
        with prefetched(lambda: stream.batches(DataPosition(), collate, num_roles=1, labels=labels), AHEAD) as batches:
            yield batches
    finally:
        decoder.close()


def open_dataloader(shards: str, decode: Decode, processes: int, batch: int) -> Iterator[Labelled]:
    """Open a DataLoader over the same shards; its processes end when the iterator is deleted."""
    manifest = read_manifest(shards)
    labels = read_labels(shards, manifest)
    dataset = ShardBatches(list_files(shards, manifest, "train"), labels, manifest.size, batch, decode)
    # A fork would copy the locks of threads that it does not copy.
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=processes,
        prefetch_factor=-(-AHEAD // processes),
        multiprocessing_context="spawn",
    )
    return iter(loader)
