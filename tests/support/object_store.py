"""An S3-compatible server on this machine, which can be slow, refuse requests, and lose uploads."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from fusionray.ray_cluster.connection import find_free_port
from fusionray.storage import filesystem as storage
from tests.support.waiting import wait_for

BUCKET = "lab"

# moto's server, with faults before it. Each eighth request is told to slow down; each twentieth upload ends with an
# error in the middle, and that of a file named `lost` three times; a file named `fixed` is not written a second time.
SERVER = """
import itertools, sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

application = DomainDispatcherApplication(create_backend_app)
numbers, uploads, lost, fixed = itertools.count(1), itertools.count(1), [3], set()
with_faults = sys.argv[2] == "faults"

def answer(environ, start):
    if with_faults:
        path, is_upload = environ["PATH_INFO"], environ["REQUEST_METHOD"] == "PUT"
        if is_upload and path.endswith("/fixed"):
            if path in fixed:
                start("403 Forbidden", [("Content-Length", "0")])
                return [b""]
            fixed.add(path)
        is_lost = is_upload and path.endswith("/lost") and lost[0] > 0
        lost[0] -= is_lost
        if is_lost or (is_upload and next(uploads) % 20 == 0):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            start("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        if next(numbers) % 8 == 0:
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))])
            return [text]
    return application(environ, start)

run_simple("127.0.0.1", int(sys.argv[1]), answer, threaded=True)
"""


@contextlib.contextmanager
def object_store(folder: Path, *, faults: bool = False) -> Iterator[dict[str, str]]:
    """Run the server with an empty bucket; yield the variables by which clients find it."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", SERVER, str(port), "faults" if faults else "none"]
    with (folder / "object-store.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def has_bucket() -> bool:
        assert process.poll() is None, (folder / "object-store.log").read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.put(f"{url}/{BUCKET}").status_code in (200, 409)
        return False

    try:
        wait_for(has_bucket)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        process.terminate()
        process.wait()


def upload(folder: Path, name: str) -> str:
    """Copy a local folder into the bucket; return its URI."""
    location = f"s3://{BUCKET}/{name}"
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            storage.copy(str(file), storage.join(location, *file.relative_to(folder).parts))
    return location
