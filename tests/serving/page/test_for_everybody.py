"""Accessibility of the page: security policy, widths, keyboard, screen reader, contrast."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.page_driving import (
    OpenPage,
    Page,
    choose,
    expect,
    fuse,
    fuse_chosen,
    keep_face,
    status,
)
from tests.support.stand_in_api import StandIn


def test_the_policy_stops_scripts_styles_and_requests(browser: Any, base_url: str) -> None:
    # Without `open_page`, because the browser must report errors here.
    context = browser.new_context()
    page = context.new_page()
    reports: list[str] = []
    page.on("console", lambda message: reports.append(message.text))
    page.goto(base_url)
    ran = page.evaluate(
        """async () => {
            const script = Object.assign(document.createElement("script"), { textContent: "window.ran = true" });
            const style = Object.assign(document.createElement("style"), { textContent: "body { width: 7px }" });
            document.body.append(script, style);
            const sent = await fetch("http://127.0.0.2:9/").then(() => true, () => false);
            return [window.ran ?? false, document.body.offsetWidth === 7, sent];
        }"""
    )
    assert ran == [False, False, False]
    for directive in ("script-src", "style-src", "connect-src"):
        assert any("Content Security Policy" in report and f"{directive} 'self'" in report for report in reports)
    context.close()


def fill_everything(page: Page, stand_in: StandIn, pictures: dict[str, Path]) -> None:
    """Open a page that shows everything at once: pictures, a stored face, a result, a refusal."""
    stand_in.provenance = "c2pa; test-key"
    choose(page, pictures)
    keep_face(page)
    page.get_by_label("Source picture", exact=True).set_input_files(pictures["bo.png"])
    fuse(page)
    status(page).to_contain_text("Done")
    stand_in.key = "a-key-of-this-test"
    page.get_by_label("Target picture", exact=True).set_input_files(pictures["nobody.png"])
    fuse(page)
    page.locator("#key").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("alert")).to_be_visible()
    # Back to the start, also for the next Tab.
    page.evaluate(
        "document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); scrollTo(0, 0)"
    )


@pytest.mark.parametrize("width", [320, 360, 390, 768, 1024, 1280])
def test_nothing_overflows_the_width(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path], width: int
) -> None:
    page = open_page(viewport={"width": width, "height": 740})
    sideways = "document.scrollingElement.scrollWidth - innerWidth"
    assert page.evaluate(sideways) <= 0
    fill_everything(page, stand_in, pictures)
    assert page.evaluate(sideways) <= 0
    sticking = """[...document.querySelectorAll("body *")].filter((element) => {
        const { right, left, width } = element.getBoundingClientRect();
        return element.checkVisibility() && !element.closest(".skip, .quietly") && width && (right > innerWidth + 0.5 || left < -0.5);
    }).map((element) => element.outerHTML.slice(0, 80))"""  # noqa: E501
    assert page.evaluate(sticking) == []


def test_every_control_is_reached_by_tab_seen_and_named(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    page = open_page(viewport={"width": 1280, "height": 1900})
    fill_everything(page, stand_in, pictures)
    controls = page.evaluate(
        """[...document.querySelectorAll("a[href], button, input, select")].filter((control) =>
            control.checkVisibility() && !control.disabled && !(control.type === "radio" && !control.checked)
        ).map((control, index) => (control.dataset.number = index))"""
    )
    assert len(controls) >= 18
    unfocused = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    session = page.context.new_cdp_session(page)
    reached, unnamed, unseen = [], [], []
    for _ in controls:
        page.keyboard.press("Tab")
        number, box, markup = page.evaluate(
            """() => {
                const { x, y, width, height } = document.activeElement.getBoundingClientRect();
                const { outerHTML, dataset } = document.activeElement;
                return [dataset.number, [x, y, x + width, y + height], outerHTML.slice(0, 80)];
            }"""
        )
        reached.append(int(number))
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        (focused,) = [
            node
            for node in nodes
            if node["role"]["value"] != "RootWebArea"
            and any(entry["name"] == "focused" and entry["value"]["value"] for entry in node.get("properties", []))
        ]
        if not focused["name"]["value"].strip():
            unnamed.append(markup)
        left, top, right, bottom = (round(side) for side in box)
        area = (max(0, left - 8), max(0, top - 8), min(1280, right + 8), min(1900, bottom + 8))
        now = Image.open(io.BytesIO(page.screenshot())).convert("RGB").crop(area)
        change = np.abs(np.asarray(now, np.int16) - np.asarray(unfocused.crop(area), np.int16)).max(axis=2)
        # A ring around the smallest control has more pixels than this; a blinking caret has fewer.
        if np.count_nonzero(change > 60) < 80:
            unseen.append(markup)
    assert sorted(reached) == controls
    assert reached == sorted(reached), "the order of Tab is not the order of the page"
    assert (unnamed, unseen) == ([], [])


def test_landmarks_and_headings_describe_the_page(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    fuse_chosen(page, pictures)
    for role, name in (
        ("banner", None),
        ("main", None),
        ("contentinfo", None),
        ("form", "What to make"),
        ("region", "Result"),
    ):
        expect(page.get_by_role(role, name=name)).to_have_count(1)
    expect(page.get_by_role("group", name="Faces")).to_have_count(1)
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.get_by_role("status").evaluate("(element) => element.getAttribute('aria-live') ?? 'polite'") == "polite"
    assert page.evaluate("[...document.images].every((image) => image.hasAttribute('alt'))")
    page.keyboard.press("Tab")


# Contrast, as WCAG 2.2 defines it, of every visible text against the first opaque background below it.
MEASURE_CONTRAST = """() => {
    const parse = (text) => {
        const [r, g, b, a = 1] = text.match(/^rgba?\\((.+)\\)$/)[1].split(/[ ,/]+/).map(Number);
        return { rgb: [r, g, b], a };
    };
    const luminance = ({ rgb }) => {
        const [r, g, b] = rgb.map((each) => each / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one, other) => {
        const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    };
    const ground = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const colour = parse(getComputedStyle(each).backgroundColor);
            if (colour.a === 1) return colour;
        }
    };
    const speaks = (element) => element.matches("select, #key") || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const seen = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility({ opacityProperty: true }));
    const texts = seen.filter(speaks).map((element) => [contrast(parse(getComputedStyle(element).color), ground(element)), element.outerHTML.slice(0, 90)]);
    const edges = seen.filter((element) => element.matches("select, .segments, .drop:not(.filled), .quiet, #key")).map((element) =>
        [contrast(parse(getComputedStyle(element).borderTopColor), ground(element.parentElement)), element.outerHTML.slice(0, 90)]);
    const ring = document.querySelector("#make");
    ring.focus({ focusVisible: true });
    edges.push([contrast(parse(getComputedStyle(ring).outlineColor), ground(ring.parentElement)), "focus ring"]);
    return { texts, edges };
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_edges_have_enough_contrast(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path], scheme: str
) -> None:
    page = open_page(color_scheme=scheme)
    measured = [page.evaluate(MEASURE_CONTRAST)]
    fill_everything(page, stand_in, pictures)
    measured.append(page.evaluate(MEASURE_CONTRAST))
    assert len(measured[1]["texts"]) > 50
    assert [entry for found in measured for entry in found["texts"] if entry[0] < 4.5] == []
    assert [entry for found in measured for entry in found["edges"] if entry[0] < 3] == []


def test_nothing_moves_with_reduced_motion(open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]) -> None:
    stand_in.go_on.clear()
    page = open_page()
    choose(page, pictures)
    fuse(page)
    expect(page.locator("#progress")).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0
    stand_in.go_on.set()
    status(page).to_contain_text("Done")
