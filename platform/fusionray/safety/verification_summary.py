"""The result of a verification, as one line and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fusionray.safety.provenance import Provenance

PREFIX = "http://cv.iptc.org/newscodes/digitalsourcetype/"
AI_SOURCE_TYPES = frozenset({f"{PREFIX}compositeWithTrainedAlgorithmicMedia", f"{PREFIX}trainedAlgorithmicMedia"})


@dataclass(frozen=True)
class ProvenanceResult:
    """What a file proves. Texts of the manifest are untrusted, so they are bounded and have no control characters.

    `intact`: the signature is valid and covers the file. `altered`: bytes were changed after signing. `trusted`:
    whether one of the given CAs issued the signer's certificate; None if no CA was given. `faults`: what is wrong.
    """

    signed: bool = False
    intact: bool = False
    altered: bool = False
    trusted: bool | None = None
    test_key: bool = False
    signer: str | None = None
    organisation: str | None = None
    certificate_serial: str | None = None
    algorithm: str | None = None
    generator: str | None = None
    generator_version: str | None = None
    digital_source_type: str | None = None
    model: str | None = None
    bundle: str | None = None
    faults: tuple[str, ...] = ()
    xmp: Provenance | None = None

    @property
    def ai_made(self) -> bool:
        """Whether the manifest states that a trained model made the picture or a part of it."""
        return self.digital_source_type in AI_SOURCE_TYPES

    @property
    def holds(self) -> bool:
        """Whether a valid manifest states that the picture is AI-made, of a trusted signer if CAs were given."""
        return self.signed and self.intact and self.ai_made and self.trusted is not False

    @property
    def xmp_agrees(self) -> bool | None:
        """Whether the XMP names the manifest's model and bundle; None without an XMP packet of this software."""
        if self.xmp is None:
            return None
        return (self.xmp.model, self.xmp.bundle) == (self.model, self.bundle)

    def describe(self) -> str:
        """Describe the result in one line."""
        if not self.signed:
            xmp_note = "; its XMP, which anybody can write, names a model of ours" if self.xmp else ""
            return f"no C2PA manifest: nothing is proved{xmp_note}"
        if not self.intact or self.trusted is False:
            return f"does not hold: {'; '.join(self.faults)}"
        if not self.ai_made:
            return f"signed by {self.signer}, unchanged, but does not say that it is AI-made"
        return f"AI-made; {self.describe_signer()}; {self.describe_model()}; {self.describe_xmp()}"

    def describe_signer(self) -> str:
        trust = {True: "trusted", False: "not trusted", None: "trust not checked"}[self.trusted]
        key = "a TEST KEY, which proves nothing about who" if self.test_key else trust
        return f"signed by {self.signer}, {self.organisation} ({key}); unchanged since"

    def describe_model(self) -> str:
        if self.model is None:
            return f"made with {self.generator}"
        return f"model {self.model}, bundle {(self.bundle or '?')[:12]}, {self.generator} {self.generator_version}"

    def describe_xmp(self) -> str:
        return {True: "XMP agrees", False: "XMP says otherwise", None: "no XMP"}[self.xmp_agrees]

    def to_json(self) -> dict[str, Any]:
        """List all fields and properties."""
        return {"holds": self.holds, "ai_made": self.ai_made, "xmp_agrees": self.xmp_agrees} | asdict(self)
