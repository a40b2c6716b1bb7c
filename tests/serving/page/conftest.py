"""The page in a real browser, served by a fake of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionray.serving.http.static_page import page_routes
from tests.support.page_driving import TIMEOUT_MILLISECONDS, WIDE, OpenPage, Page, open_browser
from tests.support.pictures import draw_empty, draw_group, draw_person
from tests.support.stand_in_api import StandIn, encode, serve_beside


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[StandIn, str]]:
    stand_in = StandIn()
    with serve_beside(stand_in, page_routes()) as address:
        yield stand_in, address


@pytest.fixture
def stand_in(served: tuple[StandIn, str]) -> Iterator[StandIn]:
    """The fake API, reset."""
    fresh = StandIn()
    served[0].__dict__.update(fresh.__dict__)
    yield served[0]
    served[0].go_on.set()


@pytest.fixture
def base_url(served: tuple[StandIn, str]) -> str:
    """The address of the page and the API. Return the address of a real service here to try the page with it."""
    return served[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Any, base_url: str, stand_in: StandIn) -> Iterator[OpenPage]:
    """Open the page in a new context; check that it had no error, no request to others, and stored nothing."""
    contexts, complaints, requests = [], [], []

    def open_it(**options: Any) -> Page:
        # Object URLs of pictures in memory that the page creates and revokes.
        counting = """
            window.addresses = new Set();
            const {createObjectURL, revokeObjectURL} = URL;
            URL.createObjectURL = (blob) => { const made = createObjectURL.call(URL, blob); addresses.add(made); return made; };
            URL.revokeObjectURL = (address) => { addresses.delete(address); revokeObjectURL.call(URL, address); };
        """  # noqa: E501
        context = browser.new_context(**({"viewport": WIDE, "reduced_motion": "reduce"} | options))
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MILLISECONDS)
        context.add_init_script(counting)
        page = context.new_page()
        page.on("console", lambda message: complaints.append((message.type, message.text, message.location["url"])))
        page.on("pageerror", lambda error: complaints.append(("error", str(error), "")))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(base_url)
        return page

    yield open_it
    assert [url for url in requests if not url.startswith((base_url + "/", f"blob:{base_url}/"))] == []
    faults = [
        (kind, text)
        for kind, text, url in complaints
        # A browser reports each answer of 400 or above, which some tests cause on purpose.
        if kind in {"error", "warning"} and not (text.startswith("Failed to load resource") and "/v1/" in url)
    ]
    assert faults == []
    for context in contexts:
        for page in context.pages:
            kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.href]")
            assert kept == [0, 0, "", base_url + "/"]
            assert page.evaluate("indexedDB.databases()") == []
            shown = page.evaluate(
                "[...document.images].map((image) => image.src).filter((src) => src.startsWith('blob:'))"
            )
            assert sorted(page.evaluate("[...addresses]")) == sorted(shown)
        assert context.cookies() == []
        context.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files for a user to choose."""
    folder = tmp_path_factory.mktemp("pictures")
    contents = {
        "ada.png": encode(draw_person(1)),
        "bo.png": encode(draw_person(2)),
        "group.png": encode(draw_group((2, 3))),
        "nobody.png": encode(draw_empty()),
        "damaged.png": b"no picture",
        "letter.txt": b"Dear Ada",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}
