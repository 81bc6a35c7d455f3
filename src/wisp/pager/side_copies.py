"""Copies from a device to the host beside its work: for another thread than the one that launches steps."""

import torch


class SideCopies:
    """On a GPU it copies in a CUDA stream of its own, which waits for no other and which none waits for.

    So what is read may be in the middle of a step. Not to be used while a graph is being captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy to the host, into page-locked memory, and wait for this copy alone."""
        if self._stream is None:
            target.copy_(source)
            return
        # a thread begins on the first device, and to set its stream anew would make a context there, of half a GiB
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()
