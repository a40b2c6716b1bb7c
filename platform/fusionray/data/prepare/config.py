"""The settings of prepare."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from fusionray.config import Section
from fusionray.faces.align import load_template
from fusionray.types import ShardTask


class PrepareConfig(Section):
    """What to read, how to crop it, what to keep and where to write it.

    Detector, template, landmarks and the limits of faces have no effect on pictures, which lose whatever is smaller
    than `size`: nothing is enlarged.
    """

    input: str = Field(
        description="folder (<identity>/<image>, or flat), tar or zip of one, or synthetic://people=500,images=20,..."
    )
    output: str = Field(description="folder for the shards: a local path or a URI (s3://, gs://, file://)")
    task: ShardTask = Field(
        "faces", description="faces: the largest face of each picture, aligned; pictures: the middle square of each"
    )
    template: str = Field("arcface_128", description="where the five points lie in a crop")
    size: int = Field(128, ge=32, le=2048, description="pixels a side of a crop")
    detector: str = Field("default", description="'default', or the path of a YuNet or SCRFD ONNX file")
    landmarks: Literal["detected", "exact"] = Field(
        "detected", description="synthetic input: align by detected points, or by the renderer's own without detection"
    )
    min_face_pixels: int = Field(32, ge=1, description="drop a face whose box is narrower than this in the picture")
    min_sharpness: float = Field(
        8.0, ge=0, description="drop a crop whose Laplacian variance at 112 px is below this; 0 keeps all"
    )
    max_yaw_asymmetry: float | None = Field(
        None, gt=0, description="drop a face turned aside more than this (0 frontal, about 1 profile); null keeps all"
    )
    image_format: Literal["jpeg", "png"] = Field("jpeg", description="how crops are stored")
    quality: int = Field(95, ge=50, le=100, description="JPEG quality of the stored crops")
    rows_per_shard: int = Field(512, ge=1, description="pictures that one shard is made from, people kept whole")
    validation_fraction: float = Field(0.1, ge=0, lt=1, description="share of the people held out for validation")
    test_fraction: float = Field(
        0.1, ge=0, lt=1, description="share of the people held out for the final verdict: nothing is chosen by them"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="decides which people are held out")
    max_file_bytes: int = Field(64 * 2**20, ge=1, description="drop larger files without reading them")
    max_image_pixels: int = Field(100_000_000, ge=1, description="drop larger pictures without decoding them")
    min_image_side: int = Field(32, ge=1, description="drop pictures with a shorter side")
    max_archive_members: int = Field(10_000_000, ge=1, description="refuse an archive with more members")
    max_archive_bytes: int = Field(2**42, ge=1, description="refuse an archive that unpacks to more bytes")
    workers: int | None = Field(None, ge=1, description="processes of one CPU each; null uses the CPUs of the cluster")
    contact_sheet: bool = Field(True, description="write contact_sheet.png: a row of crops for each of 12 people")
    overwrite: bool = Field(False, description="replace shards that were made from other input or settings")

    @field_validator("template")
    @classmethod
    def _known_template(cls, name: str) -> str:
        load_template(name)
        return name

    @model_validator(mode="after")
    def _leave_some_to_training(self) -> PrepareConfig:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"validation_fraction={self.validation_fraction} and test_fraction={self.test_fraction} leave nobody "
                "to learn from; their sum must be below 1"
            )
        return self
