"""The JSON answers of the service, with what the OpenAPI document says of each field."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from fusionray.serving.auth.key_file import KEY_NAME_PATTERN

EXPIRES = "2027-01-31T12:00:00+00:00"


def with_example(**fields: Any) -> ConfigDict:
    """Configure a model with the example that the OpenAPI document shows."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Identity(BaseModel):
    """A stored face."""

    model_config = with_example(expires_at=EXPIRES)

    expires_at: str = Field(
        description="Time at which the face is deleted, in UTC.", json_schema_extra={"format": "date-time"}
    )


class KeptIdentity(Identity):
    """A face that was stored."""

    model_config = with_example(identity=f"id_{'A' * 43}", expires_at=EXPIRES, box=[40, 32, 96, 120])

    identity: str = Field(
        description="Handle of the face: a key, which is stored nowhere. Send it as the field `identity` of a form, "
        "or in the header `X-FusionRay-Identity`."
    )
    box: list[int] = Field(
        description="Box of the face in the picture: left, top, width, height in pixels.", min_length=4, max_length=4
    )


class Face(BaseModel):
    """A face of a picture."""

    index: int = Field(description="Number of the face for the field `faces`: 0 is the largest.")
    box: list[int] = Field(
        description="Box of the face: left, top, width, height in pixels.", min_length=4, max_length=4
    )
    landmarks: list[list[float]] = Field(
        description="Eyes, nose and corners of the mouth, each as x, y in pixels.", min_length=5, max_length=5
    )
    score: float = Field(description="Score of the detector, 0 to 1.")
    similarity: float | None = Field(
        default=None, description="Similarity to the face of `reference`, if one was sent: a cosine, -1 to 1."
    )


class Faces(BaseModel):
    """The faces of a picture."""

    model_config = with_example(
        width=640,
        height=480,
        faces=[
            {
                "index": 0,
                "box": [200, 120, 96, 120],
                "landmarks": [[225.1, 165.0], [268.4, 164.2], [247.0, 190.3], [230.2, 212.8], [265.9, 211.7]],
                "score": 0.934,
            }
        ],
    )

    width: int = Field(description="Width of the picture in pixels, upright.")
    height: int = Field(description="Height of the picture in pixels, upright.")
    faces: list[Face] = Field(description="Its faces, the largest first.")


class Status(BaseModel):
    """The state of the service."""

    model_config = with_example(status="ok")

    status: Literal["ok", "ready"] = Field(description="ok: a replica answers; ready: its default model does.")


class LimitUsage(BaseModel):
    """How far a limit is used up. Tokens that replicas lease ahead count as used, so it may be a little less."""

    limit: int = Field(description="The limit.")
    used: int = Field(description="Used in this minute (requests), or today (images; a day begins at midnight UTC).")
    remaining: int = Field(description="How many may be sent at once now: of requests at most those of ten seconds.")
    reset_seconds: int = Field(description="Time until `remaining` is as large as it can be.")


class Usage(BaseModel):
    """What the caller's key allows, and what it used."""

    model_config = with_example(
        name="ann",
        admin=False,
        expires=EXPIRES,
        models=["default"],
        requests_per_minute={"limit": 60, "used": 3, "remaining": 8, "reset_seconds": 2},
        images_per_day={"limit": 500, "used": 41, "remaining": 459, "reset_seconds": 30_240},
    )

    name: str = Field(description="Name of the key; `anonymous` on a service without keys.")
    admin: bool = Field(description="Whether the key may list, add and remove keys.")
    expires: str | None = Field(description="Time from which the key is refused; null: never.")
    models: list[str] | None = Field(description="Models that the key may use; null: all.")
    requests_per_minute: LimitUsage | None = Field(
        description="Requests that send pictures; null: no limit, not counted."
    )
    images_per_day: LimitUsage | None = Field(description="Pictures that were made; null: no limit, not counted.")


class ApiKeyInfo(BaseModel):
    """An API key, without the key and its digest."""

    name: str = Field(description="Name of the key's owner.")
    expires: str | None = Field(description="Time from which the key is refused; null: never.")
    requests_per_minute: int | None = Field(description="More requests are answered 429; null: no limit.")
    images_per_day: int | None = Field(description="More images are answered 429, until midnight UTC; null: no limit.")
    models: list[str] | None = Field(description="Models that the key may use; null: all.")
    admin: bool = Field(description="Whether the key may list, add and remove keys.")


class ApiKeyList(BaseModel):
    """The keys of the service's file. The operator's key, which comes from the environment, is not among them."""

    model_config = with_example(
        keys=[
            {
                "name": "ann",
                "expires": EXPIRES,
                "requests_per_minute": 60,
                "images_per_day": 500,
                "models": ["default"],
                "admin": False,
            }
        ]
    )

    keys: list[ApiKeyInfo] = Field(description="The keys, in the order in which they were added.")


class NewApiKey(BaseModel):
    """An API key to be made. Admins' keys are made on the machine, with `fusionray keys add --admin`."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "ann", "requests_per_minute": 60}]}
    )

    name: str = Field(pattern=KEY_NAME_PATTERN, description="Name of the key's owner; no other key has it.")
    expires: AwareDatetime | None = Field(
        default=None, description="Time from which the key is refused, with a time zone; null: never."
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, le=10**9, description="More are answered 429; null: no limit."
    )
    images_per_day: int | None = Field(
        default=None, ge=1, le=10**9, description="More are answered 429, until midnight UTC; null: no limit."
    )
    models: list[str] | None = Field(default=None, description="Models that the key may use; null: all.")


class AddedApiKey(BaseModel):
    """An API key that was made."""

    model_config = with_example(name="ann", key=f"fr_{'A' * 43}")

    name: str = Field(description="Name of the key's owner.")
    key: str = Field(description="The key: it is stored nowhere, and this answer alone shows it.")
