from __future__ import annotations

import base64
import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from fusionray.errors import ConfigInvalid, ConsentRefused
from fusionray.safety.consent import ConsentConfig, FunctionPolicy, build_policy
from fusionray.safety.consent_token import make_token

SOURCE, OTHER = "a1" * 32, "b2" * 32
SECRET = b"0123456789abcdef0123456789abcdef"


def refuse_strangers(
    source_sha256: str, embedding: NDArray[np.float32] | None, token: str | None, key_name: str
) -> None:
    """What an operator may name in the settings."""
    if key_name != "studio" or embedding is None:
        raise ConsentRefused("stranger", f"{source_sha256[:4]} is not for {key_name}")


def build_secret(folder: Path) -> Path:
    file = folder / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    return file


def reason_of(policy_settings: ConsentConfig, token: str | None, source: str = SOURCE, key: str = "studio") -> str:
    with pytest.raises(ConsentRefused) as caught:
        build_policy(policy_settings).check(source, None, token, key)
    assert SECRET.decode() not in str(caught.value)
    return caught.value.reason


def test_without_a_policy_every_source_is_permitted() -> None:
    build_policy(ConsentConfig()).check(SOURCE, None, None, "anonymous")


def test_a_list_permits_its_entries_and_follows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "permitted"
    file.write_text(f"# studio\n{SOURCE.upper()}  ann.jpg\n\n")
    policy = build_policy(ConsentConfig(policy="allow-list", file=str(file)))
    policy.check(SOURCE, None, None, "anonymous")
    with pytest.raises(ConsentRefused) as caught:
        policy.check(OTHER, None, None, "anonymous")
    assert caught.value.reason == "source_not_permitted"
    file.write_text(f"{OTHER} # in place of Ann\n")
    policy.check(OTHER, None, None, "anonymous")
    with pytest.raises(ConsentRefused):
        policy.check(SOURCE, None, None, "anonymous")
    file.unlink()
    with pytest.raises(ConsentRefused) as caught:
        policy.check(OTHER, None, None, "anonymous")
    assert caught.value.reason == "consent_unavailable"


def test_a_list_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "permitted"
    settings = ConsentConfig(policy="allow-list", file=str(file))
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        build_policy(settings)
    file.write_text(f"{SOURCE}\nnot-a-hash\n")
    with pytest.raises(ConfigInvalid, match="permitted:2: does not begin"):
        build_policy(settings)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigInvalid, match="not text"):
        build_policy(settings)


def test_a_token_permits_its_source_until_it_expires(tmp_path: Path) -> None:
    settings = ConsentConfig(policy="token", file=str(build_secret(tmp_path)))
    soon = time.time() + 60
    build_policy(settings).check(SOURCE, None, make_token(SECRET, SOURCE, soon), "anyone")
    build_policy(settings).check(SOURCE, None, make_token(SECRET, SOURCE, soon, "studio"), "studio")
    assert reason_of(settings, None) == "consent_missing"
    assert reason_of(settings, make_token(SECRET, SOURCE, time.time() - 1)) == "consent_expired"
    assert reason_of(settings, make_token(SECRET, SOURCE, float("nan"))) in {"consent_expired", "consent_invalid"}
    assert reason_of(settings, make_token(SECRET, SOURCE, soon), source=OTHER) == "consent_mismatch"
    assert reason_of(settings, make_token(SECRET, SOURCE, soon, "studio"), key="other") == "consent_mismatch"
    assert reason_of(settings, make_token(b"x" * 32, SOURCE, soon)) == "consent_invalid"


def test_a_token_that_was_changed_is_refused(tmp_path: Path) -> None:
    settings = ConsentConfig(policy="token", file=str(build_secret(tmp_path)))
    token = make_token(SECRET, SOURCE, time.time() + 60)
    version, claim, mac = token.split(".")
    forged = json.loads(base64.urlsafe_b64decode(claim + "=="))
    forged["expires"] += 1e6
    longer = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
    changed = [f"{version}.{longer}.{mac}", f"frc2.{claim}.{mac}", f"{claim}.{mac}", f"{version}.{claim}.", "", "größe"]
    changed += [token + "A", "x" * 100_000, f"{version}.{claim}.{mac[:-4]}", "...", f"{version}.{claim}.\x00"]
    # The last letter of a base64 text may hold unused bits: two texts of the same bytes are both genuine.
    changed += [token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :] for place in range(len(mac))]
    for text in changed:
        assert reason_of(settings, text) == "consent_invalid", text


def test_a_secret_that_is_short_or_readable_by_others_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"short")
    settings = ConsentConfig(policy="token", file=str(file))
    with pytest.raises(ConfigInvalid, match="at least 32 bytes"):
        build_policy(settings)
    file.write_bytes(SECRET)
    os.chmod(file, 0o644)
    with pytest.warns(RuntimeWarning, match="others can read this secret"):
        policy = build_policy(settings)
    assert SECRET.decode() not in repr(policy)


def test_a_function_of_the_operator_decides() -> None:
    policy = build_policy(ConsentConfig(policy=f"{__name__}:refuse_strangers"))
    policy.check(SOURCE, np.zeros(3, np.float32), None, "studio")
    with pytest.raises(ConsentRefused, match="a1a1 is not for other"):
        policy.check(SOURCE, np.zeros(3, np.float32), None, "other")


def test_a_function_may_return_its_decision() -> None:
    for answer, permitted in ((None, True), (True, True), (False, False), ("no", False), (0, False)):
        policy = FunctionPolicy(lambda *_, answer=answer: answer)
        if permitted:
            policy.check(SOURCE, None, None, "studio")
        else:
            with pytest.raises(ConsentRefused):
                policy.check(SOURCE, None, None, "studio")


def test_a_function_that_fails_permits_nothing_and_reveals_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise KeyError("the password of the operator's database")

    with pytest.raises(ConsentRefused, match="policy failed") as caught:
        FunctionPolicy(fail).check(SOURCE, None, None, "studio")
    assert caught.value.reason == "consent_unavailable"
    assert "password" not in str(caught.value)
    assert "password" in caplog.text


@pytest.mark.parametrize("path", ["no.such.module:check", "os:no_such_name", "os:sep"])
def test_a_missing_function_is_named(path: str) -> None:
    with pytest.raises(ConfigInvalid, match=path):
        build_policy(ConsentConfig(policy=path))


@pytest.mark.parametrize("tree", [{"policy": "allow-list"}, {"policy": "token"}, {"policy": "tokne"}, {"policy": "a:"}])
def test_incomplete_settings_are_refused(tree: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="policy"):
        ConsentConfig(**tree)


def test_a_refusal_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConsentRefused("consent_expired", "the token has expired")))
    assert (error.reason, str(error)) == ("consent_expired", "the token has expired")
