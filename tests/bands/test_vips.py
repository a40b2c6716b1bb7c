from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from fusionray.bands.reader import BandReader
from fusionray.bands.vips import load_vips


@pytest.fixture
def loader() -> Iterator[threading.Thread]:
    """A thread that loads libvips again and again."""
    stopped = threading.Event()

    def load() -> None:
        while not stopped.is_set():
            load_vips()

    thread = threading.Thread(target=load)
    thread.start()
    yield thread
    stopped.set()
    thread.join()


def test_pictures_are_opened_while_another_thread_loads_libvips(tmp_path: Path, loader: threading.Thread) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    for _ in range(30):
        assert BandReader(tmp_path / "a.png").width == 30


@pytest.mark.parametrize(("image_format", "is_read"), [("PNG", True), ("TIFF", True), ("GIF", False), ("PPM", False)])
def test_formats_that_few_attack_are_not_decoded(image_format: str, is_read: bool) -> None:
    vips = load_vips()
    encoded = io.BytesIO()
    Image.new("RGB", (30, 20)).save(encoded, image_format)
    expected = contextlib.nullcontext() if is_read else pytest.raises(vips.Error, match="not in a known format")
    with expected:
        assert vips.Image.new_from_buffer(encoded.getvalue(), "").width == 30
