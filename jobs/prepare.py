"""The prepare stage for `ray job submit -- python jobs/prepare.py ...`: the same arguments as `fusionray prepare`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("prepare"))
