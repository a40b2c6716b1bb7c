"""What to measure as soon as there is a GPU: `python -m fusionray.benchmarks.gpu_agenda --output DIR --minutes 10`.

An ordered list of items, the most telling first. Each runs in a process of its own, with a time limit, and its result
is written at once: what breaks or hangs costs no other item, and the next call goes on with what is left.
"""
