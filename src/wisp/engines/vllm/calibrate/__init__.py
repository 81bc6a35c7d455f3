"""Measures what a plan needs on this machine and model. Start at `run.calibration_run`, which starts `engine.py`."""
