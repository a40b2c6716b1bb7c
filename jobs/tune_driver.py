"""The steps of `fusionray tune` as a script: copy it, and change the marked lines for a search of your own.

python jobs/tune_driver.py jobs/presets/search-64.yaml
"""

import sys

from fusionray.environment import apply_defaults

apply_defaults()  # before Ray is imported

from ray import tune  # noqa: E402

from fusionray.config import load_config  # noqa: E402
from fusionray.ray_cluster.connection import cluster  # noqa: E402
from fusionray.tuning.config import TuneConfig  # noqa: E402
from fusionray.tuning.driver import open_search, tuner_arguments  # noqa: E402
from fusionray.tuning.result import conclude  # noqa: E402


def main() -> None:
    """Open the search, run its trials on Tune, conclude; the same command continues a stopped search."""
    config = load_config(TuneConfig, file=sys.argv[1], overrides=sys.argv[2:])
    with cluster():
        plan = open_search(config)
        with tuner_arguments(plan) as arguments:
            # Change here: arguments["tune_config"].scheduler and .search_alg, arguments["run_config"].callbacks. Trials
            # report the metric, `images` and `milestone` (`images` rounded down to validate_every_images).
            tune.Tuner(**arguments).fit()
        print(conclude(plan).summary)


if __name__ == "__main__":
    main()
