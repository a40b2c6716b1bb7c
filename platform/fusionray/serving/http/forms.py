"""The fields of forms and queries.

FastAPI runs a dependency that is not `async` in a thread, which costs half a millisecond; so all of them are `async`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError

from fusionray.faces.headers.image_header import PictureFormat
from fusionray.runtime.face_preprocessor import REFERENCE_SIMILARITY, SELECTION_PATTERN, FaceSelection, check_sources
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import NAME_PATTERN
from fusionray.serving.http.accept import find_accepted_format
from fusionray.serving.schema import FuseOptions, PictureOptions, ReferenceFace

# Bytes of pictures, or handles of identities: one, or one for each numbered face.
Sources = tuple[bytes | str, ...]
Handle = Annotated[str, Form(min_length=1, max_length=100)]
FACES = (
    "Faces of the target that are fused: largest (default), all, reference, or numbers by size (0,2; 0: the largest)."
)
SEVERAL = "Several are for as many numbered faces: the first for the first number in `faces`, and so on."
ReferenceFile = Annotated[
    UploadFile | None,
    File(description="For `faces=reference`: fuse the face that is most similar to the largest one of this picture."),
]
ReferenceSimilarity = Annotated[
    float,
    Form(
        ge=-1.0,
        le=1.0,
        allow_inf_nan=False,
        description="Least similarity with the reference, a cosine; the right one depends on the model.",
    ),
]


def find_caller(request: Request) -> Caller:
    """Return the caller that `ApiKeyMiddleware` found."""
    caller: Caller = request.state.caller
    return caller


async def read_model(
    model_in_form: Annotated[str | None, Form(alias="model", pattern=NAME_PATTERN)] = None,
    model_in_query: Annotated[str | None, Query(alias="model", pattern=NAME_PATTERN)] = None,
) -> str | None:
    """Read the name of the requested model; the form overrides the query."""
    return model_in_form or model_in_query


def choose_format(request: Request, named: PictureFormat | None) -> PictureFormat | None:
    """Choose the format of an answer: as a field names it, as the `Accept` header prefers, or as the operator set."""
    default: PictureFormat | None = request.app.state.default_format
    return named or find_accepted_format(request.headers.get("accept")) or default


async def read_picture_options(
    request: Request,
    *,
    format_in_form: Annotated[PictureFormat | None, Form(alias="format")] = None,
    format_in_query: Annotated[PictureFormat | None, Query(alias="format")] = None,
    mark: Annotated[bool, Form()] = False,
    consent: Annotated[str | None, Form(max_length=4096)] = None,
) -> PictureOptions:
    """Read the client's options that every task has; the form overrides the query."""
    return PictureOptions(choose_format(request, format_in_form or format_in_query), mark, consent)


async def read_options(
    request: Request,
    *,
    faces_in_form: Annotated[
        FaceSelection | None, Form(alias="faces", pattern=SELECTION_PATTERN, description=FACES)
    ] = None,
    faces_in_query: Annotated[
        FaceSelection | None, Query(alias="faces", pattern=SELECTION_PATTERN, description=FACES)
    ] = None,
    format_in_form: Annotated[PictureFormat | None, Form(alias="format")] = None,
    format_in_query: Annotated[PictureFormat | None, Query(alias="format")] = None,
    mark: Annotated[bool, Form()] = False,
    consent: Annotated[str | None, Form(max_length=4096)] = None,
    strength: Annotated[float, Form(ge=0.0, le=1.0, allow_inf_nan=False)] = 1.0,
) -> FuseOptions:
    """Read the client's options; the form overrides the query."""
    return FuseOptions(
        faces=faces_in_form or faces_in_query or "largest",
        picture_format=choose_format(request, format_in_form or format_in_query),
        mark=mark,
        consent=consent,
        strength=strength,
    )


async def read_sources(
    request: Request,
    options: Annotated[FuseOptions, Depends(read_options)],
    source: Annotated[list[UploadFile], File(description=f"The picture whose face is taken. {SEVERAL}")] = [],  # noqa: B006
    identity: Annotated[list[Handle], Form(description=f"Handle of a stored face. {SEVERAL}")] = [],  # noqa: B006
) -> Sources:
    """Read the sources of a request: either pictures, or handles of identities.

    Raises: RequestValidationError.
    """
    if bool(source) == bool(identity):
        raise build_refusal("source", "send either `source` (a picture) or `identity` (a handle), not both")
    name, num_sources = ("source", len(source)) if source else ("identity", len(identity))
    if num_sources > request.app.state.max_sources:
        raise build_refusal(name, f"{num_sources} were sent; {request.app.state.max_sources} are the limit")
    try:
        check_sources(num_sources, options.faces)
    except ValueError as error:
        raise build_refusal("faces", str(error)) from None
    return tuple([await one.read() for one in source]) or tuple(identity)


async def read_reference(
    options: Annotated[FuseOptions, Depends(read_options)],
    reference: ReferenceFile = None,
    reference_similarity: ReferenceSimilarity = REFERENCE_SIMILARITY,
) -> ReferenceFace | None:
    """Read the picture of the face that is to be fused, which `faces=reference` needs.

    Raises: RequestValidationError.
    """
    check_reference(options, reference)
    return None if reference is None else ReferenceFace(await reference.read(), reference_similarity)


def check_reference(options: FuseOptions, reference: UploadFile | None) -> None:
    """Check that a reference comes where the options need one, and only there.

    Raises: RequestValidationError.
    """
    if (options.faces == "reference") != (reference is not None):
        raise build_refusal("reference", "send `faces=reference` and the picture `reference` together")


def build_refusal(field: str, msg: str) -> RequestValidationError:
    """Build the error of a field that the types of the form cannot refuse."""
    return RequestValidationError([{"loc": ("body", field), "msg": msg, "type": "value_error"}])
