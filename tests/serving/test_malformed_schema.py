"""What the OpenAPI document allows is answered as it says, and what it does not allow is refused as it says."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies
from hypothesis.errors import Unsatisfiable
from requests import Session
from schemathesis import APIOperation, Case, GenerationMode, openapi
from schemathesis.checks import CHECKS

from tests.serving import strangers
from tests.serving.strangers import SOURCE, TARGET, Stranger
from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.wire import HOST

# Pytest finds the fixtures of a module by their names in it.
stranger = strangers.stranger
all_is_well_afterwards = strangers.all_is_well_afterwards

FORM_TYPE = "multipart/form-data"
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


@pytest.mark.slow(seconds=50)
def test_the_openapi_document_holds(stranger: Stranger) -> None:
    """Ask every operation of the document, within what it allows and beyond."""
    pictures = strategies.sampled_from([SOURCE, TARGET, TARGET, encode(draw_person(3, 64), "PNG"), SOURCE[:900]])
    for kind in ("jpeg", "png", "webp", "avif", "heic", "bmp", "tiff", "x-portable-anymap"):
        openapi.media_type(f"image/{kind}", pictures)
    schema = openapi.from_url(f"http://{HOST}:{stranger.port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 4
    with Session() as session:
        for operation in operations:
            statuses = ask_examples(operation, GenerationMode.POSITIVE, session)
            assert statuses
            # Where nothing is asked, nothing can be answered wrongly.
            with contextlib.suppress(Unsatisfiable):
                statuses += ask_examples(operation, GenerationMode.NEGATIVE, session)
            if operation.path in ("/v1/batches", "/v1/fuse", "/v1/models"):
                assert 200 in statuses


def ask_examples(operation: APIOperation, mode: GenerationMode, session: Session) -> list[int]:
    """Send examples of an operation, check each answer against the document, and give their statuses."""
    checks = [CHECKS.get_one(name) for name in CHECKED]
    statuses: list[int] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=80,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Case) -> None:
        if mode is GenerationMode.POSITIVE:
            make_servable(case)
        statuses.append(case.call_and_validate(session=session, checks=checks).status_code)

    ask()
    return statuses


def make_servable(case: Case) -> None:
    """Let a request that the document allows reach the model: by the one name that is served, its pictures as files."""
    form = case.operation.get_body_for_media_type(FORM_TYPE)
    for fields in (case.query, case.body):
        if isinstance(fields, dict) and "model" in fields:
            fields["model"] = "default"
    if form is not None and isinstance(case.body, dict):
        for name, value in case.body.items():
            # One picture is drawn for a whole field; schemathesis would send it as text where the field takes several.
            if isinstance(value, bytes) and form.form_properties.get(name, {}).get("type") == "array":
                case.body[name] = [value]
