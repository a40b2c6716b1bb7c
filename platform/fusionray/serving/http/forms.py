"""The fields of forms and queries, each a model of its own.

FastAPI takes a parameter of its own for each field in the signature of a route: that cost more than half of the time of
the event loop on a request; one model for the whole form costs a quarter of it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import File, Path, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from fusionray.faces.blending.skin import Skin
from fusionray.faces.image_files.headers.image_header import PictureFormat
from fusionray.runtime.config import PixelBoost
from fusionray.runtime.face_preprocessor import REFERENCE_SIMILARITY, SELECTION_PATTERN, FaceSelection, check_sources
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import NAME_PATTERN
from fusionray.serving.http.accept import find_accepted_format
from fusionray.serving.schema import FuseOptions, PictureOptions, ReferenceFace

# Bytes of pictures, or handles of identities: one, or one for each numbered face.
Sources = tuple[bytes | str, ...]
# Of a model of a form that may have files: `form: Annotated[FuseForm, AS_FORM]`; of one of a query.
AS_FORM, AS_QUERY = File(), Query()
JobId = Annotated[str, Path(description="ID of the job, from the answer that started it.")]
Handle = Annotated[str, Field(min_length=1, max_length=100)]
MODEL = "Name of the model, as `GET /v1/models` lists them; default: the first."
FORMAT = "Format of the answer; default: as `Accept` prefers, or that of the picture."
CONSENT = "Token of consent, where the operator asks for one."
FACES = (
    "Faces of the target that are fused: largest (default), all, reference, or numbers by size (0,2; 0: the largest)."
)
SEVERAL = "Several are for as many numbered faces: the first for the first number in `faces`, and so on."


def read_number(value: object) -> object:
    """Read a whole number of a form, which is text there; anything else stays as it is, and is refused later."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value


class PictureQuery(BaseModel):
    """Options in the query; a field of the form overrides them."""

    model: str | None = Field(None, pattern=NAME_PATTERN, description=MODEL)
    format: PictureFormat | None = Field(None, description=FORMAT)


class FuseQuery(PictureQuery):
    """Options of face fusion in the query."""

    faces: FaceSelection | None = Field(None, pattern=SELECTION_PATTERN, description=FACES)


class Form(BaseModel):
    """A form. An empty field counts as not sent, as browsers send fields that nobody has filled in."""

    @model_validator(mode="before")
    @classmethod
    def drop_empty_fields(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop fields that are empty texts."""
        return {name: value for name, value in values.items() if not (isinstance(value, str) and value == "")}


class PictureForm(Form):
    """The fields of every form that asks for a picture."""

    model: str | None = Field(None, pattern=NAME_PATTERN, description=MODEL)
    format: PictureFormat | None = Field(None, description=FORMAT)
    mark: bool = Field(False, description="Draw a visible mark on the picture.")
    consent: str | None = Field(None, max_length=4096, description=CONSENT)

    def choose_model(self, query: PictureQuery) -> str | None:
        """Return the name of the requested model, if one is named."""
        return self.model or query.model

    def choose_format(self, request: Request, query: PictureQuery) -> PictureFormat | None:
        """Choose the format of an answer: as a field names it, as `Accept` prefers, or as the operator set."""
        default: PictureFormat | None = request.app.state.default_format
        return self.format or query.format or find_accepted_format(request.headers.get("accept")) or default

    def read_picture_options(self, request: Request, query: PictureQuery) -> PictureOptions:
        """Read the options that every task has."""
        return PictureOptions(self.choose_format(request, query), self.mark, self.consent)


class FaceForm(PictureForm):
    """The fields that choose faces of a target, and say how they are fused."""

    faces: FaceSelection | None = Field(None, pattern=SELECTION_PATTERN, description=FACES)
    strength: float = Field(
        1.0, ge=0.0, le=1.0, allow_inf_nan=False, description="How much of the fused face is blended in, 0 to 1."
    )
    skin: Skin | None = Field(
        None,
        description="Whose skin the fused face has: `source`, as the model makes it, or `target`, the colours of the "
        "head around it. Default: as the model's bundle says.",
    )
    pixel_boost: Annotated[PixelBoost, BeforeValidator(read_number)] = Field(
        1,
        description="How many times the model's size a large face is fused at, a side: 2 takes four times as long, 4 "
        "sixteen times. Smaller faces are not affected.",
    )
    reference: UploadFile | None = Field(
        None,
        description="For `faces=reference`: fuse the face that is most similar to the largest one of this picture.",
    )
    reference_similarity: float = Field(
        REFERENCE_SIMILARITY,
        ge=-1.0,
        le=1.0,
        allow_inf_nan=False,
        description="Least similarity with the reference, a cosine; the right one depends on the model.",
    )

    def read_options(self, request: Request, query: FuseQuery) -> FuseOptions:
        """Read the options of a fusion.

        Raises: RequestValidationError if a reference comes without `faces=reference`, or the other way round.
        """
        faces = self.faces or query.faces or "largest"
        if (faces == "reference") != (self.reference is not None):
            raise build_refusal("reference", "send `faces=reference` and the picture `reference` together")
        return FuseOptions(
            faces=faces,
            picture_format=self.choose_format(request, query),
            mark=self.mark,
            consent=self.consent,
            strength=self.strength,
            skin=self.skin,
            pixel_boost=self.pixel_boost,
        )


class SourcesForm(FaceForm):
    """The fields of face fusion with one source, or one for each numbered face."""

    source: list[UploadFile] = Field([], description=f"The picture whose face is taken. {SEVERAL}")
    identity: list[Handle] = Field([], description=f"Handle of a stored face. {SEVERAL}")

    async def read_sources(self, request: Request, options: FuseOptions) -> Sources:
        """Read the sources: either pictures, or handles of identities.

        Raises: RequestValidationError.
        """
        if bool(self.source) == bool(self.identity):
            raise build_refusal("source", "send either `source` (a picture) or `identity` (a handle), not both")
        name, num_sources = ("source", len(self.source)) if self.source else ("identity", len(self.identity))
        if num_sources > request.app.state.max_sources:
            raise build_refusal(name, f"{num_sources} were sent; {request.app.state.max_sources} are the limit")
        try:
            check_sources(num_sources, options.faces)
        except ValueError as error:
            raise build_refusal("faces", str(error)) from None
        return tuple([await one.read() for one in self.source]) or tuple(self.identity)

    async def read_reference(self) -> ReferenceFace | None:
        """Read the picture of the face that is to be fused, if one was sent."""
        if self.reference is None:
            return None
        return ReferenceFace(await self.reference.read(), self.reference_similarity)


class FuseForm(SourcesForm):
    """The form of `POST /v1/fuse`."""

    target: UploadFile = Field(description="The picture to change.")


class BatchForm(SourcesForm):
    """The form of `POST /v1/batches`."""

    target: list[UploadFile] = Field(description="The pictures to change, in order.")


def find_caller(request: Request) -> Caller:
    """Return the caller that `ApiKeyMiddleware` found."""
    caller: Caller = request.state.caller
    return caller


def build_refusal(field: str, msg: str) -> RequestValidationError:
    """Build the error of a field that the types of the form cannot refuse."""
    return RequestValidationError([{"loc": ("body", field), "msg": msg, "type": "value_error"}])
