"""What is known of a video: its pictures, their times and their colours."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from av import VideoFrame

from fusionray.video.frames.colour import ColourTags
from fusionray.video.frames.orientation import DisplayMatrix, orientation_of


@dataclass(frozen=True, slots=True)
class HdrMetadata:
    """What an HDR video says of its mastering display and its content; None if it does not.

    `mastering` are x and y of red, green, blue and white, then the least and the greatest luminance in nits.
    `content_light` are the greatest and the greatest average light level, in nits.
    """

    mastering: tuple[Fraction, ...] | None = None
    content_light: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class VideoDescription:
    """A video stream and its container.

    Sizes are stored pixels. Times are exact, in seconds; None where the file does not say. `num_frames` is the count of
    the header, 0 if it has none. `average_rate` is in frames per second. `sample_aspect` is width / height of a pixel.
    """

    width: int
    height: int
    pixel_format: str
    codec: str
    container: str
    time_base: Fraction
    average_rate: Fraction | None = None
    start_seconds: Fraction | None = None
    duration_seconds: Fraction | None = None
    num_frames: int = 0
    sample_aspect: Fraction = Fraction(1)
    colour: ColourTags = field(default_factory=ColourTags)
    display_matrix: DisplayMatrix | None = None
    interlaced: bool = False
    field_order: str = "unknown"
    hdr: HdrMetadata = field(default_factory=HdrMetadata)
    stream_index: int = 0

    @property
    def orientation(self) -> int:
        """Return the EXIF orientation (1 to 8) that the display matrix stands for."""
        return orientation_of(self.display_matrix)

    def is_of(self, frame: VideoFrame) -> bool:
        """Tell whether a frame has the size and the pixel format of the video."""
        return (frame.width, frame.height, frame.format.name) == (self.width, self.height, self.pixel_format)
