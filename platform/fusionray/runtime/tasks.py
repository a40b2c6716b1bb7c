"""Registry of inference runners: the task in a bundle's description selects the class that loads and runs its models.

`PixelRunner` is the default: it runs a model that maps pictures to one picture. A task that needs more, such as face
detection, has a factory of its own, added by `register_task`, or by an installed package through an entry point of the
group `fusionray.tasks` with the name of the task.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER, WeightPrecision
from fusionray.faces.face import Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.pixel_runner import PixelRunner
from fusionray.runtime.style_transfer.stylizer import StyleTransferRunner

ENTRY_POINTS = "fusionray.tasks"


class Runner(Protocol):
    """The loaded models of one bundle, which make one picture from named pictures.

    Call `run` from one thread at a time, unless the class of the runner allows more.
    """

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the input pictures, in the order of the model's inputs."""
        ...

    @property
    def report(self) -> EngineReport:
        """Return the execution provider and settings of the model that makes the output picture."""
        ...

    def warm_up(self) -> None:
        """Run every model once, so that lazy allocation does not slow the first request."""
        ...

    def run(self, pictures: Mapping[str, Image]) -> Image:
        """Make one picture from `pictures`, which holds one picture for each name in `inputs`.

        All pictures are uint8 RGB [H, W, 3]. Inputs may have any size; the runner decides the size of the output. A
        runner may take further pictures, and settings of a picture by keyword, each with a default; its served task
        knows them.

        Raises: ImageRejected if a picture cannot be used; KeyError if one is not given.
        """
        ...


@runtime_checkable
class BatchRunner(Runner, Protocol):
    """A runner that makes the pictures of several calls at once. Thread-safe."""

    def batch_key(self, pictures: Mapping[str, Image]) -> Hashable:
        """Return what is equal for calls whose pictures can be made together; None for one that has to be alone.

        Raises: KeyError if a picture is missing.
        """
        ...

    def run_many(self, pictures: Sequence[Mapping[str, Image]], settings: Sequence[Mapping[str, Any]]) -> list[Image]:
        """Make a picture of each call, all of one `batch_key`, as `run` does with its settings.

        Raises: as `run`, for any of the calls.
        """
        ...


class RunnerFactory(Protocol):
    """A callable, usually a class, that makes the runner of a bundle."""

    def __call__(
        self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
    ) -> Runner:
        """Load the models of a bundle; `precision` chooses among its generators.

        Raises: BundleInvalid, ProviderUnavailable.
        """
        ...


class FaceFusionRunner:
    """Runner of the task face fusion: give the largest face of `target` the identity of the largest face of `source`.

    Not thread-safe: `Fuser` allows one call at a time.
    """

    inputs = ("source", "target")

    def __init__(
        self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
    ) -> None:
        # Imported here, so that other tasks do not load the face detector.
        from fusionray.faces.detectors.factory import build_detector
        from fusionray.runtime.fuser import Fuser

        self.fuser = Fuser(bundle, build_detector("default"), settings, precision=precision)

    @property
    def report(self) -> EngineReport:
        """Return the execution provider and settings of the generator."""
        return self.fuser.crop_fuser.report

    def warm_up(self) -> None:
        """Run every model once, so that lazy allocation does not slow the first request."""
        self.fuser.warm_up()

    def run(self, pictures: Mapping[str, Image]) -> Image:
        """Return `target` with the identity of `source`: uint8 RGB [H, W, 3], the size of `target`.

        Raises: NoFaceFound naming the picture that shows none; KeyError if `source` or `target` is not given.
        """
        return self.fuser.fuse(pictures["source"], pictures["target"]).image


RUNNER_FACTORIES: dict[str, RunnerFactory] = {FACE_FUSION: FaceFusionRunner, STYLE_TRANSFER: StyleTransferRunner}


def register_task(task: str, factory: RunnerFactory) -> None:
    """Register the factory that opens bundles of a task, for this process; the same one twice is allowed.

    Raises: ValueError if the task has another factory already.
    """
    if RUNNER_FACTORIES.setdefault(task, factory) is not factory:
        raise ValueError(f"task '{task}': {RUNNER_FACTORIES[task]} is registered for it already; choose another name")


def find_runner_factory(task: str) -> RunnerFactory:
    """Return the factory of a task: the registered one, else that of an entry point, else `PixelRunner`.

    An unknown task gets `PixelRunner`, which refuses bundles whose model takes or gives anything but pictures. The
    factory of an entry point is imported and registered.

    Raises: ValueError if two packages bring factories for the task.
    """
    if task not in RUNNER_FACTORIES:
        for entry in entry_points(group=ENTRY_POINTS, name=task):
            register_task(task, entry.load())
    return RUNNER_FACTORIES.get(task, PixelRunner)


def open_runner(
    bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
) -> Runner:
    """Load the models of a bundle with the factory of its task.

    `settings` of None are the defaults of `RuntimeConfig`; `precision` chooses among the generators of the bundle.

    Raises: BundleInvalid if the bundle is not what its task needs; ProviderUnavailable; ValueError as
        `find_runner_factory`.
    """
    return find_runner_factory(bundle.description.task)(bundle, settings, precision=precision)
