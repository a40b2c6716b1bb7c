"""Preload: import Ray Serve before a process of Ray gets work, in the cluster that `fusionray serve` starts for itself.

Ray imports this module in every process that it starts (RAY_preload_python_modules, environment.py).
"""

import os

from fusionray.environment import SERVES, WORKER_VARIABLE

if os.environ.get(WORKER_VARIABLE) == SERVES:
    from fusionray.ray_cluster.serve_import import import_serve

    import_serve()
