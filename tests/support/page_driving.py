"""Drive a real browser on the page as a user would: choose, drop, fuse, download."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

OpenPage = Callable[..., Page]
# Long, because test machines are busy; the page itself reacts at once.
TIMEOUT_MILLISECONDS = 20_000
NARROW = {"width": 360, "height": 740}
WIDE = {"width": 1280, "height": 800}


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Start the Chromium of this machine; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    expect.set_options(timeout=TIMEOUT_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def choose(page: Page, pictures: dict[str, Path], source: str = "ada.png", target: str = "group.png") -> None:
    page.get_by_label("Source picture", exact=True).set_input_files(pictures[source])
    page.get_by_label("Target picture", exact=True).set_input_files(pictures[target])
    page.get_by_label("people who agreed").check()


def fuse(page: Page) -> None:
    page.get_by_role("button", name="Fuse").click()


def fuse_chosen(page: Page, pictures: dict[str, Path]) -> None:
    choose(page, pictures)
    fuse(page)
    expect(page.locator("#outcome")).to_be_visible()


def keep_face(page: Page) -> None:
    page.get_by_role("button", name="Keep this face").click()
    status(page).to_have_text("The face is kept.")


def status(page: Page) -> Any:
    return expect(page.get_by_role("status"))


def read_downloaded(page: Page) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download").click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def drop(page: Page, selector: str, *paths: Path) -> None:
    """Drop files like the window system."""
    box = page.locator(selector).bounding_box()
    session = page.context.new_cdp_session(page)
    point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **point, "data": data})
    session.detach()
