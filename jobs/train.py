"""The train stage for `ray job submit -- python jobs/train.py ...`: the same arguments as `fusionray train`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("train"))
