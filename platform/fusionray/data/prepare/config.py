"""The settings of prepare."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fusionray.config import Section, in_unit
from fusionray.faces.align import load_template
from fusionray.shard_task import ShardTask


class PrepareConfig(Section):
    """The input and output of prepare, how it crops, and what it drops.

    With task=pictures the detector, template, landmarks and limits of faces have no effect; a picture smaller than
    `size` is dropped, not enlarged.
    """

    listed_by: ClassVar[str] = "fusionray prepare --settings"

    input: str = Field(
        description="Pictures to read: a folder (<identity>/<image>, or flat), a tar or zip of one, or "
        "synthetic://people=500,images=20; with task=pictures also synthetic://pictures=4000,size=256."
    )
    output: str = Field(description="Folder for the shards: a local path or a URI (s3://, gs://, file://).")
    task: ShardTask = Field(
        "faces",
        description="What a row shows. faces: the largest face of each picture, aligned; pictures: the middle square of"
        " each picture.",
    )
    template: str = Field("arcface_128", description="Alignment template: where the five face landmarks lie in a crop.")
    size: int = Field(128, ge=32, le=2048, description="Side of a crop.")
    detector: str = Field("default", description="Face detector: 'default', or the path of a YuNet or SCRFD ONNX file.")
    parser: str | None = Field(
        None,
        description="Bundle with a face parser (folder or URI): the region of a photograph is then all visible skin, "
        "without the hair, glasses and clothes in front of it; null: the inside of the face's outline.",
    )
    landmarks: Literal["detected", "exact"] = Field(
        "detected",
        description="Synthetic input only: align by detected landmarks, or by the exact landmarks that the renderer "
        "knows.",
    )
    min_face_pixels: int = Field(
        32,
        ge=1,
        description="Drop a face whose box is narrower than this in the original picture. The default detector does "
        "not search for faces below 46 px, in a large picture below a 44th part of its longer side.",
    )
    min_sharpness: float = Field(
        8.0, ge=0, description="Drop a crop whose Laplacian variance at 112 px is below this value; 0 keeps all crops."
    )
    max_yaw_asymmetry: float | None = Field(
        None,
        gt=0,
        description="Drop a face that is turned aside by more than this (0: frontal, about 1: profile); null keeps "
        "all faces.",
    )
    image_format: Literal["jpeg", "png"] = Field("jpeg", description="File format of the stored crops.")
    quality: int = Field(95, ge=50, le=100, description="JPEG quality of the stored crops.")
    rows_per_shard: int | None = Field(
        None,
        ge=1,
        description="Source pictures per shard; default: 512, or as many as 10,000 shards need.",
        json_schema_extra=in_unit("rows"),
    )
    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="Share of the people that are held out for validation."
    )
    test_fraction: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the people that are held out for the final evaluation; no setting may be chosen on them.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed that decides which people are held out.")
    max_file_bytes: int = Field(64 * 2**20, ge=1, description="Drop a file larger than this without reading it.")
    max_image_pixels: int = Field(
        100_000_000, ge=1, description="Drop a picture with more pixels than this without decoding it."
    )
    min_image_side: int = Field(32, ge=1, description="Drop a picture whose shorter side is below this.")
    max_archive_members: int = Field(
        10_000_000,
        ge=1,
        description="Refuse an archive with more files than this.",
        json_schema_extra=in_unit("files"),
    )
    max_archive_bytes: int = Field(2**42, ge=1, description="Refuse an archive that unpacks to more than this.")
    workers: int | None = Field(
        None,
        ge=1,
        description="Worker processes, each with one CPU; null uses every CPU of the cluster.",
        json_schema_extra=in_unit("processes"),
    )
    contact_sheet: bool = Field(
        True, description="Write contact_sheet.png, which shows one row of crops for each of 12 people."
    )
    overwrite: bool = Field(
        False, description="Replace existing shards that were made from other input or with other settings."
    )

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
                "to train on; their sum must be below 1"
            )
        return self
