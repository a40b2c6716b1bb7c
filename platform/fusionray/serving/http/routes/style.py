"""The route that paints a picture in the style of others."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Request, Response, UploadFile
from pydantic import BaseModel, Field

from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.runtime.style_transfer.styles import parse_weights
from fusionray.runtime.style_transfer.stylizer import name_pictures
from fusionray.serving.http.forms import AS_FORM, AS_QUERY, PictureForm, PictureQuery, build_refusal, find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import answer_request, picture_responses
from fusionray.serving.pipeline.request_service import PictureRequest
from fusionray.serving.tasks.style_transfer import StyleTransfer

PAINTED = picture_responses("The painted picture, signed")
MAX_STYLES = 8
NUMBER = r"[0-9]{1,4}(\.[0-9]{1,6})?"


class StyleFields(BaseModel):
    """The fields that say how contents are painted."""

    style: list[UploadFile] = Field(
        min_length=1, max_length=MAX_STYLES, description="The picture whose style is taken; several are mixed."
    )
    weights: str | None = Field(
        None,
        pattern=f"^{NUMBER}(,{NUMBER}){{0,{MAX_STYLES - 1}}}$",
        description="Weights of the styles, one for each: 0.7,0.3. All are equal by default.",
    )
    strength: float = Field(
        1.0, ge=0.0, le=1.0, allow_inf_nan=False, description="0 paints the content in its own style, 1 in the others."
    )

    def read_painting(self) -> dict[str, Any]:
        """Read what the runner takes beside pictures.

        Raises: RequestValidationError.
        """
        return {"weights": self.read_weights(), "strength": self.strength}

    def read_weights(self) -> list[float] | None:
        """Read the weights of the styles; None if they are equal.

        Raises: RequestValidationError unless there is one for each style, and one above 0.
        """
        if self.weights is None:
            return None
        try:
            return parse_weights(self.weights, len(self.style))
        except ValueError as error:
            raise build_refusal("weights", str(error)) from None


class StyleForm(PictureForm, StyleFields):
    """The form of `POST /v1/stylize`."""

    content: UploadFile = Field(description="The picture to paint.")


def add_style_route(api: FastAPI, task: StyleTransfer) -> None:
    """Add the route that paints a picture."""

    @api.post(
        "/v1/stylize",
        summary="Paint a picture in the style of others",
        response_class=Response,
        responses=PAINTED | problems(*OF_PICTURES),
    )
    async def stylize(
        request: Request, form: Annotated[StyleForm, AS_FORM], query: Annotated[PictureQuery, AS_QUERY]
    ) -> Response:
        painting_settings = form.read_painting()
        pictures = name_pictures(await form.content.read(), [await style.read() for style in form.style])
        painting = PictureRequest(
            STYLE_TRANSFER,
            find_caller(request),
            pictures,
            form.read_picture_options(request, query),
            form.choose_model(query),
            painting_settings,
        )
        return await answer_request(task, painting)
