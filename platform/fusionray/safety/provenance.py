"""Say inside every output picture that it was made by a machine: an XMP packet with IPTC's DigitalSourceType."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from fusionray import __version__
from fusionray.errors import ImageRejected

PictureFormat = Literal["png", "jpeg", "webp"]

# A real picture, parts of which a trained model made anew: exactly what a fused face is.
DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
IPTC = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
OWN = "urn:fusionray:provenance:1:"
SOFTWARE = "fusionray"
# Where PNG keeps XMP; JPEG and WebP have a place of their own, which Pillow calls `xmp`.
PNG_KEY = "XML:com.adobe.xmp"


@dataclass(frozen=True)
class Provenance:
    """What a picture says about its making. `bundle` is the hash of the bundle that made it."""

    model: str
    bundle: str
    software_version: str = __version__
    digital_source_type: str = DIGITAL_SOURCE_TYPE


def encode_marked(
    image: NDArray[np.uint8], provenance: Provenance, picture_format: PictureFormat = "png", quality: int = 92
) -> bytes:
    """Encode a uint8 RGB HWC picture with its provenance inside. `quality` (1..100) is for JPEG and WebP.

    Raises: ValueError if the format is none of png, jpeg and webp.
    """
    packet = build_packet(provenance)
    picture = Image.fromarray(image)
    buffer = io.BytesIO()
    if picture_format == "png":
        text = PngImagePlugin.PngInfo()
        text.add_itxt(PNG_KEY, packet.decode())
        # Measured on photographs: level 1 takes a quarter of the time of the default 6; files grow by a fifth.
        picture.save(buffer, "PNG", pnginfo=text, compress_level=1)
    elif picture_format == "jpeg":
        picture.save(buffer, "JPEG", xmp=packet, quality=quality, subsampling=0 if quality >= 90 else 2)
    elif picture_format == "webp":
        picture.save(buffer, "WEBP", xmp=packet, quality=quality, method=2)
    else:
        raise ValueError(f"picture_format: {picture_format!r} is not one of png, jpeg, webp")
    return buffer.getvalue()


def build_packet(provenance: Provenance) -> bytes:
    """Write the XMP packet."""
    fields = {
        "Iptc4xmpExt:DigitalSourceType": provenance.digital_source_type,
        "Iptc4xmpExt:AISystemUsed": SOFTWARE,
        "Iptc4xmpExt:AISystemVersionUsed": provenance.software_version,
        "fusionray:Model": provenance.model,
        "fusionray:Bundle": provenance.bundle,
    }
    lines = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
        f'<rdf:RDF xmlns:rdf="{RDF}"><rdf:Description rdf:about="" xmlns:Iptc4xmpExt="{IPTC}" xmlns:fusionray="{OWN}">'
        f'{lines}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="r"?>'
    ).encode()


def read_provenance(data: bytes) -> Provenance | None:
    """Read what a picture says about its making; None if it says nothing that this software wrote.

    Raises: ImageRejected if the bytes are not a picture.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            packet = picture.info.get("xmp") or picture.info.get(PNG_KEY)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ImageRejected("not_an_image", f"no provenance can be read: {error}") from None
    if packet is None:
        return None
    return parse_packet(packet if isinstance(packet, bytes) else packet.encode())


def parse_packet(packet: bytes) -> Provenance | None:
    """Read our fields from an XMP packet; None if it is another's or damaged."""
    # XMP needs no document type; refusing it keeps entity bombs away from the parser.
    if b"<!DOCTYPE" in packet or b"<!ENTITY" in packet:
        return None
    try:
        root = ElementTree.fromstring(packet.strip(b"\0 \n"))  # noqa: S314 - no document type, see above
    except ElementTree.ParseError:
        return None
    found = {element.tag: element.text or "" for element in root.iter()}
    names = (f"{{{OWN}}}Model", f"{{{OWN}}}Bundle", f"{{{IPTC}}}AISystemVersionUsed", f"{{{IPTC}}}DigitalSourceType")
    if not all(name in found for name in names):
        return None
    return Provenance(*(found[name] for name in names))
