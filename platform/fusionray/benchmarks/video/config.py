"""Settings of `fusionray bench video`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fusionray.config import Section, in_unit

VideoPart = Literal["speed", "memory", "segments", "resume", "steadiness", "following"]
PARTS: tuple[VideoPart, ...] = ("speed", "memory", "segments", "resume", "steadiness", "following")


class VideoBenchConfig(Section):
    """What `fusionray bench video` measures."""

    listed_by: ClassVar[str] = "fusionray bench video --settings"

    output: str = Field(description="Folder for figures.json, report.html, report.md, the bundle and the films.")
    bundle: str | None = Field(
        None,
        description="Bundle that fuses; null: one with the preset's shapes and random weights, whose steadiness means "
        "nothing.",
    )
    preset: str = Field("fast-128", description="Preset whose networks fuse if no bundle is given.")
    parts: tuple[VideoPart, ...] = Field(PARTS, description="Parts of the benchmark to run.")
    width: int = Field(1280, ge=64, description="Width of the rendered film.", json_schema_extra=in_unit("pixels"))
    height: int = Field(720, ge=64, description="Height of the rendered film.", json_schema_extra=in_unit("pixels"))
    frames: int = Field(240, ge=48, description="Frames of the rendered film.", json_schema_extra=in_unit("frames"))
    long_repeats: int = Field(17, ge=3, description="How often the long film of the memory part repeats it.")
    clips: tuple[str, ...] = Field((), description="Recorded films with a person, to follow and fuse as well.")
    rounds: int = Field(2, ge=1, description="Rounds of the speed part; medians are reported.")
