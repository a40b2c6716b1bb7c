from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.errors import ConfigInvalid, NotDecrypted
from fusionray.serving.cipher import Cipher
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.service_key import open_key
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.worker import JobWorker
from tests.serving.jobs.some_jobs import copy_target, make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "jobs"
    place.mkdir()
    return place


def test_a_content_is_decrypted_by_the_same_key_use_and_name_only() -> None:
    encrypted = Cipher(b"secret", b"use").encrypt(b"content", b"name")
    assert b"content" not in encrypted
    assert Cipher(b"secret", b"use").decrypt(encrypted, b"name") == b"content"
    changed = encrypted[:-1] + bytes([encrypted[-1] ^ 1])
    for secret, use, name, data in (
        (b"other", b"use", b"name", encrypted),
        (b"secret", b"other", b"name", encrypted),
        (b"secret", b"use", b"other", encrypted),
        (b"secret", b"use", b"name", changed),
        (b"secret", b"use", b"name", b"short"),
    ):
        with pytest.raises(NotDecrypted):
            Cipher(secret, use).decrypt(data, name)


def test_replicas_that_start_at_once_share_one_key(folder: Path) -> None:
    file = folder.parent / "deep" / "key"
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: open_key(file, folder), range(16)))
    assert len({key.name("ann", "1") for key in keys}) == 1
    assert keys[0].name("an", "n1") != keys[0].name("ann", "1")
    assert file.stat().st_mode & 0o777 == 0o600
    assert (os.listdir(file.parent), os.listdir(folder)) == (["key"], ["key-check"])


def test_a_key_file_that_cannot_be_right_is_refused_and_not_repeated(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "key"
    open_key(file, folder)
    file.chmod(0o640)
    with pytest.raises(ConfigInvalid, match="make its mode 0600"):
        open_key(file, folder)
    file.chmod(0o600)
    file.write_text("0123 secret")
    with pytest.raises(ConfigInvalid, match="holds no key of 32 bytes") as caught:
        open_key(file, folder)
    assert "secret" not in str(caught.value)
    file.unlink()
    with pytest.raises(ConfigInvalid, match="is not the key of the jobs in"):
        open_key(file, folder)


def test_a_job_whose_secrets_are_damaged_fails_with_a_reason(store: JobStore) -> None:
    job = make(store)
    folder = JobFolder.read(store.jobs / job)
    (folder.path / "secrets").write_bytes(bytes(100))
    runner = JobWorker(store, copy_target)
    runner.run_once()
    runner.drain()
    status = store.status(job, "ann")
    assert (status.state, status.reason) == ("failed", "the inputs of the job cannot be decrypted; send it again")
