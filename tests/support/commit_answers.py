"""What the service of a commit answers to some requests: kept in a file, and read without what changes each time."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from tests.support.commit_artifacts import Values

# Name, method, path, fields, and which picture is sent as which file. HANDLE: of the identity that was made before.
PAIR = {"source": "source.png", "target": "target.png"}
FUSE = ("POST", "/v1/fuse")
REQUESTS = (
    ("fuse", *FUSE, {}, PAIR),
    ("fuse png, marked", *FUSE, {"format": "png", "mark": "true"}, PAIR),
    ("fuse jpeg", *FUSE, {"format": "jpeg"}, PAIR),
    ("fuse webp", *FUSE, {"format": "webp"}, PAIR),
    ("fuse every face", *FUSE, {"faces": "all"}, PAIR | {"target": "group.png"}),
    ("keep identity", "POST", "/v1/identities", {}, {"source": "source.png"}),
    ("look at identity", "GET", "/v1/identities", {}, {}),
    ("fuse identity", *FUSE, {"identity": "HANDLE"}, {"target": "target.png"}),
    ("forget identity", "DELETE", "/v1/identities", {}, {}),
    ("fuse unknown identity", *FUSE, {"identity": f"id_{'A' * 43}"}, {"target": "target.png"}),
    ("fuse without a face", *FUSE, {}, PAIR | {"target": "empty.png"}),
    ("fuse half a picture", *FUSE, {}, PAIR | {"source": "half.png"}),
    ("fuse text", *FUSE, {}, PAIR | {"target": "text.png"}),
    ("fuse unknown field", *FUSE, {"fases": "all"}, PAIR),
    ("fuse unknown value", *FUSE, {"faces": "some"}, PAIR),
    ("fuse unknown model", *FUSE, {"model": "nobody"}, PAIR),
    ("fuse without target", *FUSE, {}, {"source": "source.png"}),
    *((f"GET {path}", "GET", path, {}, {}) for path in ("/", "/openapi.json", "/v1/nowhere")),
)
PICTURES = ("image/png", "image/jpeg", "image/webp")
# The length of a body follows from the body; the metrics are figures of the clock.
PASSING_HEADERS, PASSING_BODIES = ("date", "content-length", "connection"), ("GET /metrics",)
PASSING_WORDS = re.compile(
    r"\bid_[A-Za-z0-9_-]{43}|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # handles, requests
    r"|\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)|\b[0-9a-f]{64}\b"  # times, hashes of bundles
)
DESCRIPTION = re.compile(r'("description":\s*")[^"]*')


def draw_pictures(shards: Path, folder: Path) -> None:
    """Paste crops of synthetic people onto grey, and write what is no face beside them."""
    folder.mkdir()
    rows = pq.read_table(min(shards.glob("*train*.parquet")), columns=["image", "identity"]).to_pydict()
    people = list(dict(zip(rows["identity"], rows["image"], strict=True)).values())
    for name, chosen in (("source", people[:1]), ("target", people[1:2]), ("group", people[2:5]), ("empty", [])):
        picture = Image.new("RGB", (240 * max(len(chosen), 1), 224), (128, 128, 128))
        for place, crop in enumerate(chosen):
            face = Image.open(io.BytesIO(crop)).resize((160, 160), Image.Resampling.BICUBIC)
            picture.paste(face, (place * 240 + 40, 32))
        picture.save(folder / f"{name}.png")
    (folder / "half.png").write_bytes((folder / "source.png").read_bytes()[:10_000])
    (folder / "text.png").write_bytes(b"This is no picture.")


def keep_answers(address: str, pictures: Path, file: Path) -> None:
    """Send the requests, and a GET to every path without parameters; keep status, headers and body of each answer."""
    kept = {}
    handle = "HANDLE"
    with httpx.Client(base_url=address, timeout=60) as client:
        paths = client.get("/openapi.json").json()["paths"]
        gets = [path for path, methods in paths.items() if "get" in methods and "{" not in path]
        for name, method, path, fields, files in (*REQUESTS, *((f"GET {path}", "GET", path, {}, {}) for path in gets)):
            answer = client.request(
                method,
                path,
                headers={"X-FusionRay-Identity": handle},
                data={key: value.replace("HANDLE", handle) for key, value in fields.items()},
                files={key: (picture, (pictures / picture).read_bytes()) for key, picture in files.items()},
            )
            if name == "keep identity":
                handle = answer.json().get("identity", handle)
            body = base64.b64encode(answer.content).decode()
            kept[name] = {"status": answer.status_code, "headers": answer.headers.multi_items(), "body": body}
    file.write_text(json.dumps(kept, indent=1))


def read_answers(file: Path) -> dict[str, Values]:
    """Read kept answers by the names of their requests."""
    return {name: read_answer(name, kept) for name, kept in json.loads(file.read_text()).items()}


def read_answer(name: str, kept: dict[str, Any]) -> Values:
    """Read what of an answer is the same each time: of a picture its pixels, and its file without signature and XMP."""
    headers = {key: PASSING_WORDS.sub("*", value) for key, value in kept["headers"] if key not in PASSING_HEADERS}
    if timing := headers.get("server-timing"):
        # Stages that run side by side end in any order.
        headers["server-timing"] = " ".join(sorted(re.findall(r"\w+(?=;dur)", timing)))
    values = {"status": kept["status"], **headers}
    body = base64.b64decode(kept["body"])
    if headers.get("content-type") in PICTURES:
        parts = list(split_picture(body))
        signature = {kind for kind, raw in parts if is_signature(kind, raw)}
        unsigned = b"".join(raw for kind, raw in parts if not is_signature(kind, raw))
        with Image.open(io.BytesIO(body)) as picture:
            return values | {"pixels": np.asarray(picture), "file": unsigned, "signature": signature}
    # Sentences of the OpenAPI document may be worded better.
    text = DESCRIPTION.sub(r"\1*", body.decode())
    return values if name in PASSING_BODIES else values | {"body": PASSING_WORDS.sub("*", text)}


def is_signature(kind: bytes, raw: bytes) -> bool:
    """Tell whether a part of a picture is a C2PA manifest (in PNG, WebP, JPEG), or XMP."""
    return kind in (b"caBX", b"C2PA", b"\xeb", b"XMP ") or b".adobe." in raw[:48]


def split_picture(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Split a JPEG into segments, a PNG or WebP into chunks: their kinds and bytes."""
    is_jpeg, is_png = data.startswith(b"\xff\xd8"), data.startswith(b"\x89PNG")
    # The head of a WebP states its length, which the signature changes.
    position = 2 if is_jpeg else 8 if is_png else 12
    while position < len(data):
        if is_jpeg:
            kind, length = (
                data[position + 1 : position + 2],
                2 + int.from_bytes(data[position + 2 : position + 4], "big"),
            )
        elif is_png:
            kind, length = data[position + 4 : position + 8], 12 + int.from_bytes(data[position : position + 4], "big")
        else:
            kind, content = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
            length = 8 + content + content % 2
        # What follows the head of a JPEG's scan has no length.
        end = len(data) if kind == b"\xda" else position + length
        yield kind, data[position:end]
        position = end
