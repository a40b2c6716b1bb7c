"""Preload: import the modules of a training worker before its process gets a task.

Ray imports this module in every process that it starts (RAY_preload_python_modules, environment.py). It preloads only
in processes that will train, so a warm spare has already imported everything.
"""

import os

from fusionray.environment import TRAINS, WORKER_VARIABLE

if os.environ.get(WORKER_VARIABLE) == TRAINS:
    import fusionray.training.run.entry  # noqa: F401
    from fusionray.recipes.registry import import_families

    import_families()
