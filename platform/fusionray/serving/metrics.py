"""Prometheus metrics of the service. Ray exports them with the prefix `ray_fusionray_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ray.util.metrics import Counter, Histogram

from fusionray.ray_cluster.lasting_gauge import LastingGauge

MILLISECONDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000]
BATCH_SIZES = [1, 2, 4, 8, 16, 32, 64]


class BatchMetrics:
    """Batches of one model: sizes, durations, and what waits. `unit`: what it makes, faces or pictures."""

    def __init__(self, model: str, unit: str) -> None:
        self.tags = {"model": model}
        named = unit.capitalize()
        self.sizes = Histogram(f"fusionray_batch_{unit}", f"{named} of a batch.", BATCH_SIZES, ("model",))
        self.times = Histogram("fusionray_batch_ms", "Milliseconds of a batch in the model.", MILLISECONDS, ("model",))
        self.waiting = LastingGauge(f"fusionray_waiting_{unit}", f"{named} that wait for a model.", ("model",))

    def __call__(self, num_items: int, seconds: float, num_waiting: int) -> None:
        self.sizes.observe(num_items, self.tags)
        self.times.observe(seconds * 1000.0, self.tags)
        self.waiting.set(num_waiting, self.tags)


class RequestMetrics:
    """Requests of one replica: durations of stages, outcomes, fused faces, and requests in progress."""

    def __init__(self) -> None:
        self.stages = Histogram(
            "fusionray_stage_ms", "Milliseconds of a request by stage.", MILLISECONDS, ("stage", "model")
        )
        self.ends = Counter("fusionray_requests", "Requests by how they ended.", ("status", "reason", "model"))
        self.faces = Counter("fusionray_faces", "Faces fused.", ("model",))
        self.inside = LastingGauge("fusionray_requests_inside", "Requests inside of this copy.")

    def count_stages(self, timing: Mapping[str, float], model: str) -> None:
        """Record the milliseconds of each stage of a request."""
        for stage, milliseconds in timing.items():
            self.stages.observe(milliseconds, {"stage": stage, "model": model})

    def count_end(self, status: int, reason: str, model: str) -> None:
        """Count a finished request."""
        self.ends.inc(1, {"status": str(status), "reason": reason, "model": model})


class HttpMetrics:
    """HTTP requests of one replica, of every route."""

    def __init__(self) -> None:
        self.ends = Counter("fusionray_http_requests", "HTTP requests by route.", ("route", "method", "status"))
        self.times = Histogram(
            "fusionray_http_request_ms", "Milliseconds of an HTTP request.", MILLISECONDS, ("route", "method")
        )

    def count(self, route: str, method: str, status: int, milliseconds: float) -> None:
        """Count a finished request."""
        self.ends.inc(1, {"route": route, "method": method, "status": str(status)})
        self.times.observe(milliseconds, {"route": route, "method": method})


class ExpiryMetrics:
    """When what the service needs expires: its signing certificate, and keys of clients."""

    def __init__(self) -> None:
        self.certificate = LastingGauge(
            "fusionray_certificate_expiry_timestamp_seconds", "Time at which the signing certificate expires."
        )
        self.key = LastingGauge(
            "fusionray_key_expiry_timestamp_seconds", "Time at which the next key of a client expires."
        )
        self.has_expiring_key = False

    def set_certificate(self, expires: datetime) -> None:
        """Set when the signing certificate expires."""
        self.certificate.set(expires.timestamp())

    def set_keys(self, expiries: Iterable[datetime | None], now: float) -> None:
        """Set which key expires next; without one the series is infinite, or was never there."""
        coming = [time.timestamp() for time in expiries if time is not None and time.timestamp() > now]
        self.has_expiring_key = self.has_expiring_key or bool(coming)
        if self.has_expiring_key:
            self.key.set(min(coming, default=float("inf")))
