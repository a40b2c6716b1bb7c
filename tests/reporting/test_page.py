from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fusionray.faces.image_files.decode import encode_image
from fusionray.reporting.charts import (
    AXIS_WIDTH,
    ChartLine,
    MeasuredInterval,
    ParallelAxis,
    draw_interval,
    draw_lines,
    draw_parallel,
)
from fusionray.reporting.page import Page, PageSection, PageTable, save_page
from fusionray.reporting.parts import Chart, PageImage, PartGroup, StripRow, StripRows
from fusionray.reporting.style import PALETTE
from tests.support.page_driving import NARROW, WIDE, open_browser
from tests.support.page_shape import check_page
from tests.support.pictures import draw_person


def build_page() -> Page:
    """Build a page with every kind of part, whose tables and rows are wider than a phone."""
    png = encode_image(draw_person(1))
    axes = [ParallelAxis(f"recipe.setting_{number}", [(0, "0.0001"), (1, "0.01")]) for number in range(9)]
    lines = [ChartLine([(number, 0.5) for number in range(9)], "best: trial <1>")]
    people = [PageImage(f"best-{number}", f"best {number}", png) for number in range(3)]
    curve = draw_lines([ChartLine([(0, 1), (9, 2)])], title="loss", x_label="x")
    settings = draw_parallel(axes, lines, title="p")
    strip = draw_interval(MeasuredInterval(0.4, 0.3, 0.5, wanted_low=0.9, holds=False), (0, 1), title="a_long_key 0.4")
    goal = "> " + ", ".join(f"another_long_key_{number} (0.5)" for number in range(6))
    return Page(
        "Page of <everything>",
        sections=[
            PageSection(
                "Pictures", [PageImage("grid", "Two & two", png, "caption", ("source", "target"))], narrow=True
            ),
            PageSection(
                "Side by side",
                [PartGroup("Best", people)],
                columns=True,
            ),
            PageSection("Curves", [Chart("loss", "loss", curve)]),
            PageSection("Settings", [Chart("parallel", "p", settings, min_pixels=9 * AXIS_WIDTH)]),
            PageSection(
                "Rows",
                [StripRows([StripRow("a_very_long_key" * 4, strip, "0.4 share", "note", [goal], ("0", "1"), False)])],
            ),
        ],
        tables=[PageTable("wide", [f"column {n}" for n in range(20)], [["unbreakable_cell_text"] * 20] * 3, "a note")],
        lead="0 of 1 goals hold.",
        notes=["a note of " + "many words " * 50],
        command="fusionray evaluate " + "x" * 500,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    save_page(folder, build_page())
    return folder


def test_a_page_is_self_contained_and_shows_pictures_before_folded_tables(folder: Path) -> None:
    shape = check_page((folder / "report.html").read_text())
    assert len(shape.pictures) == 4
    assert "Page of <everything>" in shape.text
    assert "✗ misses" in shape.text
    assert shape.words_of("Two & two")


def test_every_class_of_a_page_has_a_style(folder: Path) -> None:
    style, body = (folder / "report.html").read_text().split("</style>", 1)
    used = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    assert "column_names" in used
    assert used <= set(re.findall(r"\.([a-z][\w-]*)", style))


def test_markdown_refers_to_files_of_its_folder(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    named = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert named == ["grid.png", "best-0.png", "best-1.png", "best-2.png", "loss.svg", "parallel.svg"]
    assert all((folder / name).is_file() for name in named)
    assert {path.name for path in folder.iterdir()} == {*named, "report.html", "report.md"}
    assert re.search(r"^- a_very.*: 0.4 share, goal.*, misses$", text.replace("> another", "goal"), re.MULTILINE)


def test_a_chart_file_has_its_colours_for_light_and_dark(folder: Path) -> None:
    chart = (folder / "loss.svg").read_text()
    assert ElementTree.fromstring(chart).tag == "{http://www.w3.org/2000/svg}svg"
    for scheme in PALETTE.values():
        assert scheme["main"] in chart


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    levels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", PALETTE)
def test_text_and_lines_have_enough_contrast(scheme: str) -> None:
    colours = PALETTE[scheme]
    for behind in ("paper", "panel"):
        for words in ("ink", "muted", "good", "bad", "main", "second"):
            assert contrast(colours[words], colours[behind]) >= 4.5, (words, behind)
        assert contrast(colours["other"], colours[behind]) >= 3, behind
    for drawn in ("good", "bad", "ink"):
        assert contrast(colours[drawn], colours["wanted"]) >= 3, drawn


@pytest.mark.parametrize("viewport", [NARROW, WIDE], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_content_is_wider_than_the_window(folder: Path, viewport: dict[str, int], scheme: str) -> None:
    # What lies in a container that scrolls by itself may be wider; the container may not.
    wider = """() => [...document.body.querySelectorAll('*')]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5)
        .filter((element) => !element.parentElement.closest('.scroll'))
        .map((element) => element.outerHTML.slice(0, 80))"""
    with open_browser() as browser:
        page = browser.new_page(viewport=viewport, color_scheme=scheme, java_script_enabled=True)
        page.goto((folder / "report.html").as_uri())
        assert page.evaluate(wider) == []
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.evaluate(wider) == []
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
        paper = PALETTE[scheme]["paper"]
        red, green, blue = (int(paper[place : place + 2], 16) for place in (1, 3, 5))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == f"rgb({red}, {green}, {blue})"


def test_folded_tables_are_printed_in_light_colours(folder: Path) -> None:
    with open_browser() as browser:
        page = browser.new_page(color_scheme="dark")
        page.goto((folder / "report.html").as_uri())
        assert not page.get_by_text("unbreakable_cell_text").first.is_visible()
        page.emulate_media(media="print")
        assert page.get_by_text("unbreakable_cell_text").first.is_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
