"""Which runner drives the models of a bundle: by the task that the bundle names.

A task that maps pictures to a picture needs no runner of its own. One that does more registers it, or brings it in an
installed package as an entry point of the group `fusionray.tasks`, whose name is the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Protocol

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION, Precision
from fusionray.faces.face import Image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engine import EngineReport
from fusionray.runtime.pixel_runner import PixelRunner

ENTRY_POINTS = "fusionray.tasks"


class Runner(Protocol):
    """The models of a bundle, loaded."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Name the pictures that it takes, in the order in which its model does."""
        ...

    @property
    def report(self) -> EngineReport:
        """Report what the model that makes the picture runs on."""
        ...

    def warm_up(self) -> None:
        """Run every model once, so that the first request does not pay for it."""
        ...

    def run(self, pictures: Mapping[str, Image]) -> Image:
        """Make a picture from the named ones; all are uint8 RGB HWC at any size.

        Raises: ImageRejected if one of them cannot be used.
        """
        ...


class OpenRunner(Protocol):
    """Open the bundles of a task."""

    def __call__(
        self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: Precision = "fp32"
    ) -> Runner:
        """Load the models of a bundle.

        Raises: BundleInvalid, ProviderUnavailable.
        """
        ...


class FaceFusionRunner:
    """Face fusion as one of many tasks: the largest face of `target` gets the identity of that of `source`.

    One call at a time, as its fuser says.
    """

    inputs = ("source", "target")

    def __init__(self, bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: Precision = "fp32") -> None:
        # The face detector is not for those who run another task.
        from fusionray.faces.detect import build_detector
        from fusionray.runtime.fuser import Fuser

        self.fuser = Fuser(bundle, build_detector("default"), settings, precision=precision)

    @property
    def report(self) -> EngineReport:
        """Report what the generator runs on."""
        return self.fuser.crop_fuser.report

    def warm_up(self) -> None:
        """Run every model once."""
        self.fuser.warm_up()

    def run(self, pictures: Mapping[str, Image]) -> Image:
        """Fuse two pictures.

        Raises: NoFaceFound naming the picture that shows none.
        """
        return self.fuser.fuse(pictures["source"], pictures["target"]).image


RUNNERS: dict[str, OpenRunner] = {FACE_FUSION: FaceFusionRunner}


def register_task(name: str, runner: OpenRunner) -> None:
    """Let bundles of a task be driven by a runner of its own.

    Raises: ValueError if another one drives them already.
    """
    if RUNNERS.setdefault(name, runner) is not runner:
        raise ValueError(f"task '{name}': {RUNNERS[name]} drives it already; choose another name")


def find_runner(task: str) -> OpenRunner:
    """Find what opens the bundles of a task: what was registered, what a package brings, or the runner for pictures."""
    if task not in RUNNERS:
        for entry in entry_points(group=ENTRY_POINTS, name=task):
            register_task(task, entry.load())
    return RUNNERS.get(task, PixelRunner)


def open_runner(bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: Precision = "fp32") -> Runner:
    """Load the models of a bundle, whatever its task.

    Raises: BundleInvalid if the bundle is not what its task needs; ProviderUnavailable.
    """
    return find_runner(bundle.description.task)(bundle, settings, precision=precision)
