"""From shards to batches: Ray Data moves encoded rows, the training worker decodes them in threads.

Decoded pixels would travel through the object store at ten times the size; encoded rows do not notice the trip.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data import storage
from fusionray.data.pairs import Crop, CropPair, CropPool, pool_crops, pool_pairs
from fusionray.data.shards import Manifest, Split
from fusionray.errors import ShardCorrupt, ShardMismatch
from fusionray.types import FaceBatch, PairBatch, SyntheticTruth

ItemT = TypeVar("ItemT")
BatchT = TypeVar("BatchT", FaceBatch, PairBatch)


def open_dataset(folder: str, manifest: Manifest, split: Split, seed: int) -> Any:
    """Open a split as a Ray dataset of encoded rows whose files come in a new, seeded order every epoch."""
    import ray.data

    # Version 2 of the reader waits 4-5 s for its first batch, and loses rows of a path that is listed twice.
    ray.data.DataContext.get_current().use_datasource_v2 = False
    filesystem, root = storage.open_filesystem(folder)
    return ray.data.read_parquet(
        [f"{root}/{file}" for file in manifest.files(split)],
        filesystem=filesystem,
        shuffle=ray.data.FileShuffleConfig(seed=seed),
    )


def read_split(folder: str, manifest: Manifest, split: Split, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a split without Ray, in a fixed order: for evaluation, and for lists of people."""
    filesystem, root = storage.open_filesystem(folder)
    tables = [
        pq.read_table(f"{root}/{file}", filesystem=filesystem, columns=list(columns) if columns else None)
        for file in manifest.files(split)
    ]
    if not tables:
        raise ShardCorrupt(f"{folder}: the {split} split is empty; prepare with more people or another fraction")
    return pa.concat_tables(tables)


def list_people(folder: str, manifest: Manifest, split: Split) -> list[str]:
    """Name the people of a split in a fixed order; the index is the person's label."""
    return sorted(set(read_split(folder, manifest, split, ["identity"]).column("identity").to_pylist()))


def endless_blocks(shard: Any) -> Iterator[pa.Table]:
    """Yield the blocks of a worker's part of the data, epoch after epoch.

    Raises: ShardMismatch if the part is empty, which would otherwise be read for ever.
    """
    while True:
        rows = 0
        # The iterator is one-shot: each epoch makes it anew, and with it a new file order.
        for block in shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=2):
            rows += block.num_rows
            yield block
        if not rows:
            raise ShardMismatch("a worker got no pictures to train on; prepare more of them, or use fewer workers")


class CropDecoder:
    """Decode crops in threads; both decoders leave Python's lock while they work."""

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self.threads = threads
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def decode(self, crops: Sequence[Crop]) -> Tensor:
        """Decode crops to uint8 [N,3,S,S] RGB.

        Raises: ShardCorrupt naming the person of a crop that cannot be decoded or has another size.
        """
        pixels = np.empty((len(crops), self.size, self.size, 3), np.uint8)
        step = -(-len(crops) // self.threads)
        ranges = [range(start, min(start + step, len(crops))) for start in range(0, len(crops), step)]

        def decode_range(indices: range) -> None:
            for index in indices:
                pixels[index] = decode_crop(crops[index], self.size)

        list(self.executor.map(decode_range, ranges))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def close(self) -> None:
        """End the threads."""
        self.executor.shutdown(cancel_futures=True)


def decode_crop(crop: Crop, size: int) -> NDArray[np.uint8]:
    """Decode one crop to uint8 [S,S,3] RGB."""
    try:
        if simplejpeg.is_jpeg(crop.image):
            image: NDArray[np.uint8] | None = simplejpeg.decode_jpeg(crop.image, fastdct=True)
        else:
            image = cv2.imdecode(np.frombuffer(crop.image, np.uint8), cv2.IMREAD_COLOR_RGB)
    except (ValueError, cv2.error) as error:
        reason = " ".join(str(error).split())
        raise ShardCorrupt(
            f"a crop of '{crop.identity}' cannot be decoded ({reason}); prepare the data again"
        ) from None
    if image is None or image.shape != (size, size, 3):
        found = "no picture" if image is None else f"{image.shape}"
        raise ShardCorrupt(
            f"a crop of '{crop.identity}' holds {found}, not {size} x {size} RGB; prepare the data again"
        )
    return image


def collate_pairs(pairs: Sequence[CropPair], decoder: CropDecoder) -> PairBatch:
    """Decode pairs into one batch."""
    crops = [pair.source for pair in pairs] + [pair.target for pair in pairs]
    images = decoder.decode(crops)
    source, target = images[: len(pairs)], images[len(pairs) :]
    same_identity = torch.tensor([pair.same_identity for pair in pairs])
    truth = None
    if pairs[0].target.view is not None:
        truth = SyntheticTruth(
            torch.from_numpy(np.stack([pair.source.identity_parameters for pair in pairs])),  # type: ignore[misc]
            torch.from_numpy(np.stack([pair.target.attribute_parameters for pair in pairs])),  # type: ignore[misc]
            torch.from_numpy(np.stack([pair.target.view for pair in pairs])).reshape(-1, 2, 3),  # type: ignore[misc]
        )
    return PairBatch(source, target, same_identity, truth)


def collate_faces(crops: Sequence[Crop], decoder: CropDecoder, labels: Mapping[str, int]) -> FaceBatch:
    """Decode crops and look up whose they are."""
    traits = [crop.identity_parameters for crop in crops if crop.identity_parameters is not None]
    return FaceBatch(
        decoder.decode(crops),
        torch.tensor([labels[crop.identity] for crop in crops]),
        torch.from_numpy(np.stack(traits)) if traits else None,
    )


def in_batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Group items; a last, smaller group comes too."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def stream_pairs(
    blocks: Iterable[pa.Table], pool: CropPool, decoder: CropDecoder, *, batch: int, same_identity_ratio: float
) -> Iterator[PairBatch]:
    """Turn blocks into batches of pairs."""
    for group in in_batches(pool_pairs(blocks, pool, same_identity_ratio), batch):
        yield collate_pairs(group, decoder)


def stream_faces(
    blocks: Iterable[pa.Table], pool: CropPool, decoder: CropDecoder, *, batch: int, labels: Mapping[str, int]
) -> Iterator[FaceBatch]:
    """Turn blocks into batches of labelled crops."""
    for group in in_batches(pool_crops(blocks, pool), batch):
        yield collate_faces(group, decoder, labels)


@contextlib.contextmanager
def prefetched(make: Callable[[], Iterator[ItemT]], depth: int) -> Iterator[Iterator[ItemT]]:
    """Run an iterator in a thread that stays at most `depth` items ahead; its errors are raised here."""
    items: queue.Queue[tuple[ItemT | None, BaseException | None]] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(entry: tuple[ItemT | None, BaseException | None]) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                items.put(entry, timeout=0.2)
                return True
        return False

    def produce() -> None:
        try:
            for item in make():
                if not put((item, None)):
                    return
            put((None, None))
        except BaseException as error:  # noqa: BLE001 - handed over to the consumer, whatever it is
            put((None, error))

    def consume() -> Iterator[ItemT]:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        thread.join(timeout=5)
