"""A worker that binds itself while one of its threads runs already; prints the affinities as JSON."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict

import torch

from fusionray.hardware.affinity import bind_worker


def main() -> None:
    bound, older = threading.Event(), {}

    def wait() -> None:
        bound.wait()
        older["cores"] = sorted(os.sched_getaffinity(0))

    thread = threading.Thread(target=wait)
    thread.start()
    placement = bind_worker(1, 2, torch.device("cpu"))
    threads = torch.get_num_threads()
    bound.set()
    thread.join()
    newer: list[int] = []
    second = threading.Thread(target=lambda: newer.extend(sorted(os.sched_getaffinity(0))))
    second.start()
    second.join()
    asked = bind_worker(0, 1, torch.device("cpu"), threads=3)
    print(
        json.dumps(
            {
                "placement": asdict(placement),
                "main": sorted(os.sched_getaffinity(0)),
                "older_thread": older["cores"],
                "newer_thread": newer,
                "threads": threads,
                "asked": {"threads": torch.get_num_threads(), "cores": list(asked.cores)},
            }
        )
    )


if __name__ == "__main__":
    main()
