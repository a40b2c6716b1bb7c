"""A search of your own: what `fusionray tune` does, written out. Copy it, and change what is marked.

python jobs/tune_driver.py jobs/presets/search-64.yaml
"""

import sys

from fusionray.environment import apply_defaults

apply_defaults()  # before Ray is imported

from ray import tune  # noqa: E402

from fusionray.config import load_config  # noqa: E402
from fusionray.ray_cluster.connection import cluster  # noqa: E402
from fusionray.tuning.config import TuneConfig  # noqa: E402
from fusionray.tuning.driver import open_search, trials_of  # noqa: E402
from fusionray.tuning.outcome import conclude  # noqa: E402


def main() -> None:
    """Open the search, let Tune run its trials, conclude; the same command goes on where it stopped."""
    config = load_config(TuneConfig, file=sys.argv[1], overrides=sys.argv[2:])
    with cluster():
        plan = open_search(config)
        with trials_of(plan) as parts:
            # Yours: parts["tune_config"].scheduler and .search_alg, parts["run_config"].callbacks. Trials report the
            # metric, `images` and `milestone` (the multiple of train.budget.validate_every_images they were due at).
            tune.Tuner(**parts).fit()
        print(conclude(plan).summary)


if __name__ == "__main__":
    main()
