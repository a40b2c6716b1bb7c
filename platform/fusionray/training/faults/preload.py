"""Imports ahead: what a training worker will need, taken in before the process is given anything to do.

Ray imports this module in every process that it starts (RAY_preload_python_modules, environment.py); it does
something in those that are to train. A process in wait has its imports behind it.
"""

import os

from fusionray.environment import WORKER_VARIABLE

if os.environ.get(WORKER_VARIABLE) == "1":
    import fusionray.training.run.worker  # noqa: F401
    from fusionray.recipes.registry import import_families

    import_families()
