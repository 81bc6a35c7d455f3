"""One file for each symbol of vLLM that is patched: why, what it replaces, in which versions, what would end it.

What several of them need lies in `once.py` and `worker_class.py`.
"""
