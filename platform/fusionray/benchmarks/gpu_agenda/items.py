"""The items in their order: first what tells whether anything works, then what is fast, last what takes long."""

from __future__ import annotations

from typing import Any

from fusionray.benchmarks.gpu_agenda.agenda import Item

ENGINE, EXCHANGE, RUNTIME = (f"{__package__}.{module}_items" for module in ("engine", "exchange", "runtime"))
PRESETS = (
    *("tiny-64", "fast-128", "base-256", "large-512", "identity-small", "attributes-small"),
    *("style-tiny", "style-small", "style-adain-tiny", "style-encoder"),
)
# One change each of what the profile of the hardware chooses.
VARIANTS: dict[str, dict[str, Any]] = {
    "profile": {},
    "eager": {"compile": False, "cuda_graphs": False},
    "graphs": {"compile": False},
    "compiled": {"cuda_graphs": False},
    "contiguous": {"compile": False, "channels_last": False},
    "no-cudnn-benchmark": {"compile": False, "cudnn_benchmark": False},
}
GRAPHED: dict[str, dict[str, Any]] = {
    "tiny-64": {"preset": "tiny-64"},
    "fast-128": {"preset": "fast-128"},
    "compiled": {"preset": "tiny-64", "compile": True},
}

ITEMS = (
    *(Item(f"dry-run-{preset}", f"{ENGINE}:run_dry", 60, {"preset": preset}, needs_gpu=False) for preset in PRESETS),
    Item(
        "losses-cpu",
        f"{ENGINE}:learn",
        240,
        {"preset": "tiny-64", "precision": "fp32", "device": "cpu"},
        needs_gpu=False,
    ),
    *(
        Item(f"losses-{precision}", f"{ENGINE}:learn", 90, {"preset": "tiny-64", "precision": precision})
        for precision in ("fp32", "bf16", "fp16")
    ),
    *(
        Item(f"first-step-{name}", f"{ENGINE}:profile_first_step", 90, {"preset": "fast-128", **changes})
        for name, changes in {"profile": {}, "no-cudnn-benchmark": {"cudnn_benchmark": False}}.items()
    ),
    *(Item(f"graphs-{name}", f"{ENGINE}:compare_graphs", 180, changes) for name, changes in GRAPHED.items()),
    Item("syncs", f"{ENGINE}:count_syncs", 90, {"preset": "fast-128"}),
    Item("compilations", f"{ENGINE}:count_compilations", 240, {"preset": "fast-128"}),
    *(
        Item(
            f"rate-{images}-{name}", f"{ENGINE}:measure_rate", 180, {"preset": "fast-128", "images": images, **changes}
        )
        for images in (32, 128, 4)
        for name, changes in VARIANTS.items()
    ),
    Item("profile", f"{ENGINE}:record_profile", 90, {"preset": "fast-128"}),
    Item("profile-eager", f"{ENGINE}:record_profile", 90, {"preset": "fast-128", "cuda_graphs": False}),
    Item("auto", f"{ENGINE}:fill_device", 180, {"preset": "fast-128"}),
    Item("squeeze", f"{ENGINE}:squeeze_memory", 120, {"preset": "fast-128", "images": 64}),
    *(
        Item(f"exchange-{name}", f"{EXCHANGE}:exchange_compressed", 60, {"compression": name}, needs_gpu=False)
        for name in ("none", "bf16", "fp16", "powersgd")
    ),
    Item("kill-in-saves", f"{EXCHANGE}:kill_in_saves", 300, needs_gpu=False),
    Item("bundle", f"{RUNTIME}:make_bundle", 300, {"preset": "tiny-64"}, needs_gpu=False),
    *(
        Item(
            f"generator-{provider}-{precision}",
            f"{RUNTIME}:run_generator",
            300,
            {"provider": provider, "precision": precision},
            needs_gpu=provider != "cpu",
        )
        for provider in ("cpu", "cuda", "tensorrt")
        for precision in ("fp32", "fp16", "int8")
    ),
    Item("paired-128", f"{RUNTIME}:train_to_the_end", 7200, {"config": "jobs/presets/paired-128.yaml"}),
)
