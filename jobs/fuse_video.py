"""The video stage for `ray job submit -- python jobs/fuse_video.py ...`: the arguments of `fusionray fuse-video`."""

from fusionray.cli import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("fuse-video"))
