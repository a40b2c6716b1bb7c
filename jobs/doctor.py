"""The doctor on every node, for `ray job submit -- python jobs/doctor.py ...`: `fusionray doctor --cluster`."""

import sys

from fusionray.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["doctor", "--cluster", *sys.argv[1:]]))
