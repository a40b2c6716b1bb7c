from __future__ import annotations

import asyncio
import resource
import struct
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import encode_image
from fusionray.serving.application import run
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.limits import LimitConfig
from fusionray.serving.config_sections.stages import StageConfig
from fusionray.serving.pipeline.memory_budget import BYTES_PER_PIXEL, MemoryBudget, estimate_bytes
from fusionray.serving.pipeline.picture_codec import PictureCodec
from tests.support.picture_bombs import bombs
from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.serving_load import SOURCE, find_replicas, write_variant
from tests.support.whole_pictures import save

MIB = 2**20


def write_png(width: int, height: int, *, depth: int = 16, colour: int = 6) -> bytes:
    """A black picture of 16 bits and four channels, in a few kilobytes."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    row = b"\0" * (1 + width * channels * depth // 8)
    squeeze = zlib.compressobj(9)
    body = b"".join([*(squeeze.compress(row) for _ in range(height)), squeeze.flush()])
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def place_person(side: int) -> bytes:
    """A person in the corner of a large empty picture, whose pixels stay in memory while the face is fused."""
    person = draw_person(2)
    canvas = np.full((side, side, 3), 127, np.uint8)
    canvas[: person.shape[0], : person.shape[1]] = person
    return encode_image(canvas)


def test_memory_is_estimated_from_the_header() -> None:
    person = encode(draw_person(1))
    height, width = draw_person(1).shape[:2]
    assert estimate_bytes(person) == width * height * BYTES_PER_PIXEL["jpeg"]
    assert estimate_bytes(write_png(40, 30)) == 1200 * BYTES_PER_PIXEL["png"]
    assert estimate_bytes(b"P5 40 30 255\n") == 1200 * BYTES_PER_PIXEL["netpbm"]
    assert estimate_bytes(b"no picture") == 0


@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY")
def test_the_largest_picture_follows_from_the_memory_unless_it_is_set() -> None:
    def open_codec(**limits: int) -> PictureCodec:
        limits = {"decoded_bytes": 2**20, **limits}
        return PictureCodec(ServeConfig(models=(ModelConfig(bundle="b"),), limits=LimitConfig(**limits)))

    small, large = write_png(200, 200), write_png(300, 200)
    assert open_codec().decode(small).shape == (200, 200, 3)
    with pytest.raises(ImageRejected, match=r"take 1\.1 MiB of memory; 1\.0 MiB are the limit") as refused:
        open_codec().decode(large)
    assert refused.value.reason == "too_large"
    assert open_codec(max_pixels=10**6).decode(large).shape == (200, 300, 3)
    with pytest.raises(ImageRejected, match="1024 pixels"):
        open_codec(max_pixels=1024).decode(small)


def test_work_waits_in_order_until_its_memory_is_free() -> None:
    small, large = write_png(16, 16), write_png(64, 64)
    budget = MemoryBudget(estimate_bytes(large) + estimate_bytes(small) // 2)
    events: list[str] = []

    async def work(name: str, picture: bytes, release: asyncio.Event) -> None:
        async with budget.reserve([picture]):
            events.append(name)
            await release.wait()

    async def check() -> None:
        gates = [asyncio.Event() for _ in range(4)]
        tasks = [
            asyncio.create_task(work(name, picture, gate))
            for name, picture, gate in zip("abcd", (large, small, large, small), gates, strict=True)
        ]
        await asyncio.sleep(0)
        assert events == ["a"]
        # One that gives up while it waits leaves its place, and what it asked for.
        await asyncio.sleep(0)
        tasks[2].cancel()
        gates[0].set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert events == ["a", "b", "d"]
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.free == budget.total
        assert not budget.waiting

    asyncio.run(check())


def test_of_pictures_that_are_decoded_one_after_the_other_the_largest_counts() -> None:
    small, large = write_png(16, 16), write_png(64, 64)
    budget = MemoryBudget(2 * estimate_bytes(large))

    async def check() -> None:
        async with budget.reserve([small, large, b"no picture"]):
            assert budget.free == estimate_bytes(large)
        async with budget.reserve([]):
            assert budget.free == budget.total

    asyncio.run(check())


def test_clients_that_leave_at_the_same_moment_give_all_memory_back() -> None:
    """Some of them work, and some wait: what the first give back must not go to those who have left."""
    budget = MemoryBudget(2)
    done: list[int] = []

    async def work(number: int) -> None:
        async with budget.hold(1):
            await asyncio.sleep(0.001)
            done.append(number)

    async def check() -> None:
        leaving = [asyncio.create_task(work(number)) for number in range(8)]
        staying = asyncio.create_task(work(8))
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        ends = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        await asyncio.wait_for(staying, 10)
        assert done == [8]
        assert budget.free == budget.total
        assert not budget.waiting

    asyncio.run(check())


def test_memory_is_given_back_whenever_clients_leave() -> None:
    budget = MemoryBudget(5)
    random = np.random.default_rng(0)
    held = 0

    async def work(amount: int, turns: int) -> None:
        nonlocal held
        async with budget.hold(amount):
            held += amount
            assert held <= 5
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
            finally:
                held -= amount

    async def check() -> None:
        tasks = []
        for _ in range(2000):
            tasks.append(asyncio.create_task(work(int(random.integers(1, 6)), int(random.integers(0, 4)))))
            if random.random() < 0.5:
                await asyncio.sleep(0)
            for task in tasks[-6:]:
                if random.random() < 0.2:
                    task.cancel()
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert {type(end) for end in ends} == {type(None), asyncio.CancelledError}
        assert budget.free == budget.total
        assert not budget.waiting

    asyncio.run(check())


def test_work_that_needs_more_than_there_is_runs_alone() -> None:
    budget = MemoryBudget(MIB)

    async def check() -> None:
        async with budget.reserve([write_png(2000, 2000, depth=8, colour=0)]):
            assert budget.free == 0
        assert budget.free == MIB

    asyncio.run(check())


def read_memory(process: int, name: str) -> int:
    """A line of a process's status, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) // 1024


@pytest.mark.slow(seconds=60)
def test_many_large_pictures_do_not_exhaust_the_memory(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        ingress=StageConfig(num_replicas=1, cpus=0.5),
        # On a busy machine the last of forty pictures waits long for its memory.
        limits=LimitConfig(decoded_bytes=400 * MIB, request_timeout_seconds=600),
    )
    run(config, port=port, blocking=False)
    targets = [write_png(3000, 3000), place_person(3000), write_png(3000, 3000, colour=0), place_person(3000)]
    connections = httpx.Limits(max_connections=40)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=connections) as client:

        def ask(number: int) -> int:
            files = {"source": SOURCE, "target": targets[number % len(targets)]}
            return client.post("/v1/fuse", files=files, data={"format": "jpeg"}).status_code

        assert [ask(number) for number in range(4)] == [422, 200, 422, 200]
        (replica,) = find_replicas("Ingress")
        before = read_memory(replica, "VmHWM")
        with ThreadPoolExecutor(40) as pool:
            statuses = Counter(pool.map(ask, range(160)))
        # Black pictures have no face.
        assert statuses == {422: 80, 200: 80}
        assert find_replicas("Ingress") == {replica}
        # Measured: 300 MiB, and 960 without the budget.
        assert read_memory(replica, "VmHWM") - before < 400


def write_hostile_pictures() -> list[bytes]:
    """Pictures of a few kilobytes that take much memory or time to decode: valid, damaged, and false ones."""
    side = 2400
    empty = Image.new("RGB", (side, side), (127, 127, 127))
    palette = Image.new("P", (side, side))
    palette.putpalette(bytes(range(256)) * 3)
    whole = [
        write_png(side, side),
        write_png(side, side, colour=4),
        write_png(side, side, colour=2),
        write_png(5000, 5000, depth=8),
        write_png(4900, 5000),
        save(empty, "JPEG", progressive=True, quality=95),
        save(empty.convert("CMYK"), "JPEG"),
        save(palette, "PNG", transparency=bytes(256)),
        save(empty.convert("RGBA"), "WEBP", lossless=True),
        save(empty.resize((900, 900)), "BMP"),
        place_person(side),
    ]
    return [*whole, *(data[: len(data) * 2 // 3] for data in whole), *bombs()]


@pytest.mark.slow(seconds=150)
def test_a_replica_with_a_gibibyte_of_memory_survives_a_thousand_hostile_pictures(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        ingress=StageConfig(num_replicas=1, cpus=0.5),
        limits=LimitConfig(
            decoded_bytes=200 * MIB, upload_bytes=64 * MIB, max_pixels=9_000_000, request_timeout_seconds=600
        ),
    )
    run(config, port=port, blocking=False)
    pictures = write_hostile_pictures()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", timeout=600, limits=httpx.Limits(max_connections=40)
    ) as client:

        def ask(number: int) -> int:
            hostile = pictures[number % len(pictures)]
            files = {"source": SOURCE, "target": hostile} if number % 2 else {"source": hostile, "target": SOURCE}
            return client.post("/v1/fuse", files=files, data={"format": "jpeg"}).status_code

        assert client.post("/v1/fuse", files={"source": SOURCE, "target": SOURCE}).status_code == 200
        (replica,) = find_replicas("Ingress")
        # This limits what the process allocates. Before the first picture that is some 680 MiB, half of them stacks of
        # threads, which it reserves and does not use.
        before = read_memory(replica, "VmHWM")
        most = (read_memory(replica, "VmData") + 400) * MIB
        resource.prlimit(replica, resource.RLIMIT_DATA, (most, most))
        with ThreadPoolExecutor(40) as pool:
            statuses = Counter(pool.map(ask, range(1000)))
        assert set(statuses) <= {200, 413, 415, 422}, statuses
        assert min(statuses[status] for status in (200, 413, 422)) > 0
        assert client.post("/v1/fuse", files={"source": SOURCE, "target": SOURCE}).status_code == 200
        assert find_replicas("Ingress") == {replica}
        # Measured: 226 MiB. The budgets of decoded pictures and of uploads are 264.
        assert read_memory(replica, "VmHWM") - before < 300


@pytest.mark.slow(seconds=25)
def test_a_service_whose_clients_left_while_they_waited_for_memory_serves_the_next(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    target = place_person(2500)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        ingress=StageConfig(num_replicas=1, cpus=0.5),
        # One target at a time: all other clients wait.
        limits=LimitConfig(decoded_bytes=estimate_bytes(target) * 3 // 2),
    )
    run(config, port=port, blocking=False)
    address, files = f"http://127.0.0.1:{port}/v1/fuse", {"source": SOURCE, "target": target}
    assert httpx.post(address, files=files, timeout=60).status_code == 200

    def leave_early(_: int) -> None:
        # The first may be answered.
        with suppress(httpx.ReadTimeout):
            httpx.post(address, files=files, timeout=httpx.Timeout(60, read=0.3))

    with ThreadPoolExecutor(12) as pool:
        for _ in range(4):
            list(pool.map(leave_early, range(12)))
            assert httpx.post(address, files=files, timeout=60).status_code == 200
