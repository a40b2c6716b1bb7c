"""The evaluate stage for `ray job submit -- python jobs/evaluate.py ...`: the arguments of `fusionray evaluate`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("evaluate"))
