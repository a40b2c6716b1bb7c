"""Style transfer for `ray job submit -- python jobs/stylize.py ...`: the arguments of `fusionray stylize`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("stylize"))
