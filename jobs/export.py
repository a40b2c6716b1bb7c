"""The export stage for `ray job submit -- python jobs/export.py ...`: the same arguments as `fusionray export`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("export"))
