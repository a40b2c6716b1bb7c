"""The problem with which the service answers for each kind of error."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from fusionray.errors import (
    BundleInvalid,
    ConsentRefused,
    JobEnded,
    JobNotFinished,
    KeyReused,
    Overloaded,
    QuotaExceeded,
    SigningFailed,
    StoreFull,
    TargetRefused,
    UnknownIdentity,
    UnknownItem,
    UnknownJob,
)
from fusionray.serving.schema import Problem, unavailable

logger = logging.getLogger("ray.serve")


def describe_consent(error: Exception) -> Problem:
    reason = getattr(error, "reason", "refused").removeprefix("consent_")
    return Problem(403, f"consent_{reason}", "Consent is missing", str(error), picture="source")


def describe_target(error: Exception) -> Problem:
    assert isinstance(error, TargetRefused)
    return Problem(403, "target_refused", "Target not permitted", str(error), picture="target", rule=error.rule)


def describe_signing(error: Exception) -> Problem:
    logger.error("signing: %s", error)
    return unavailable("signing_failed", "the picture could not be signed, and none leaves without a signature")


def describe_quota(error: Exception) -> Problem:
    assert isinstance(error, QuotaExceeded)
    wait = str(max(1, round(error.retry_after_seconds)))
    return Problem(429, error.quota, "Quota used up", str(error), headers={"Retry-After": wait})


def describe_full_store(error: Exception) -> Problem:
    return Problem(507, "store_full", "Store full", str(error), headers={"Retry-After": "60"})


# Kinds of errors, and the function that turns each into a problem.
PROBLEMS: tuple[tuple[tuple[type[Exception], ...], Callable[[Exception], Problem]], ...] = (
    ((BackPressureError, Overloaded), lambda _: unavailable("busy", "too many requests are waiting")),
    (
        (RayActorError, DeploymentUnavailableError),
        lambda _: unavailable("model_lost", "the model was lost while it worked on this request and is coming back"),
    ),
    ((BundleInvalid,), lambda error: unavailable("not_ready", f"the model cannot be loaded now ({error})")),
    ((ConsentRefused,), describe_consent),
    ((TargetRefused,), describe_target),
    ((SigningFailed,), describe_signing),
    ((QuotaExceeded,), describe_quota),
    ((StoreFull,), describe_full_store),
    ((UnknownIdentity,), lambda error: Problem(404, "unknown_identity", "No such identity", str(error))),
    ((UnknownJob,), lambda error: Problem(404, "unknown_job", "No such job", str(error))),
    ((UnknownItem,), lambda error: Problem(404, "unknown_item", "No such picture", str(error))),
    (
        (JobNotFinished,),
        lambda error: Problem(409, "not_finished", "Not finished", str(error), headers={"Retry-After": "1"}),
    ),
    ((JobEnded,), lambda error: Problem(409, "already_ended", "Job has ended", str(error))),
    ((KeyReused,), lambda error: Problem(422, "idempotency_key_reused", "Idempotency key used before", str(error))),
    (
        (TimeoutError,),
        lambda _: Problem(504, "timeout", "Took too long", "no answer came in the time set; try again later"),
    ),
)
REFUSALS = tuple(kind for kinds, _ in PROBLEMS for kind in kinds)

INTERNAL_ERROR = Problem(500, "internal", "Internal error", "the request failed; the log of the service says why")


def explain(error: Exception) -> Problem:
    """Turn one of the `REFUSALS` into a problem."""
    return next(describe(error) for kinds, describe in PROBLEMS if isinstance(error, kinds))
