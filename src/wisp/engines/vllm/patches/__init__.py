"""One file for each symbol of vLLM that is patched: why, what it replaces, in which versions, what would end it."""
