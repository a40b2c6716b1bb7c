"""Where the time of a step goes: step timer, its report, profiler traces."""
