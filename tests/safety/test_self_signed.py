from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fusionray.environment import DATA_VARIABLE
from fusionray.errors import SigningKeyInvalid
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from fusionray.safety.self_signed import CA_NAME, KEY_NAME, TEST_ORGANISATION, make_test_key
from fusionray.safety.signing import build_signer
from fusionray.safety.signing_keys import SigningConfig, load_key
from fusionray.safety.verify import verify
from tests.support.child_python import ROOT
from tests.support.pictures import draw_empty

NUM_PROCESSES = 6
# All processes wait for a signal, so that none of them finds a key.
CHILD = """
import hashlib, pathlib, sys, time
from fusionray.safety.signing_keys import SigningConfig, load_key
folder = pathlib.Path(sys.argv[1])
print("ready", flush=True)
while not (folder / "go").exists():
    time.sleep(0.001)
key = load_key(SigningConfig(test_key_folder=str(folder / "made" / "key")))
print(hashlib.sha256(key.private_key + key.chain).hexdigest())
"""


def test_a_test_key_causes_a_warning_and_is_named_in_its_signatures(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"TEST KEY.*signing\.certificate and signing\.key"):
        signer = build_signer(SigningConfig(test_key_folder=str(tmp_path / "key")))
    assert signer.is_test
    data = encode_output(draw_empty(), Provenance("tiny", "0"), signer=signer)
    verdict = verify(data)
    assert verdict.holds
    assert verdict.test_key
    assert verdict.organisation == TEST_ORGANISATION
    assert "TEST KEY" in verdict.describe()
    assert verify(data, (tmp_path / "key" / CA_NAME).read_text()).trusted


def test_processes_that_start_at_once_share_one_test_key(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT / "platform")},
        )
        for _ in range(NUM_PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    keys = {child.communicate(timeout=60)[0] for child in children}
    assert all(child.returncode == 0 for child in children)
    assert len(keys) == 1
    assert [entry.name for entry in (tmp_path / "made").iterdir()] == ["key"]


def test_a_test_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_test_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "key" / KEY_NAME).stat().st_mode) == 0o600
    text = (tmp_path / "key" / KEY_NAME).read_bytes()
    make_test_key(tmp_path / "key")
    assert (tmp_path / "key" / KEY_NAME).read_bytes() == text


def test_a_test_key_is_in_the_data_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert load_key(SigningConfig()).is_test
    assert (tmp_path / "fusionray" / "test-signing-key" / KEY_NAME).is_file()


def test_an_unwritable_folder_is_named_with_the_settings_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "key", tmp_path / "file"):
        with pytest.raises(SigningKeyInvalid, match=r"file.*: the test key cannot be written.*signing\.certificate"):
            load_key(SigningConfig(test_key_folder=str(place)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
