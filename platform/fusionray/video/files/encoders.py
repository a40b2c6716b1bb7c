"""Choose how a video is encoded: the encoder's options, a pixel format that loses nothing, and the colour tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from av import VideoFormat
from av.codec import Codec
from av.codec.codec import UnknownCodecError

from fusionray.errors import VideoNotWritten, VideoRejected
from fusionray.hardware.device import describe_cpu
from fusionray.video.files.description import HdrMetadata, VideoDescription
from fusionray.video.frames.colour import ColourTags
from fusionray.video.frames.pixel_layout import PixelLayout, read_layout

# The option that sets the quality of an encoder, and its default; the lower, the better. The others have none.
_QUALITY = {
    "libx264": ("crf", 18),
    "libx265": ("crf", 20),
    "libsvtav1": ("crf", 26),
    "libaom-av1": ("crf", 26),
    "h264_nvenc": ("cq", 19),
    "hevc_nvenc": ("cq", 21),
    "av1_nvenc": ("cq", 28),
}
ENCODERS = (*_QUALITY, "prores_ks", "ffv1")
"""The encoders that are known here, by FFmpeg's names. The installed library may lack some; NVENC needs a GPU."""

# The instructions of a processor with AVX-512 but for these, in x264's names.
_X264_WITHOUT_AVX512 = "MMX2,SSE2Fast,SSSE3,SSE4.2,AVX,FMA3,BMI2,AVX2"
# What an encoder calls samples that are the same but for their places.
_SAME_SAMPLES = {
    "yuv420p10le": "p010le",
    "yuv422p": "nv16",
    "yuv422p10le": "p210le",
    "yuv444p10le": "yuv444p10msble",
}
_INTERLACED_ENCODERS = {"libx264", "prores_ks", "ffv1"}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How to encode. `encoder` is one of `ENCODERS`.

    `quality` is its crf or cq: the lower, the better; None: its default. `preset` trades speed for size, in the
    encoder's own words. `options` go to the encoder as they are.
    """

    encoder: str = "libx264"
    quality: float | None = None
    preset: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def choose_pixel_format(encoder: str, description: VideoDescription) -> str:
    """Choose the pixel format in which an encoder keeps the most: the video's own, or one that loses none of it.

    Packed RGB (GIF, WebP) becomes 4:2:0, which every player shows, and loses alpha. Halved chroma needs an even side,
    so an odd one becomes 4:4:4.

    Raises:
        VideoNotWritten: the encoder is unknown, or has no such format.
    """
    names = _list_formats(encoder)
    own = description.pixel_format
    wanted = read_layout(own)
    if own in names and _fits(wanted, description, encoder):
        return own
    if _SAME_SAMPLES.get(own) in names:
        return _SAME_SAMPLES[own]
    if encoder == "prores_ks" and description.codec == "prores":
        # FFmpeg decodes ProRes 4444 to 12 bits, and encodes 10: the nearest that there is.
        wanted = replace(wanted, bits=min(wanted.bits, 10))
    if wanted.channels is not None:
        wanted = replace(wanted, across=2, down=2, has_alpha=False)
    found = [
        (name, layout)
        for name, layout in _read_layouts(names)
        if _keeps(layout, wanted) and _fits(layout, description, encoder)
    ]
    if not found:
        raise VideoNotWritten(
            f"{encoder} cannot keep the pixel format {own} of {description.width} x {description.height} pixels; "
            "choose another encoder (prores_ks and ffv1 keep alpha, libx265 and ffv1 keep 12 bits)"
        )
    return min(found, key=lambda pair: (pair[1].bits, -pair[1].across * pair[1].down, pair[0]))[0]


def _list_formats(encoder: str) -> list[str]:
    try:
        codec = Codec(encoder, "w")
    except UnknownCodecError as error:
        known = ", ".join(ENCODERS)
        raise VideoNotWritten(f"encoder: the installed FFmpeg has no {encoder!r}; choose one of {known}") from error
    if codec.type != "video":
        raise VideoNotWritten(f"encoder: {encoder!r} does not encode video; choose one of {', '.join(ENCODERS)}")
    return [found.name for found in codec.video_formats or ()]


def _read_layouts(names: list[str]) -> list[tuple[str, PixelLayout]]:
    layouts = []
    for name in names:
        try:
            layouts.append((name, read_layout(name)))
        except VideoRejected:
            continue
    return layouts


def _keeps(layout: PixelLayout, wanted: PixelLayout) -> bool:
    """Tell whether a YUV format has at least the bits, the chroma samples and the alpha of another."""
    return (
        not layout.is_rgb
        and layout.full_range <= wanted.full_range
        and layout.is_grey <= wanted.is_grey
        and layout.bits >= wanted.bits
        and layout.across <= wanted.across
        and layout.down <= wanted.down
        and layout.has_alpha == wanted.has_alpha
    )


def _fits(layout: PixelLayout, description: VideoDescription, encoder: str) -> bool:
    whole = description.width % layout.across == 0 and description.height % layout.down == 0
    return whole or encoder == "ffv1"


def choose_colour(description: VideoDescription, pixel_format: str) -> ColourTags:
    """Choose the tags of the encoded video: the video's own; BT.709 and limited range where RGB becomes YUV."""
    colour = description.colour
    if read_layout(description.pixel_format).is_rgb and not VideoFormat(pixel_format).is_rgb:
        return replace(colour, matrix="bt709", range="tv")
    if read_layout(description.pixel_format).full_range:
        return replace(colour, range="pc")
    return colour


def build_options(settings: EncoderSettings, description: VideoDescription, pixel_format: str) -> dict[str, str]:
    """Build the options of an encoder: quality, preset, HDR metadata where the encoder writes them, and the user's own.

    Raises:
        VideoNotWritten: the encoder has no setting of quality, or cannot encode interlaced video.
    """
    encoder = settings.encoder
    if description.interlaced and encoder not in _INTERLACED_ENCODERS:
        raise VideoNotWritten(f"{encoder} cannot encode interlaced video; choose libx264 or prores_ks")
    options: dict[str, str] = {}
    if encoder in _QUALITY:
        name, default = _QUALITY[encoder]
        options[name] = f"{default if settings.quality is None else settings.quality:g}"
    elif settings.quality is not None:
        raise VideoNotWritten(f"quality: {encoder} has no such setting; leave it out, or use options")
    if settings.preset is not None:
        options["preset"] = settings.preset
    if encoder == "prores_ks":
        # The profiles "hq" of 4:2:2 and "4444".
        options["profile"] = "3" if pixel_format.startswith("yuv422") else "4"
    own, given = _write_params(encoder, description.hdr), settings.options
    both = {name: f"{own[name]}:{given[name]}" for name in own.keys() & given.keys()}
    return {**options, **own, **given, **both}


def _write_params(encoder: str, hdr: HdrMetadata) -> dict[str, str]:
    if encoder == "libx264":
        parts = _list_hdr(hdr, "mastering-display", "cll", Fraction(1, 50_000), Fraction(1, 10_000))
        # With AVX-512, x264 reads memory that nobody wrote: the same frames would become other bytes each time.
        asm = [f"asm={_X264_WITHOUT_AVX512}"] if "avx512bw" in describe_cpu().flags else []
        return {"x264-params": ":".join([*parts, *asm])} if parts or asm else {}
    if encoder == "libx265":
        # Without the first, x265 prints its settings.
        parts = _list_hdr(hdr, "master-display", "max-cll", Fraction(1, 50_000), Fraction(1, 10_000))
        return {"x265-params": ":".join(["log-level=error", *parts])}
    if encoder == "libsvtav1":
        parts = _list_hdr(hdr, "mastering-display", "content-light", None, None)
        return {"svtav1-params": ":".join(parts)} if parts else {}
    return {}


def _list_hdr(
    hdr: HdrMetadata, mastering_name: str, light_name: str, place_unit: Fraction | None, nits_unit: Fraction | None
) -> list[str]:
    """Write HDR metadata as the encoders' libraries read it: whole numbers of a unit, or decimals."""
    parts = []
    if hdr.mastering is not None:
        places = [_in_unit(value, place_unit) for value in hdr.mastering[:8]]
        least, greatest = (_in_unit(value, nits_unit) for value in hdr.mastering[8:])
        red, green, blue, white = (f"({x},{y})" for x, y in zip(places[::2], places[1::2], strict=True))
        parts.append(f"{mastering_name}=G{green}B{blue}R{red}WP{white}L({greatest},{least})")
    if hdr.content_light is not None:
        parts.append(f"{light_name}={hdr.content_light[0]},{hdr.content_light[1]}")
    return parts


def _in_unit(value: Fraction, unit: Fraction | None) -> str:
    return f"{float(value):.5f}" if unit is None else str(round(value / unit))
