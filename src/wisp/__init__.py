"""WiSP: serve mixture-of-experts models that do not fit in fast memory."""

__version__ = "0.1.0"
