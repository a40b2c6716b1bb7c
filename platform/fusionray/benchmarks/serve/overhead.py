"""The overhead of the service over the work itself, for one client."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.clients import ServerAnswer
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.servers import start_service
from fusionray.errors import ServiceFailed

# The stage that is the sum of the others.
TOTAL = "total"
# The first requests fill caches and start threads.
WARM_UP_REQUESTS = 5


def measure_overhead(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Send requests one by one; after each, do the same work in this process for comparison."""
    answers: list[ServerAnswer] = []
    plain: list[float] = []
    with start_service("overhead", context.bundle.folder, context.form, context.logs, context.config.service) as server:
        client = server.client()
        context.check(server)
        for number in range(WARM_UP_REQUESTS + context.config.requests):
            answer = client.ask()
            started = time.perf_counter()
            context.plain.answer()
            if number >= WARM_UP_REQUESTS:
                answers.append(answer)
                plain.append(time.perf_counter() - started)
        client.close()
        tick()
    if not all(map(context.checker.is_right, answers)):
        raise ServiceFailed(f"the service gave wrong pictures; see {server.log}")
    beyond = [1000.0 * answer.seconds - sum_stages(answer.stages_ms) for answer in answers]
    seconds = [answer.seconds for answer in answers]
    stages = {name: statistics.median(answer.stages_ms[name] for answer in answers) for name in answers[0].stages_ms}
    stages.pop(TOTAL, None)
    return Findings(
        values={
            # Medians, not lists: values of single requests are not comparable rounds.
            "overhead_ms": [statistics.median(beyond)],
            "overhead_against_plain_ms": [1000.0 * (statistics.median(seconds) - statistics.median(plain))],
        },
        breakdowns={
            "one client": stages | {"beyond": statistics.median(beyond)},
        },
        notes=[
            f"one client, {len(answers)} requests: p50 {1000 * statistics.median(seconds):.1f} ms; alternating, "
            f"the same work in a plain process: {1000 * statistics.median(plain):.1f} ms"
        ],
    )


def sum_stages(stages_ms: dict[str, float]) -> float:
    """Sum the stages that are work."""
    return sum(milliseconds for stage, milliseconds in stages_ms.items() if stage != TOTAL)
