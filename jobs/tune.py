"""The tune stage for `ray job submit -- python jobs/tune.py ...`: the same arguments as `fusionray tune`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("tune"))
