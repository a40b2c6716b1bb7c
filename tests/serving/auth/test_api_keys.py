from __future__ import annotations

import hashlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from fusionray.cli import main
from fusionray.errors import ConfigInvalid
from fusionray.serving.auth.api_keys import ApiKeyStore
from fusionray.serving.auth.key_file import ApiKey, add_key, read_keys, remove_key
from tests.serving.identities.test_store import Clock

SHORT_KEY = "a-key-of-16-char"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


def find(store: ApiKeyStore, presented: str) -> ApiKey:
    key = store.find(presented)
    assert key is not None
    return key


def test_an_added_key_is_accepted_and_the_file_does_not_contain_it(file: Path) -> None:
    ann, bob = add_key(file, "ann", requests_per_minute=60, models=("tiny",)), add_key(file, "bob", images_per_day=9)
    assert re.fullmatch(r"fr_[A-Za-z0-9_-]{43}", ann)
    store = ApiKeyStore(file)
    assert (find(store, ann).name, find(store, ann).requests_per_minute) == ("ann", 60)
    assert (find(store, bob).name, find(store, bob).images_per_day) == ("bob", 9)
    assert (find(store, ann).may_use("tiny"), find(store, ann).may_use("large")) == (True, False)
    assert find(store, bob).may_use("large")
    assert ann not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_keys_that_are_added_at_once_are_all_kept(file: Path) -> None:
    names = [f"key-{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_key(file, name), names))
    assert sorted(key.name for key in read_keys(file)) == sorted(names)


@pytest.mark.parametrize("name", ["operator", "anonymous"])
def test_names_of_requests_without_a_key_of_the_file_are_taken(file: Path, name: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"the name {name} is taken"):
        add_key(file, name)
    file.write_text(yaml.safe_dump({"keys": [{"name": name, "sha256": "0" * 64}]}))
    with pytest.raises(ConfigInvalid, match=f"the name {name} is taken"):
        read_keys(file)


@pytest.mark.parametrize("presented", ["", "x", "fr_" + "a" * 43, "\udcff", "ключ"])
def test_any_other_key_is_refused(file: Path, presented: str) -> None:
    digest = hashlib.sha256(add_key(file, "ann").encode()).hexdigest()
    assert ApiKeyStore(file).find(presented) is None
    assert ApiKeyStore(file).find(digest) is None


def test_the_short_key_of_the_operator_is_accepted_with_those_of_the_file(file: Path) -> None:
    ann = add_key(file, "ann")
    store = ApiKeyStore(file, hashlib.sha256(SHORT_KEY.encode()).digest())
    assert (find(store, SHORT_KEY).name, find(store, ann).name) == ("operator", "ann")
    assert ApiKeyStore(None, hashlib.sha256(SHORT_KEY.encode()).digest()).find(ann) is None


def test_without_file_and_operator_no_key_is_required(file: Path) -> None:
    assert ApiKeyStore().is_empty
    add_key(file, "ann")
    assert not ApiKeyStore(file).is_empty
    remove_key(file, "ann")
    assert not ApiKeyStore(file).is_empty


def test_an_expired_key_is_refused(file: Path) -> None:
    key = add_key(file, "ann", expires="2027-01-31")
    wall = Clock(read_keys(file)[0].expires.timestamp() - 1)  # type: ignore[union-attr]
    store = ApiKeyStore(file, wall_clock=wall)
    find(store, key)
    wall.now += 1
    assert store.find(key) is None


def test_changes_of_the_file_are_followed_within_a_second(file: Path, clock: Clock) -> None:
    ann = add_key(file, "ann")
    store = ApiKeyStore(file, clock=clock)
    bob = add_key(file, "bob")
    remove_key(file, "ann")
    assert store.find(bob) is None
    clock.now += 1.0
    assert store.find(ann) is None
    assert find(store, bob).name == "bob"


def test_a_file_that_becomes_invalid_leaves_the_former_keys_in_force(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = add_key(file, "ann")
    store = ApiKeyStore(file, clock=clock)
    said: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("ray.serve"), "handle", said.append)
    file.write_text("keys: [")
    for _ in range(3):
        clock.now += 1.0
        find(store, ann)
    assert ["not valid YAML" in record.getMessage() for record in said] == [True]
    file.unlink()
    clock.now += 1.0
    find(store, ann)


PLAIN = "fr_" + "k" * 43
DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"keys: [{{name: a, key: {PLAIN}}}]", "a plain key stands in it"),
        ("keys: [{name: a, key: my-own-secret-key}]", "a plain key stands in it"),
        (f"keys: [{{name: a, sha256: {PLAIN}}}]", "a plain key stands in it"),
        (f"keys: []  # {PLAIN}", "a plain key stands in it"),
        ("keys: [{name: a, sha256: my-own-secret-key}]", "sha256: String should match pattern"),
        ("keys: [my-own-secret-key: [", "not valid YAML, line 1"),
        ("my-own-secret-key", "expected `keys:`"),
        (f"keys: [{{name: a, sha256: '{DIGEST}'}}, {{name: a, sha256: '{DIGEST}'}}]", "the name a is taken"),
        (f"keys: [{{name: operator, sha256: '{DIGEST}'}}]", "the name operator is taken"),
        (f"keys: [{{name: ../a, sha256: '{DIGEST}'}}]", "keys.0.name"),
        (f"keys: [{{name: a, sha256: '{DIGEST}', limit: 3}}]", "unknown key 'keys.0.limit'"),
        (f"keys: [{{name: a, sha256: '{DIGEST}', images_per_day: 0}}]", "images_per_day"),
        (f"keys: [{{name: a, sha256: '{DIGEST}', expires: 2027-01-31T00:00}}]", "expires"),
        ("keys: 3", "keys"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_repeats_no_key(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigInvalid, match=re.escape(words)) as caught:
        ApiKeyStore(file)
    said = str(caught.value)
    assert str(file) in said
    assert "\n" not in said
    assert PLAIN not in said
    assert "my-own" not in said


def test_a_missing_file_is_refused(file: Path) -> None:
    with pytest.raises(ConfigInvalid, match="fusionray keys add"):
        ApiKeyStore(file)


def test_keys_are_made_listed_and_removed_by_the_command_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--requests-per-minute", "60", "--images-per-day", "9", "--models", "a,b", "--expires", "2027-01-31"]
    assert main(["keys", "add", "ann", "--file", str(file), *limits]) == 0
    (key,) = capsys.readouterr().out.splitlines()
    store = ApiKeyStore(file, wall_clock=lambda: 1.7e9)
    assert find(store, key).models == ("a", "b")
    assert main(["keys", "add", "bob", "--file", str(file)]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--file", str(file)]) == 0
    listed = capsys.readouterr().out
    assert listed.splitlines() == [
        "ann: until 2027-01-31T00:00:00+00:00; 60 requests a minute; 9 images a day; models a, b",
        "bob: no limits",
    ]
    assert main(["keys", "remove", "ann", "--file", str(file)]) == 0
    assert [entry["name"] for entry in yaml.safe_load(file.read_text())["keys"]] == ["bob"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["add", "ann"], "the name ann is taken"),
        (["add", "operator"], "the name operator is taken"),
        (["add", "a/b"], "name"),
        (["add", "bob", "--expires", "soon"], "write a date"),
        (["add", "bob", "--images-per-day", "0"], "images_per_day"),
        (["remove", "bob"], "no key is named bob; there are: ann"),
    ],
)
def test_a_wrong_command_is_refused_and_changes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], line: list[str], words: str
) -> None:
    add_key(file, "ann")
    before = file.read_bytes()
    assert main(["keys", *line, "--file", str(file)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)
    assert words in captured.err
    assert file.read_bytes() == before


def test_a_key_is_found_among_a_thousand(file: Path) -> None:
    key = add_key(file, "ann")
    store = ApiKeyStore(file)
    others = [ApiKey(name=f"n{number}", sha256=f"{number:064x}") for number in range(1000)]
    store.keys = tuple((other.sha256.encode(), other) for other in others) + store.keys
    assert find(store, key).name == "ann"
