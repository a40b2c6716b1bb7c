"""Read shards from an object store whose requests take their time: one segment after another, and through Ray Data."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from fusionray.benchmarks.interleaving import Pace
from fusionray.data.order import DataOrder, DataPosition
from fusionray.data.ray_data_reader import OBJECT_STORAGE_TASKS, RayDataReader
from fusionray.data.segments import Segment
from fusionray.data.shard_files import ShardFiles, list_files
from fusionray.data.shard_readers import LocalReader
from fusionray.data.shards import read_manifest

BUCKET = "shards"
WINDOW_ROWS = 2048
ROUND_SECONDS = 10.0
RANGE = re.compile(r"bytes=(\d+)-(\d+)$")


def build_handler(folder: Path, seconds: float) -> type[BaseHTTPRequestHandler]:
    """Build what answers HEAD and ranged GET for the files of a folder, as S3 does, after `seconds` each."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            time.sleep(seconds)
            path = folder / Path(unquote(urlsplit(self.path).path)).name
            if not path.is_file():
                self.send_response(HTTPStatus.NOT_FOUND)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = path.read_bytes()
            wanted = RANGE.match(self.headers.get("Range", ""))
            first, last = (int(wanted[1]), min(int(wanted[2]), len(data) - 1)) if wanted else (0, len(data) - 1)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if with_body:
                self.wfile.write(data[first : last + 1])

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


@contextlib.contextmanager
def serve_folder(folder: str, seconds: float) -> Iterator[str]:
    """Serve the files of a folder on loopback as an S3 bucket; yield its URI, which pyarrow reads without keys."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), build_handler(Path(folder), seconds))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        place = f"endpoint_override=127.0.0.1%3A{server.server_port}&scheme=http&region=us-east-1"
        yield f"s3://anonymous@{BUCKET}?{place}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def measure_object_storage(shards: str, pace: Pace, *, seconds: float = 0.2) -> dict[str, list[float]]:
    """Measure rows/s of `one_by_one` and `ray_data` from a store whose requests take `seconds`; Ray must be running.

    Returns the rates by round. In every round each reads for some seconds, after its first task.
    """
    rates: dict[str, list[float]] = {"one_by_one": [], "ray_data": []}
    with serve_folder(shards, seconds) as uri:
        files = dataclasses.replace(list_files(shards, read_manifest(shards), "train"), folder=uri)
        readers: dict[str, Callable[[Iterator[Segment]], Iterator[pa.Table]]] = {
            "one_by_one": LocalReader(files).read,
            "ray_data": RayDataReader(files, tasks_at_once=OBJECT_STORAGE_TASKS).read,
        }
        with contextlib.ExitStack() as stack:
            tables = {name: read(list_segments(files)) for name, read in readers.items()}
            for each in tables.values():
                stack.callback(each.close)  # type: ignore[attr-defined]
            while pace.goes_on(len(rates["ray_data"])):
                for name, each in tables.items():
                    rates[name].append(time_rows(each, ROUND_SECONDS))
    return rates


def list_segments(files: ShardFiles) -> Iterator[Segment]:
    """List the segments that a single worker trains on, without end."""
    order = DataOrder(files.rows, seed=0, num_ranks=1, window_rows=WINDOW_ROWS)
    return (segment for window in order.windows(DataPosition(), 0) for segment in window.segments)


def time_rows(tables: Iterator[pa.Table], seconds: float) -> float:
    """Return rows/s over at least some seconds, after what was read ahead is drawn."""
    next(tables)
    started = previous = time.perf_counter()
    # What comes without a wait was read before.
    while (now := time.perf_counter()) - previous < 0.01 and now - started < seconds:
        previous = now
        next(tables)
    rows, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        rows += len(next(tables))
    return rows / (time.perf_counter() - started)
