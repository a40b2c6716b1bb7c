from __future__ import annotations

import warnings

# Ray Serve uses deprecated parts of pydantic while it is imported; that is not ours to mend, so it is imported once
# here, before warnings become errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import ray.serve  # noqa: F401
