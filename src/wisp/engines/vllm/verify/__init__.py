"""Is the output really the same? `compare` judges what `arm` ran, each arm in a process of its own.

`workload` says what is asked and when; `record` and `schedule` keep a running engine's schedule for a replay.
"""
