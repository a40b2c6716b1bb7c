"""Prometheus metrics of the service. Ray exports them with the prefix `ray_fusionray_`."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge, Histogram

MILLISECONDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000]
BATCH_SIZES = [1, 2, 4, 8, 16, 32, 64]


class BatchMetrics:
    """Batches of one model: sizes, durations, and faces that wait."""

    def __init__(self, model: str) -> None:
        tags = {"model": model}
        self.sizes = Histogram("fusionray_batch_faces", "Faces of a batch.", BATCH_SIZES, ("model",))
        self.times = Histogram("fusionray_batch_ms", "Milliseconds of a batch in the model.", MILLISECONDS, ("model",))
        self.waiting = Gauge("fusionray_waiting_faces", "Faces that wait for a model.", ("model",))
        for series in (self.sizes, self.times, self.waiting):
            series.set_default_tags(tags)

    def __call__(self, num_crops: int, seconds: float, num_waiting: int) -> None:
        self.sizes.observe(num_crops)
        self.times.observe(seconds * 1000.0)
        self.waiting.set(num_waiting)


class RequestMetrics:
    """Requests of one replica: durations of stages, outcomes, fused faces, and requests in progress."""

    def __init__(self) -> None:
        self.stages = Histogram(
            "fusionray_stage_ms", "Milliseconds of a request by stage.", MILLISECONDS, ("stage", "model")
        )
        self.ends = Counter("fusionray_requests", "Requests by how they ended.", ("status", "reason", "model"))
        self.faces = Counter("fusionray_faces", "Faces fused.", ("model",))
        self.inside = Gauge("fusionray_requests_inside", "Requests inside of this copy.")

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
