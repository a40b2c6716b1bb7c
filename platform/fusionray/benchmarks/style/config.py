"""Settings of `fusionray bench style`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fusionray.config import Section, in_unit

StylePart = Literal["speed", "tiles", "growth"]
PARTS: tuple[StylePart, ...] = ("speed", "tiles", "growth")
Size = tuple[int, int]


class StyleBenchConfig(Section):
    """What `fusionray bench style` measures. Sides are width and height."""

    listed_by: ClassVar[str] = "fusionray bench style --settings"

    output: str = Field(description="Folder for figures.json, report.html, report.md, and the pictures meanwhile.")
    run: str | None = Field(
        None, description="Run folder or checkpoint of style transfer; null: the preset with random weights."
    )
    preset: str = Field("style-small", description="Preset whose network is measured if no run is given.")
    parts: tuple[StylePart, ...] = Field(PARTS, description="Parts of the benchmark to run.")
    threads: int = Field(2, ge=1, description="CPU threads of the product and of the plain loop.")
    rounds: int = Field(3, ge=1, description="Rounds of the speed part, up to 2k; larger ones are measured once.")
    small: Size = Field((512, 512), description="Sides of `_512`.", json_schema_extra=in_unit("pixels"))
    medium: Size = Field((2048, 1152), description="Sides of `_2k`.", json_schema_extra=in_unit("pixels"))
    large: Size = Field((7680, 4320), description="Sides of `_8k`.", json_schema_extra=in_unit("pixels"))
    huge: Size = Field((30_000, 20_000), description="Sides of `_30k`.", json_schema_extra=in_unit("pixels"))


class LargeBenchConfig(StyleBenchConfig):
    """What `fusionray bench large` measures: the parts of `bench style` that are about pictures of any size."""

    listed_by: ClassVar[str] = "fusionray bench large --settings"

    parts: tuple[StylePart, ...] = Field(("tiles", "growth"), description="Parts of the benchmark to run.")
