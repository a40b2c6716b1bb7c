"""The errors of fusionray. Each message says what is wrong, where, and how to fix it."""

from __future__ import annotations


class FusionRayError(Exception):
    """Base of every error that a user can fix; the command line prints it as one line."""


class InputMissing(FusionRayError):
    """A named folder, archive or file does not exist, or contains nothing usable."""


class ImageRejected(FusionRayError):
    """A picture cannot be used. `reason` is a short key by which manifests count."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ImageRejected], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class NoFaceFound(ImageRejected):
    """The detector found no face above its threshold."""

    def __init__(self, detail: str) -> None:
        super().__init__("no_face", detail)

    def __reduce__(self) -> tuple[type[NoFaceFound], tuple[str]]:  # type: ignore[override]
        return type(self), (str(self),)


class VideoRejected(FusionRayError):
    """A video cannot be read. `reason` is a short key by which services count."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[VideoRejected], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class PictureNotWritten(FusionRayError):
    """A picture cannot be written: its format has no room for it, or the disk."""


class VideoNotWritten(FusionRayError):
    """A video cannot be encoded, or its container cannot hold a stream; no file is left behind."""


class VideoInUse(VideoNotWritten):
    """Another process makes the same video just now."""


class DetectorUnavailable(FusionRayError):
    """The requested face detector cannot be loaded."""


class ShardCorrupt(FusionRayError):
    """A shard or its manifest differs from what the manifest promises."""


class ShardMismatch(FusionRayError):
    """The shards are intact, but do not fit this run (size, template, identities)."""


class DataTimeout(FusionRayError):
    """Storage did not answer in time."""


class CheckpointMissing(FusionRayError):
    """There is no usable checkpoint where one is expected."""


class CheckpointDamaged(CheckpointMissing):
    """A checkpoint differs from what was saved; the one before it may be intact."""


class CheckpointFailed(FusionRayError):
    """A checkpoint could not be written; the one before it still exists."""


class BundleInvalid(FusionRayError):
    """A bundle is incomplete, damaged, or not the one that its description promises."""


class ModelRejected(FusionRayError):
    """An ONNX file from elsewhere cannot be imported, or needs more options."""


class ParityFailed(FusionRayError):
    """The exported model computes something else than the trained one."""


class ProviderUnavailable(FusionRayError):
    """ONNX Runtime does not support the requested execution provider here."""


class ConfigInvalid(FusionRayError):
    """A configuration file, preset or override is invalid."""


class KeyNameTaken(ConfigInvalid):
    """An API key has this name already."""


class UnknownKey(ConfigInvalid):
    """No API key has this name."""


class TrackerFailed(FusionRayError):
    """The tracking store rejected an entry of a run."""


class RunStopped(FusionRayError):
    """A run or search stopped on request, with a checkpoint; the same command continues it."""


class TrainingFailed(FusionRayError):
    """Training failed: a worker failed for good, or a value is not finite."""


class ClusterUnavailable(FusionRayError):
    """The named Ray cluster does not answer, or is too small for the request."""


class Overloaded(FusionRayError):
    """More requests wait than can be processed in time."""


class ServiceFailed(FusionRayError):
    """The service did not start."""


class ServiceUnreachable(FusionRayError):
    """A client gets no answer from a service."""


class AnswerInvalid(FusionRayError):
    """A client gets an answer that a service of this version does not give."""


class ServiceRefused(FusionRayError):
    """A service answers a client with a problem. `reason` is its short stable key, `picture` the picture at fault.

    `retry_after` is the time in seconds after which the request may be sent again, if the service tells one.
    """

    def __init__(
        self, status: int, reason: str, detail: str, picture: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{detail} ({status} {reason})")
        self.status = status
        self.reason = reason
        self.detail = detail
        self.picture = picture
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[ServiceRefused], tuple[int, str, str, str | None, float | None]]:
        return type(self), (self.status, self.reason, self.detail, self.picture, self.retry_after)


class SigningKeyInvalid(FusionRayError):
    """A certificate or private key is unusable for signing manifests."""


class SigningFailed(FusionRayError):
    """A finished output could not be signed, so it is withheld."""


class ProvenanceInvalid(FusionRayError):
    """A file does not prove that it is AI-made: its manifest is missing, invalid, or of an unknown signer."""


class ConsentRefused(FusionRayError):
    """The policy does not permit this source. `reason` is a short stable key."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ConsentRefused], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class TargetRefused(FusionRayError):
    """The policy does not permit this target. `rule` names the rule that refuses it."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule

    def __reduce__(self) -> tuple[type[TargetRefused], tuple[str, str]]:
        return type(self), (self.rule, str(self))


class AuditFailed(FusionRayError):
    """A line of the audit log could not be written."""


class ChainBroken(FusionRayError):
    """A line of the audit log was changed, removed or put in."""


class StoreFull(FusionRayError):
    """A store of the service, or its disk, is full."""


class UnknownIdentity(FusionRayError):
    """A handle has no face: never stored, expired, removed, damaged or another owner's; clients cannot tell which."""


class UnknownJob(FusionRayError):
    """A job does not exist: never created, expired, removed or another owner's; clients cannot tell which."""


class JobNotFinished(FusionRayError):
    """A job, or a picture of it, has no result: it has not ended, or has failed."""


class JobEnded(FusionRayError):
    """A job cannot be cancelled, because it has ended."""


class UnknownItem(FusionRayError):
    """A job has no picture of this number."""


class KeyReused(FusionRayError):
    """An idempotency key comes with another request than before."""


class NotDecrypted(FusionRayError):
    """An encrypted content was changed, or the key is another one."""


class QuotaExceeded(FusionRayError):
    """An API key has reached a limit. `quota` names it; more is allowed after `retry_after_seconds`."""

    def __init__(self, quota: str, retry_after_seconds: float, detail: str) -> None:
        super().__init__(detail)
        self.quota = quota
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[type[QuotaExceeded], tuple[str, float, str]]:
        return type(self), (self.quota, self.retry_after_seconds, str(self))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
