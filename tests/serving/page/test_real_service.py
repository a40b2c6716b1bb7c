"""The page with the real service: a browser sends two pictures, shows the result and saves it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionray.safety.verify import verify
from tests.support.page_driving import expect
from tests.support.pictures import draw_group, draw_person
from tests.support.serving import OpenService, encode

# Folder of a screenshot of the result, if set.
SCREENSHOT_VARIABLE = "FUSIONRAY_SCREENSHOT"


@pytest.fixture(scope="module")
def page(browser: Any, open_service: OpenService) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 960})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(open_service.url)
    yield page
    assert complaints == []
    page.close()


def test_a_browser_fuses_every_face_and_says_how_it_was_made(page: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source.png", tmp_path / "target.png"
    source.write_bytes(encode(draw_person(1, 512), "PNG"))
    target.write_bytes(encode(draw_group((2, 3)), "PNG"))
    expect(page.locator("#service")).to_have_text("Ready")
    page.get_by_label("Source picture", exact=True).set_input_files(source)
    page.get_by_label("Target picture", exact=True).set_input_files(target)
    page.get_by_label("people who agreed").check()
    page.get_by_role("radio", name="All").check()
    page.get_by_role("button", name="Fuse").click()
    expect(page.get_by_role("status")).to_have_text("Done: 2 faces fused. The picture was made by AI.")
    expect(page.locator("#outcome")).to_contain_text("Signed with a test key")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download").click()
    found = verify(Path(waiting.value.path()).read_bytes())
    assert found.holds
    assert found.ai_made
    if os.environ.get(SCREENSHOT_VARIABLE):
        page.screenshot(path=os.environ[SCREENSHOT_VARIABLE], full_page=True)


def test_a_face_is_kept_used_again_and_forgotten(page: Any) -> None:
    page.get_by_role("button", name="Keep this face").click()
    expect(page.get_by_role("status")).to_have_text("The face is kept.")
    page.get_by_role("button", name="Fuse").click()
    expect(page.get_by_role("status")).to_have_text("Done: 2 faces fused. The picture was made by AI.")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
