"""Preload: import the modules that a process of Ray will need, before it gets work.

Ray imports this module in every process that it starts (RAY_preload_python_modules, environment.py). What it preloads
depends on WORKER_VARIABLE: the modules of training, so that a warm spare has already imported everything; or Ray Serve,
in the cluster that `fusionray serve` starts for itself.
"""

import os

from fusionray.environment import SERVES, TRAINS, WORKER_VARIABLE

kind = os.environ.get(WORKER_VARIABLE)
if kind == TRAINS:
    import fusionray.training.run.worker  # noqa: F401
    from fusionray.recipes.registry import import_families

    import_families()
elif kind == SERVES:
    from fusionray.ray_cluster.serve_import import import_serve

    import_serve()
