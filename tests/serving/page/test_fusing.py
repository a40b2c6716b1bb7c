"""The requests of the page, and how it shows the answers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.page_driving import (
    NARROW,
    OpenPage,
    choose,
    drop,
    expect,
    fuse,
    fuse_chosen,
    read_downloaded,
    status,
)
from tests.support.pictures import draw_group
from tests.support.stand_in_api import StandIn


def test_two_chosen_files_become_a_picture(open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]) -> None:
    page = open_page()
    expect(page.locator("#service")).to_have_text("Ready")
    choose(page, pictures)
    expect(page.locator("#source-note")).to_have_text("ada.png, 192 \N{MULTIPLICATION SIGN} 192")
    page.get_by_label("Model").select_option("tiny-64")
    page.get_by_role("radio", name="All").check()
    page.get_by_role("group", name="Skin").get_by_role("radio", name="Target").check()
    page.get_by_role("group", name="Detail").get_by_role("radio", name="Fourfold").check()
    page.get_by_role("radio", name="WebP").check()
    fuse(page)
    status(page).to_have_text("Done: 2 faces fused. The picture was made by AI.")
    assert stand_in.asked == [
        {
            "source": "ada.png",
            "target": "group.png",
            "model": "tiny-64",
            "faces": "all",
            "skin": "target",
            "pixel_boost": "4",
            "format": "webp",
            "mark": "true",
        }
    ]
    name, content = read_downloaded(page)
    assert name == "fused-by-ai.webp"
    with Image.open(io.BytesIO(content)) as picture:
        assert (picture.format, picture.size) == ("WEBP", (384, 192))


def test_an_unwanted_mark_is_left_to_the_service(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    page = open_page()
    page.get_by_label("visible “AI” mark").uncheck()
    fuse_chosen(page, pictures)
    # And so is the format, which is that of the target.
    assert not {"mark", "format", "skin", "pixel_boost"} & stand_in.asked[0].keys()


def test_files_can_be_dropped(open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]) -> None:
    page = open_page()
    drop(page, "#target .drop", pictures["group.png"])
    expect(page.locator("#target-note")).to_contain_text("group.png")
    drop(page, "#source .drop", pictures["ada.png"])
    expect(page.locator("#source-note")).to_contain_text("ada.png")
    drop(page, "#source .drop", pictures["letter.txt"])
    expect(page.locator("#source-fault")).to_have_text("letter.txt is not a picture.")
    page.get_by_label("people who agreed").check()
    fuse(page)
    status(page).to_contain_text("Done")
    assert (stand_in.asked[0]["source"], stand_in.asked[0]["target"]) == ("ada.png", "group.png")


def test_two_files_dropped_anywhere_fill_both_places(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    drop(page, "#empty", pictures["ada.png"], pictures["bo.png"])
    expect(page.locator("#source-note")).to_contain_text("ada.png")
    expect(page.locator("#target-note")).to_contain_text("bo.png")


def test_a_picture_can_be_pasted(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    page.evaluate(
        """([bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
            const options = {clipboardData: data, bubbles: true, cancelable: true};
            document.body.dispatchEvent(new ClipboardEvent("paste", options));
        }""",
        [list(pictures["ada.png"].read_bytes())],
    )
    expect(page.locator("#source-note")).to_have_text("pasted.png, 192 \N{MULTIPLICATION SIGN} 192")


def test_missing_input_is_reported_and_nothing_is_sent(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    page = open_page()
    fuse(page)
    expect(page.locator("#source-fault")).to_have_text("Choose a source picture.")
    expect(page.get_by_label("Source picture", exact=True)).to_be_focused()
    choose(page, pictures)
    page.get_by_label("people who agreed").uncheck()
    fuse(page)
    expect(page.locator("#consent-fault")).to_have_text("Please confirm this first.")
    page.get_by_role("button", name="Keep this face").click()
    expect(page.get_by_label("people who agreed")).to_be_focused()
    assert (stand_in.asked, stand_in.kept) == ([], {})


def test_the_work_is_shown_and_can_be_cancelled(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    stand_in.go_on.clear()
    page = open_page()
    choose(page, pictures)
    fuse(page)
    status(page).to_have_text("Fusing.")
    expect(page.get_by_role("progressbar", name="Fusing")).to_be_visible()
    expect(page.locator("#result")).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Cancel").click()
    status(page).to_have_text("Cancelled.")
    expect(page.get_by_role("button", name="Fuse")).to_be_focused()
    expect(page.get_by_role("progressbar", name="Fusing")).to_be_hidden()
    stand_in.go_on.set()
    fuse(page)
    status(page).to_contain_text("Done")


def test_before_and_after_by_keyboard(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    fuse_chosen(page, pictures)
    slider = page.get_by_role("slider", name="Before and after")
    slider.focus()
    for key, wanted in (("ArrowRight", 51), ("Home", 0), ("End", 100), ("ArrowLeft", 99)):
        slider.press(key)
        expect(slider).to_have_attribute("aria-valuetext", f"{wanted} % before, {100 - wanted} % after")
        assert (
            page.locator("#after").evaluate("(image) => getComputedStyle(image).clipPath")
            == f"inset(0px 0px 0px {wanted}%)"
        )


def test_before_and_after_show_two_pictures(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    fuse_chosen(page, pictures)
    page.get_by_label("Outline").uncheck()
    slider = page.get_by_role("slider", name="Before and after")

    def look(key: str) -> np.ndarray:
        slider.press(key)
        slider.evaluate("(input) => input.blur()")
        shot = Image.open(io.BytesIO(page.locator("#compare").screenshot())).convert("RGB").resize((384, 192))
        # Inside of the first person, away from the chips and from the knob.
        return np.asarray(shot, np.int16)[60:140, 60:130]

    after, before = look("Home"), look("End")
    wanted_before = draw_group((2, 3))[60:140, 60:130].astype(np.int16)
    wanted_after = draw_group((1, 3))[60:140, 60:130].astype(np.int16)
    assert np.abs(before - wanted_before).mean() < 3
    assert np.abs(after - wanted_after).mean() < 3
    assert np.abs(wanted_after - wanted_before).mean() > 10


def test_before_and_after_by_touch(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page(viewport=NARROW, has_touch=True, is_mobile=True)
    fuse_chosen(page, pictures)
    page.locator("#compare").scroll_into_view_if_needed()
    box = page.locator("#compare").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    expect(page.get_by_role("slider", name="Before and after")).to_have_js_property("value", "25")
    session = page.context.new_cdp_session(page)
    at = [{"x": box["x"] + box["width"] * share, "y": box["y"] + box["height"] / 2} for share in (0.3, 0.5, 0.8)]
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": at[:1]})
    for point in at[1:]:
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(page.get_by_role("slider", name="Before and after")).to_have_js_property("value", "80")


def test_faces_are_outlined_where_they_were_found(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    choose(page, pictures)
    page.get_by_role("radio", name="All").check()
    fuse(page)
    expect(page.get_by_role("img", name="2 faces found")).to_be_visible()
    picture = page.locator("#compare").bounding_box()
    found = [rectangle.bounding_box() for rectangle in page.locator("#boxes .over").all()]
    scale = picture["width"] / 384
    for box, (left, top, width, height) in zip(found, [(48, 38, 96, 115), (240, 38, 96, 115)], strict=True):
        assert box["x"] - picture["x"] == pytest.approx(left * scale, abs=2)
        assert box["y"] - picture["y"] == pytest.approx(top * scale, abs=2)
        assert (box["width"], box["height"]) == pytest.approx((width * scale, height * scale), abs=4)
    page.get_by_label("Outline: 2 faces found").uncheck()
    expect(page.locator("#boxes")).to_be_hidden()


def test_time_by_stage_is_as_the_service_measured(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    fuse_chosen(page, pictures)
    rows = page.get_by_role("region", name="Time by stage").get_by_role("listitem")
    assert [row.inner_text().split("\n") for row in rows.all()] == [
        ["Open files", "8.4 ms"], ["Find faces", "22 ms"], ["Read faces", "13 ms"], ["Wait", "3.1 ms"],
        ["Fuse", "143 ms"], ["Put back", "9.6 ms"], ["Write file", "18 ms"], ["Total", "216 ms"],
    ]  # fmt: skip
    widths = page.locator("#timing i").evaluate_all("(bars) => bars.map((bar) => parseFloat(bar.style.width))")
    assert widths == pytest.approx([ms / 1.432 for ms in (8.4, 21.7, 12.9, 3.1, 143.2, 9.6, 17.5)], abs=0.1)


@pytest.mark.parametrize("provenance", ["c2pa", "c2pa; test-key", None])
def test_the_page_says_how_the_picture_was_made(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path], provenance: str | None
) -> None:
    stand_in.provenance = provenance
    page = open_page()
    fuse_chosen(page, pictures)
    region = page.get_by_role("region", name="Made by AI")
    says, kind = {
        "c2pa": ("A signed statement in the file (C2PA) says so.", "C2PA, signed"),
        "c2pa; test-key": ("A signed statement in the file (C2PA) says so.", "C2PA, test key"),
        None: ("The file carries no signed statement of that.", "not signed"),
    }[provenance]
    expect(region).to_contain_text("This picture was made by AI; it is not a photograph.")
    expect(region).to_contain_text(says)
    expect(page.locator("#made-provenance")).to_have_text(kind)
    expect(page.locator("#made-model")).to_have_text("paired-128")
    expect(page.locator("#made-bundle")).to_have_text("5e" * 32)
    expect(region.get_by_text("Signed with a test key.")).to_be_visible(visible=provenance == "c2pa; test-key")
