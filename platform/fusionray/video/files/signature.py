"""Tell a film from other files by its first bytes: what a picture is, or a document, is never opened as a film."""

from __future__ import annotations

import re

# So many bytes are enough: two packets of an MPEG transport stream with time codes, and the byte after them.
SIGNATURE_BYTES = 2 * 192 + 5

_QUICKTIME = re.compile(rb"....(ftypqt  |moov|mdat|wide|pnot|(free|skip)....(moov|mdat|wide|ftyp))", re.DOTALL)
# Brands of pictures and sequences of pictures in the same container (faces/image_files reads some), and camera raw.
_PICTURE_BRANDS = re.compile(rb"av(if|is|io)|he(ic|ix|im|is|vc|vx|vm|vs)|mif[12]|msf1|miaf|crx |jp[2xm] |j2ki|jxl ")
_OTHERS = re.compile(
    rb"\x1aE\xdf\xa3"  # Matroska, WebM
    rb"|RIFF....AVI "
    rb"|\0\0\x01[\xba\xb3]"  # MPEG program stream, MPEG video
    rb"|G.{187}G|....G.{191}G"  # MPEG transport stream, the second with time codes
    rb"|FLV\x01"
    rb"|0&\xb2u\x8ef\xcf\x11"  # ASF, which WMV is
    rb"|OggS"
    rb"|\x06\x0e\+4\x02\x05\x01\x01",  # MXF
    re.DOTALL,
)


def find_video_suffix(start: bytes) -> str | None:
    """Return the suffix of the container for what is made of a file with this start; None if it is no film.

    It is .mov for QuickTime, whose sound MP4 may not hold, else .mp4. Animated GIF and WebP count as pictures.
    """
    if _QUICKTIME.match(start):
        return ".mov"
    if start[4:8] == b"ftyp":
        return None if _PICTURE_BRANDS.match(start[8:12]) else ".mp4"
    return ".mp4" if _OTHERS.match(start) else None
