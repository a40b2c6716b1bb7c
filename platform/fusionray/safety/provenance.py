"""The XMP packet of an output: IPTC's DigitalSourceType states that a model made a part of the picture."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from fusionray import __version__

# A captured picture of which a trained model made a part, which is what a fused picture is.
DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
IPTC = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
OWN = "urn:fusionray:provenance:1:"
SOFTWARE = "fusionray"
# Keyword of XMP in PNG; Pillow calls that of JPEG and WebP `xmp`.
PNG_KEY = "XML:com.adobe.xmp"
LONGEST_PACKET = 2**20


@dataclass(frozen=True)
class Provenance:
    """What a picture states about its origin. `bundle` is the hash of the bundle that made it."""

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
    """Read a picture's provenance; None if it has none, or none of this software.

    Decodes no pixel. Raises: ImageRejected if the bytes are not a picture, or one that is damaged or too large.
    """
    # Imports OpenCV, which is not needed for writing.
    from fusionray.faces.image_files.decode import ImageLimits, open_picture

    # Only headers are read, so a picture of any size is as good as another.
    any_size = ImageLimits(max_bytes=2**50, max_pixels=2**62, max_side=2**31, min_side=1)
    with open_picture(data, any_size) as picture:
        packet = None if picture is None else picture.info.get("xmp") or picture.info.get(PNG_KEY)
    if packet is None:
        return None
    return parse_packet(packet if isinstance(packet, bytes) else packet.encode(errors="replace"))


def parse_packet(packet: bytes) -> Provenance | None:
    """Parse an XMP packet; None if it is damaged or not written by this software."""
    # XMP has no document type, and without one the parser is safe from entity bombs. It is parsed as text, because the
    # bytes could declare an encoding that hides a document type from the check.
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
