"""Say inside every output picture that it was made by a machine: an XMP packet with IPTC's DigitalSourceType."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from fusionray import __version__

PictureFormat = Literal["png", "jpeg", "webp"]

# A real picture, parts of which a trained model made anew: exactly what a fused face is.
DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
IPTC = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
OWN = "urn:fusionray:provenance:1:"
SOFTWARE = "fusionray"
# Where PNG keeps XMP; JPEG and WebP have a place of their own, which Pillow calls `xmp`.
PNG_KEY = "XML:com.adobe.xmp"
LONGEST_PACKET = 2**20


@dataclass(frozen=True)
class Provenance:
    """What a picture says about its making. `bundle` is the hash of the bundle that made it."""

    model: str
    bundle: str
    software_version: str = __version__
    digital_source_type: str = DIGITAL_SOURCE_TYPE


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

    No pixel is decoded. Raises: ImageRejected if the bytes are not a picture, or one that is damaged or too large.
    """
    # Brings OpenCV, which those who only write need not load.
    from fusionray.faces.decode import ImageLimits, open_picture

    with open_picture(data, ImageLimits(min_side=1)) as picture:
        packet = picture.info.get("xmp") or picture.info.get(PNG_KEY)
    if packet is None:
        return None
    return parse_packet(packet if isinstance(packet, bytes) else packet.encode(errors="replace"))


def parse_packet(packet: bytes) -> Provenance | None:
    """Read our fields from an XMP packet; None if it is another's or damaged."""
    # XMP needs no document type; refusing it keeps entity bombs away from the parser. Parsed as text, since bytes may
    # name another encoding, in which the same letters look otherwise.
    text = packet.decode(errors="replace")
    if len(text) > LONGEST_PACKET or "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        root = ElementTree.fromstring(text.strip("\0 \n"))  # noqa: S314 - no document type, see above
    except ElementTree.ParseError:
        return None
    found = {element.tag: element.text or "" for element in root.iter()}
    names = (f"{{{OWN}}}Model", f"{{{OWN}}}Bundle", f"{{{IPTC}}}AISystemVersionUsed", f"{{{IPTC}}}DigitalSourceType")
    if not all(name in found for name in names):
        return None
    return Provenance(*(found[name] for name in names))
