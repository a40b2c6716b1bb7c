"""The one error tree. Each message says what is wrong, where, and how to mend it."""

from __future__ import annotations


class FusionRayError(Exception):
    """Base of every error that a user can mend; the command line prints it as one line."""


class InputMissing(FusionRayError):
    """A folder, archive or file that was named is not there, or holds nothing usable."""


class ImageRejected(FusionRayError):
    """One picture cannot be used. `reason` is the short key that manifests count by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ImageRejected], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class NoFaceFound(ImageRejected):
    """The detector saw no face above its threshold."""

    def __init__(self, detail: str) -> None:
        super().__init__("no_face", detail)

    def __reduce__(self) -> tuple[type[NoFaceFound], tuple[str]]:  # type: ignore[override]
        return type(self), (str(self),)


class DetectorUnavailable(FusionRayError):
    """The face detector that was asked for cannot be loaded here."""


class ShardCorrupt(FusionRayError):
    """A shard or its manifest does not hold what the manifest promises."""


class ShardMismatch(FusionRayError):
    """The shards are sound, but not what this run needs (size, template, identities)."""


class DataTimeout(FusionRayError):
    """Storage did not answer in time."""


class CheckpointMissing(FusionRayError):
    """No usable checkpoint lies where one was expected."""


class CheckpointDamaged(CheckpointMissing):
    """A checkpoint does not hold what was saved; the one before it may."""


class CheckpointFailed(FusionRayError):
    """A checkpoint could not be written; the one before it is still there."""


class BundleInvalid(FusionRayError):
    """A bundle is incomplete, damaged or not the one its description promises."""


class ModelRejected(FusionRayError):
    """An ONNX file that was made elsewhere cannot be taken as it is, or not without being told more."""


class ParityFailed(FusionRayError):
    """The exported model does not compute what the trained one computes."""


class ProviderUnavailable(FusionRayError):
    """ONNX Runtime does not run the execution provider that was asked for."""


class ConfigInvalid(FusionRayError):
    """A configuration file, preset or override cannot be understood."""


class TrackerFailed(FusionRayError):
    """The tracking store did not take what a run has to tell."""


class RunStopped(FusionRayError):
    """A run, or a search, was told to end, and did, with a checkpoint; the same command goes on."""


class TrainingFailed(FusionRayError):
    """Training stopped: a worker failed for good, or the numbers left the finite range."""


class ClusterUnavailable(FusionRayError):
    """The Ray cluster that was named does not answer, or is too small for what was asked."""


class Overloaded(FusionRayError):
    """More waits than will be done in good time."""


class ServiceFailed(FusionRayError):
    """The service did not start."""


class SigningKeyInvalid(FusionRayError):
    """A certificate or private key cannot sign manifests that anybody would accept."""


class SigningFailed(FusionRayError):
    """A finished output could not be signed, so it is not handed out."""


class ProvenanceInvalid(FusionRayError):
    """A file does not prove that it is AI-made: no manifest, a broken one, or one of a stranger."""


class ConsentRefused(FusionRayError):
    """The policy does not permit this source. `reason` is a short stable key."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ConsentRefused], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class AuditFailed(FusionRayError):
    """The line about a request could not be written."""


class StoreFull(FusionRayError):
    """A store of the service holds as much as its settings allow, or its disk does."""


class UnknownIdentity(FusionRayError):
    """No face lies under a handle: never stored, expired, removed, damaged or another owner's; nobody is told which."""


class UnknownJob(FusionRayError):
    """There is no such job: never made, expired, removed or another owner's; nobody is told which."""


class JobNotFinished(FusionRayError):
    """A job has no result: it has not ended, or did not end well."""


class QuotaExceeded(FusionRayError):
    """An API key has used up what it is granted. `quota` names it; more is there after `retry_after_seconds`."""

    def __init__(self, quota: str, retry_after_seconds: float, detail: str) -> None:
        super().__init__(detail)
        self.quota = quota
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[type[QuotaExceeded], tuple[str, float, str]]:
        return type(self), (self.quota, self.retry_after_seconds, str(self))
