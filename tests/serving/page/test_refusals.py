"""The messages of the page about refusals, and its stored faces."""

from __future__ import annotations

from pathlib import Path

from fusionray.serving.schema import Problem
from tests.support.page_driving import (
    OpenPage,
    choose,
    expect,
    fuse,
    fuse_chosen,
    keep_face,
    status,
)
from tests.support.stand_in_api import StandIn


def test_a_problem_names_the_picture_at_fault(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    choose(page, pictures, target="nobody.png")
    fuse(page)
    alert = page.get_by_role("alert")
    expect(alert.get_by_role("heading")).to_have_text("No face found: the target picture")
    expect(alert).to_contain_text("no face was found in the target picture")
    expect(alert).to_contain_text("no_face, request req-0002")
    expect(page.locator("#target-fault")).to_have_text("No face found")
    expect(page.get_by_label("Target picture", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#source-fault")).to_be_hidden()
    expect(page.locator("#outcome")).to_be_hidden()
    choose(page, pictures)
    expect(page.locator("#target-fault")).to_be_hidden()
    fuse(page)
    expect(page.locator("#outcome")).to_be_visible()
    expect(alert).to_be_hidden()
    page.get_by_label("Target picture", exact=True).set_input_files(pictures["nobody.png"])
    fuse(page)
    expect(alert).to_contain_text("The picture below is the one before.")


def test_a_file_that_the_browser_cannot_show_is_left_to_the_service(
    open_page: OpenPage, pictures: dict[str, Path]
) -> None:
    page = open_page()
    choose(page, pictures, source="damaged.png")
    expect(page.locator("#source-note")).to_have_text("damaged.png: no preview in this browser")
    fuse(page)
    expect(page.get_by_role("alert").get_by_role("heading")).to_have_text("Not a picture: the source picture")


def test_a_busy_service_states_when_to_retry(open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]) -> None:
    stand_in.problem = Problem(
        503, "busy", "Not available now", "too many requests wait.", headers={"Retry-After": "7"}
    )
    page = open_page()
    choose(page, pictures)
    fuse(page)
    expect(page.get_by_role("alert")).to_contain_text("too many requests wait. Try again in 7 s.")


def test_a_problem_is_shown_as_text_and_never_as_markup(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    stand_in.problem = Problem(422, "<b>", "<img src=x onerror=alert(1)>", "<script>alert(1)</script>")
    page = open_page()
    choose(page, pictures)
    fuse(page)
    expect(page.get_by_role("alert").get_by_role("heading")).to_have_text("<img src=x onerror=alert(1)>")


def test_a_missing_answer_is_reported(open_page: OpenPage, pictures: dict[str, Path]) -> None:
    page = open_page()
    page.route("**/v1/fuse", lambda route: route.abort())
    choose(page, pictures)
    fuse(page)
    expect(page.get_by_role("alert").get_by_role("heading")).to_have_text("No answer from the service")


def test_a_service_that_is_not_ready_is_polled_again(open_page: OpenPage, stand_in: StandIn) -> None:
    stand_in.ready = False
    page = open_page()
    expect(page.locator("#service")).to_have_text("Not ready")
    stand_in.ready = True
    expect(page.locator("#service")).to_have_text("Ready")


def test_a_key_is_requested_when_needed_and_kept_in_memory(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    page = open_page()
    expect(page.locator("#service")).to_have_text("Ready")
    field = page.get_by_label("This service wants an API key")
    expect(field).to_be_hidden()
    stand_in.key = "a-key-of-this-test"
    choose(page, pictures)
    fuse(page)
    expect(field).to_be_focused()
    assert field.get_attribute("type") == "password"
    field.fill("a-wrong-key")
    field.press("Enter")
    expect(page.get_by_role("alert").get_by_role("heading")).to_have_text("API key needed")
    expect(field).to_have_value("")
    field.fill(stand_in.key)
    field.press("Enter")
    expect(page.locator("#outcome")).to_be_visible()
    expect(page.locator("#access")).to_be_hidden()
    assert len(stand_in.asked) == 1
    assert stand_in.key not in page.content()
    page.reload()
    expect(page.locator("#service")).to_have_text("Needs an API key")


def test_the_list_of_models_may_need_the_key_too(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    stand_in.key = "a-key-of-this-test"
    page = open_page()
    expect(page.locator("#service")).to_have_text("Needs an API key")
    page.get_by_label("This service wants an API key").fill(stand_in.key)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#service")).to_have_text("Ready")
    fuse_chosen(page, pictures)


def test_a_consent_token_is_requested_when_the_service_needs_one(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    stand_in.consent = "token-1"
    page = open_page()
    choose(page, pictures)
    fuse(page)
    page.get_by_label("Consent token").fill("token-1")
    page.get_by_label("Consent token").press("Enter")
    expect(page.locator("#outcome")).to_be_visible()
    assert stand_in.asked[-1]["consent"] == "token-1"


def test_a_face_can_be_kept_used_again_and_deleted(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    page = open_page()
    choose(page, pictures)
    keep_face(page)
    (identity,) = stand_in.kept
    fuse(page)
    status(page).to_contain_text("Done")
    assert stand_in.asked[-1]["identity"] == identity
    assert "source" not in stand_in.asked[-1]
    page.get_by_label("Source picture", exact=True).set_input_files(pictures["bo.png"])
    fuse(page)
    status(page).to_contain_text("Done")
    assert "identity" not in stand_in.asked[-1]
    page.get_by_role("button", name="Use again kept face 1, ada.png").click()
    expect(page.locator("#source-note")).to_contain_text("ada.png")
    page.get_by_role("button", name="Delete kept face 1, ada.png").click()
    status(page).to_have_text("The face is forgotten.")
    expect(page.get_by_role("region", name="Kept faces")).to_be_hidden()
    expect(page.locator("#source .preview")).to_be_hidden()
    assert stand_in.kept == {}


def test_an_expired_face_is_reported_and_can_be_deleted(
    open_page: OpenPage, stand_in: StandIn, pictures: dict[str, Path]
) -> None:
    page = open_page()
    choose(page, pictures)
    keep_face(page)
    stand_in.kept.clear()
    fuse(page)
    expect(page.get_by_role("alert")).to_contain_text("Unknown identity")
    page.get_by_role("button", name="Delete kept face 1").click()
    status(page).to_have_text("The face is forgotten.")
