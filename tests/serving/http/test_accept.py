from __future__ import annotations

import pytest

from fusionray.serving.http.accept import find_accepted_format


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("", None),
        ("*/*", None),
        ("image/*", None),
        ("application/json", None),
        ("image/avif", None),
        ("image/webp", "webp"),
        ("IMAGE/JPEG; Q=0.5", "jpeg"),
        ("image/png, image/jpeg", "png"),
        ("image/png;q=0.2, image/jpeg;q=0.9", "jpeg"),
        ("image/png, */*", None),
        ("image/avif,image/webp,image/apng,*/*;q=0.8", "webp"),
        ("image/png;q=0", None),
        ("image/png;q=0, image/*", None),
        ("image/png;q=high, image/jpeg;q=nan", None),
        (";;;,,image/webp;level=1;q=1", "webp"),
    ],
)
def test_the_preferred_format_is_found(header: str | None, expected: str | None) -> None:
    assert find_accepted_format(header) == expected
