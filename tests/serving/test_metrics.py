from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fusionray.serving.metrics import ExpiryMetrics

NOW = datetime(2031, 5, 6, tzinfo=UTC)


def test_the_key_that_expires_next_is_exported() -> None:
    metrics = ExpiryMetrics()
    metrics.set_keys([None, None], NOW.timestamp())
    assert not metrics.key.values
    past, soon, later = (NOW + timedelta(days=days) for days in (-1, 1, 30))
    metrics.set_keys([later, None, past, soon], NOW.timestamp())
    assert list(metrics.key.values.values()) == [soon.timestamp()]
    # Removed, it warns no more.
    metrics.set_keys([None, past], NOW.timestamp())
    assert list(metrics.key.values.values()) == [float("inf")]
