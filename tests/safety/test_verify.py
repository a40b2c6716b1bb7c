from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import c2pa
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from PIL import Image

from fusionray.bands.png_stream import stream_png
from fusionray.cli import main
from fusionray.errors import ConfigInvalid, ImageRejected
from fusionray.faces.image_files.decode import decode_image
from fusionray.faces.image_files.headers.image_header import PictureFormat
from fusionray.reporting.page import Page, PageSection, save_page
from fusionray.reporting.parts import PageImage
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance, build_packet, read_provenance
from fusionray.safety.signing import SETTINGS, Signer
from fusionray.safety.signing_keys import load_key
from fusionray.safety.verify import MAX_BYTES, verify, verify_file
from tests.safety.certificates import Authority, write_files
from tests.safety.containers import flip, graft_png, split_png, strip_jpeg, strip_png
from tests.support.child_python import run_python
from tests.support.pictures import draw_empty, draw_person

PROVENANCE = Provenance("tiny", "ab" * 32)
FORMATS: tuple[PictureFormat, ...] = ("png", "jpeg", "webp")
NUM_DAMAGED = 400
# Prints the most memory that a process has held while it verified a file, KiB; getrusage counts its parent, too.
MEASURE_VERIFY = """
import pathlib, sys
from fusionray.safety.verify import verify_file
assert verify_file(pathlib.Path(sys.argv[1])).holds
status = pathlib.Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def sign_statement(signer: Signer, manifest: dict[str, object], data: bytes) -> bytes:
    """Sign a manifest that this software never writes."""
    signed = io.BytesIO()
    with c2pa.Builder(json.dumps(manifest), signer.context) as builder:
        builder.sign("image/png", io.BytesIO(data), signed)
    return signed.getvalue()


@pytest.mark.parametrize("picture_format", FORMATS)
def test_a_flipped_bit_of_the_picture_or_its_xmp_is_found(picture_format: PictureFormat, signer: Signer) -> None:
    data = encode_output(draw_person(3, 64), PROVENANCE, picture_format, signer=signer)
    compressed = {"png": b"IDAT", "jpeg": b"\xff\xda", "webp": b"VP8 "}[picture_format]
    for place in (data.index(compressed) + 24, data.index(b"AISystemUsed"), data.index(PROVENANCE.bundle.encode())):
        verdict = verify(flip(data, place))
        assert verdict.altered
        assert not verdict.holds
        assert "changed" in verdict.describe()


def test_no_bit_outside_of_the_manifest_can_be_flipped(signer: Signer) -> None:
    data = encode_output(draw_empty(24, 24), PROVENANCE, signer=signer)
    places = []
    position = 8
    for name, raw in split_png(data):
        if name != b"caBX":
            places += range(position, position + len(raw))
        position += len(raw)
    for place in places:
        try:
            assert not verify(flip(data, place)).holds, place
        except ImageRejected:
            continue


@pytest.mark.parametrize(("picture_format", "strip"), [("png", strip_png), ("jpeg", strip_jpeg)])
def test_a_picture_without_its_manifest_proves_nothing_whatever_its_xmp(
    picture_format: PictureFormat, strip: Callable[[bytes], bytes], signer: Signer
) -> None:
    data = strip(encode_output(draw_empty(), PROVENANCE, picture_format, signer=signer))
    decode_image(data)
    verdict = verify(data)
    assert verdict.xmp == PROVENANCE
    assert not verdict.signed
    assert not verdict.holds
    assert verdict.describe().startswith("no C2PA manifest")


def test_a_picture_that_was_saved_again_proves_nothing(signer: Signer) -> None:
    data = encode_output(draw_empty(), PROVENANCE, "jpeg", signer=signer)
    again = io.BytesIO()
    with Image.open(io.BytesIO(data)) as picture:
        picture.save(again, "JPEG", quality=90)
    assert not verify(again.getvalue()).signed


def test_a_manifest_of_another_picture_does_not_hold(signer: Signer) -> None:
    donor = encode_output(draw_person(1, 64), PROVENANCE, signer=signer)
    victim = encode_output(draw_person(2, 64), PROVENANCE, signer=signer)
    verdict = verify(graft_png(victim, donor))
    assert verdict.altered
    assert not verdict.holds
    assert verify(graft_png(donor, donor)).holds


def test_a_signer_is_trusted_only_with_the_authority_given(signer: Signer, authority: Authority) -> None:
    data = encode_output(draw_empty(), PROVENANCE, signer=signer)
    unasked, asked, stranger = verify(data), verify(data, authority.pem), verify(data, Authority("Stranger").pem)
    assert (unasked.trusted, asked.trusted, stranger.trusted) == (None, True, False)
    assert (unasked.holds, asked.holds, stranger.holds) == (True, True, False)
    assert stranger.intact
    assert stranger.faults == ("the signer is not trusted",)


def test_a_manifest_that_does_not_say_ai_made_does_not_hold(signer: Signer) -> None:
    plain = encode_output(draw_empty(), PROVENANCE, signer=None)
    photograph = "http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture"
    action = {"action": "c2pa.created", "digitalSourceType": photograph}
    manifest = {
        "claim_generator_info": [{"name": "camera"}],
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [action]}}],
    }
    verdict = verify(sign_statement(signer, manifest, plain))
    assert verdict.intact
    assert not verdict.ai_made
    assert not verdict.holds
    assert "does not say that it is AI-made" in verdict.describe()


def test_contradicting_xmp_is_reported(signer: Signer) -> None:
    plain = encode_output(draw_empty(), Provenance("other", "cd" * 32), signer=None)
    verdict = verify(signer.sign(plain, "image/png", PROVENANCE))
    assert verdict.holds
    assert verdict.xmp_agrees is False
    assert "XMP says otherwise" in verdict.describe()


def test_untrusted_text_cannot_control_the_terminal(authority: Authority, tmp_path: Path) -> None:
    private_key = generate_private_key(SECP256R1())
    certificate = authority.issue(private_key, name="Evil\x1b[2J\nfusionray verify: fine")
    stranger = Signer(load_key(write_files(tmp_path, private_key, certificate)))
    data = encode_output(draw_empty(), Provenance("\x1b[31m" + "m" * 5000, "0"), signer=stranger)
    output = verify(data).describe()
    assert output.isprintable()
    assert "Evil?[2J?fusionray" in output
    assert len(output) < 800


@pytest.mark.parametrize("picture_format", FORMATS)
def test_damaged_files_are_verified_or_rejected(picture_format: PictureFormat, signer: Signer) -> None:
    data = encode_output(draw_empty(32, 32), PROVENANCE, picture_format, signer=signer)
    chance = random.Random(7)
    for _ in range(NUM_DAMAGED):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 4, 30))):
            damaged[chance.randrange(12, len(damaged))] = chance.randrange(256)
        end = chance.choice((len(damaged), chance.randrange(len(damaged))))
        try:
            verify(bytes(damaged[:end])).describe()
        except ImageRejected:
            continue


def test_unknown_assertions_are_ignored(signer: Signer) -> None:
    plain = encode_output(draw_empty(), PROVENANCE, signer=None)
    action = {"action": "c2pa.created", "digitalSourceType": "http://example.org/none"}
    for data in ([1, 2], "text", {"model": 7, "bundle": {"a": 1}}, {}):
        manifest = {
            "claim_generator_info": [{"name": "x"}],
            "assertions": [
                {"label": "c2pa.actions.v2", "data": {"actions": [action]}},
                {"label": "fusionray.model", "data": data},
            ],
        }
        verdict = verify(sign_statement(signer, manifest, plain))
        assert verdict.signed
        assert (verdict.model, verdict.bundle, verdict.holds) == (None, None, False)


def test_other_bytes_and_large_files_are_rejected() -> None:
    plain = encode_output(draw_empty(), PROVENANCE, signer=None)
    for data, limit, reason in ((b"hello", 100, "not_an_image"), (b"", 100, "not_an_image"), (plain, 100, "too_large")):
        with pytest.raises(ImageRejected) as caught:
            verify(data, max_bytes=limit)
        assert caught.value.reason == reason


@pytest.mark.parametrize("picture_format", FORMATS)
def test_a_file_is_verified_like_its_bytes(picture_format: PictureFormat, signer: Signer, tmp_path: Path) -> None:
    data = encode_output(draw_person(3, 64), PROVENANCE, picture_format, signer=signer)
    place = tmp_path / "picture"
    for content in (data, flip(data, len(data) - 20), data[: len(data) // 2]):
        place.write_bytes(content)
        assert verify_file(place) == verify(content)
    for content in (b"", b"hello"):
        place.write_bytes(content)
        with pytest.raises(ImageRejected, match="picture"):
            verify_file(place)


@pytest.mark.slow(seconds=20)
def test_a_file_that_is_larger_than_the_memory_for_pictures_is_verified(signer: Signer, tmp_path: Path) -> None:
    # Noise does not shrink: 300 MB.
    noise = np.random.default_rng(0).integers(0, 256, (10_000, 10_000, 3), dtype=np.uint8)
    plain, signed = tmp_path / "plain.png", tmp_path / "signed.png"
    with plain.open("wb") as file:
        for part in stream_png(10_000, 10_000, [noise], xmp=build_packet(PROVENANCE)):
            file.write(part)
    with plain.open("rb") as unsigned, signed.open("w+b") as result:
        signer.sign_stream(unsigned, result, "image/png", PROVENANCE)
    assert signed.stat().st_size > MAX_BYTES
    # The modules take 60 MB, the reader of C2PA holds the file once.
    assert int(run_python("-c", MEASURE_VERIFY, str(signed))) < 300 * 2**10 + signed.stat().st_size / 2**10
    with signed.open("r+b") as file:
        file.seek(200_000_000)
        byte = file.read(1)
        file.seek(200_000_000)
        file.write(bytes([byte[0] ^ 1]))
    assert verify_file(signed).altered


def test_the_pixels_of_a_picture_do_not_matter() -> None:
    # Its pixels lack: nothing decodes them.
    huge = b"".join(stream_png(60_000, 60_000, [], xmp=build_packet(PROVENANCE)))
    assert read_provenance(huge) == PROVENANCE
    assert not verify(huge).signed


def test_trust_without_a_certificate_is_refused(signer: Signer) -> None:
    data = encode_output(draw_empty(), PROVENANCE, signer=signer)
    with pytest.raises(ConfigInvalid, match="no readable PEM certificate"):
        verify(data, "no certificate")


def test_nothing_is_fetched(signer: Signer) -> None:
    asked: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        signed = io.BytesIO()
        with c2pa.Builder(json.dumps({"claim_generator_info": [{"name": "x"}]}), signer.context) as builder:
            builder.set_no_embed()
            builder.set_remote_url(f"http://127.0.0.1:{server.server_address[1]}/manifest")
            builder.sign("image/jpeg", io.BytesIO(encode_output(draw_empty(), PROVENANCE, "jpeg", signer=None)), signed)
        verdict = verify(signed.getvalue())
        # The listener is reached where fetching is left on: without this the test would prove nothing.
        with pytest.raises(c2pa.C2paError):
            c2pa.Reader("image/jpeg", io.BytesIO(signed.getvalue()))
        server.shutdown()
    assert asked == ["/manifest"]
    assert not verdict.holds
    assert SETTINGS["verify"] == {"remote_manifest_fetch": False, "ocsp_fetch": False, "verify_after_sign": False}


def test_the_command_exits_0_only_for_files_that_hold(
    signer: Signer, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, text, trust = (tmp_path / name for name in ("good.png", "bad.png", "text.png", "ca.pem"))
    data = encode_output(draw_empty(), PROVENANCE, signer=signer)
    good.write_bytes(data)
    bad.write_bytes(flip(data, data.index(b"IDAT") + 20))
    text.write_text("hello")
    trust.write_text(authority.pem)
    assert main(["verify", str(good)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "AI-made; signed by Example Studio" in output.out
    assert main(["verify", str(good), "--trust", str(trust)]) == 0
    assert "(trusted)" in capsys.readouterr().out
    for file, words in (
        (bad, "does not hold: changed"),
        (text, "not a JPEG"),
        (tmp_path / "none.png", "cannot be read"),
    ):
        assert main(["verify", str(file)]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        (line,) = output.err.splitlines()
        assert line.startswith(f"fusionray verify: {file}: ")
        assert words in line
    trust.write_text(Authority("Stranger").pem)
    assert main(["verify", str(good), "--trust", str(trust)]) == 1
    assert "the signer is not trusted" in capsys.readouterr().err
    assert main(["verify", str(good), "--trust", str(tmp_path / "none.pem")]) == 1
    assert "none.pem: cannot be read" in capsys.readouterr().err


def test_the_command_lists_files_as_json(signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, text = tmp_path / "good.webp", tmp_path / "text.png"
    good.write_bytes(encode_output(draw_empty(), PROVENANCE, "webp", signer=signer))
    text.write_text("hello")
    assert main(["verify", "--json", str(good), str(text)]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["file"], first["holds"], first["model"], first["xmp"]["bundle"]) == (
        str(good),
        True,
        "tiny",
        PROVENANCE.bundle,
    )
    assert (second["file"], second["holds"]) == (str(text), False)


def test_the_pictures_of_a_report_are_verified(
    signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = encode_output(draw_empty(), PROVENANCE, signer=signer)
    bad = flip(good, good.index(b"IDAT") + 20)
    page, report = Page("A film", [PageSection("Strip", [PageImage("a", "a", good)])]), tmp_path / "report.html"
    save_page(tmp_path, page)
    assert main(["verify", str(report)]) == 0
    assert f"{report}, picture 1: AI-made; signed by Example Studio" in capsys.readouterr().out
    save_page(tmp_path, Page("A film", [PageSection("Strip", [PageImage("a", "a", good), PageImage("b", "b", bad)])]))
    assert main(["verify", str(report)]) == 1
    output = capsys.readouterr()
    assert (output.out.count("AI-made"), f"{report}, picture 2: does not hold" in output.err) == (1, True)
    assert main(["verify", "--json", str(report)]) == 1
    assert [result["holds"] for result in json.loads(capsys.readouterr().out)] == [True, False]
    save_page(tmp_path, Page("A film"))
    assert main(["verify", str(report)]) == 1
    assert "no picture lies in this report" in capsys.readouterr().err
    report.write_text('<img src="data:image/png;base64,%%%">')
    assert main(["verify", str(report)]) == 1
    assert "picture 1 is not base64" in capsys.readouterr().err


def test_decoded_pixels_of_a_marked_output_are_those_that_were_signed(signer: Signer) -> None:
    picture = draw_person(5)
    assert np.array_equal(decode_image(encode_output(picture, PROVENANCE, signer=signer)), picture)
