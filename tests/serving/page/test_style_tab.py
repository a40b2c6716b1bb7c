"""The tab that paints a picture in the style of another."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from fusionray.serving.schema import Problem
from tests.support.page_driving import OpenPage, Page, expect, fuse_chosen, read_downloaded, status
from tests.support.stand_in_api import MODELS, STYLE_MODEL, StandIn


def choose_style(page: Page, pictures: dict[str, Path]) -> None:
    page.get_by_label("Content picture", exact=True).set_input_files(pictures["group.png"])
    page.get_by_label("Style picture", exact=True).set_input_files(pictures["bo.png"])
    page.get_by_label("people who agreed").check()


def test_a_content_is_painted_in_a_style(open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]) -> None:
    stand_in.models = (*MODELS, STYLE_MODEL)
    page = open_page()
    page.get_by_role("tab", name="Style").click()
    expect(page.get_by_label("Source picture", exact=True)).to_be_hidden()
    expect(page.get_by_label("Model")).to_have_value("style-small")
    lines = [span.bounding_box()["height"] for span in page.locator("fieldset:not([hidden]) .segments span").all()]
    assert max(lines) < 50, "a choice is broken into several lines"
    choose_style(page, pictures)
    page.get_by_label("Strength").fill("65")
    page.get_by_role("radio", name="WebP").check()
    page.get_by_role("button", name="Paint").click()
    status(page).to_have_text("Done: the picture is painted. The picture was made by AI.")
    assert stand_in.asked == [
        {
            "content": "group.png",
            "style": "bo.png",
            "strength": "0.65",
            "model": "style-small",
            "format": "webp",
            "mark": "true",
        }
    ]
    expect(page.get_by_label("Outline")).to_be_hidden()
    name, painted = read_downloaded(page)
    assert name == "painted-by-ai.webp"
    with Image.open(io.BytesIO(painted)) as picture, Image.open(pictures["group.png"]) as content:
        assert picture.size == content.size
        assert np.abs(np.asarray(picture, int)[::-1] - np.asarray(content, int)).mean() < 8


def test_tabs_keep_their_pictures_and_work_by_keyboard(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    stand_in.models = (*MODELS, STYLE_MODEL)
    page = open_page()
    fuse_chosen(page, pictures)
    page.get_by_role("tab", name="Faces").press("ArrowRight")
    expect(page.get_by_role("tab", name="Style")).to_be_focused()
    page.get_by_role("button", name="Paint").click()
    expect(page.locator("#content-fault")).to_have_text("Choose a content picture.")
    choose_style(page, pictures)
    page.get_by_role("tab", name="Style").press("ArrowRight")
    expect(page.locator("#source-note")).to_contain_text("ada.png")
    page.get_by_role("tab", name="Faces").press("ArrowLeft")
    expect(page.locator("#style-note")).to_contain_text("bo.png")


def test_a_refusal_names_the_picture_at_fault(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    stand_in.models = (STYLE_MODEL,)
    stand_in.problem = Problem(415, "unknown_format", "Not a known picture", "style picture: unknown", picture="style")
    page = open_page()
    # The only task of a service needs no tab.
    expect(page.get_by_role("button", name="Paint")).to_be_visible()
    expect(page.get_by_role("tablist")).to_be_hidden()
    choose_style(page, pictures)
    page.get_by_role("button", name="Paint").click()
    expect(page.locator("#problem-title")).to_have_text("Not a known picture: the style picture")
    expect(page.locator("#style-fault")).to_have_text("Not a known picture")


def test_a_service_of_faces_alone_has_no_tabs(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator("#service")).to_have_text("Ready")
    expect(page.get_by_role("tablist")).to_be_hidden()
