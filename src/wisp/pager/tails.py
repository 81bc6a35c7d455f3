"""The second half of what a step loads, copied while the engine computes with the first.

An expert's kernel is two matrix products, one after the other, and each needs its own weights. Where a row ends with
those of the second, they cross the link while the first product is computed: on a stream of their own, which a CUDA
graph keeps as a branch.
"""

from collections.abc import Callable

import torch


class TailCopies:
    """Of all layers of a worker, of which one at a time has tails under way."""

    def __init__(self, head_bytes: int, device: torch.device) -> None:
        """Rows are whole once their bytes from `head_bytes` on have been copied too."""
        self.head_bytes = head_bytes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._waiting: Callable[[], None] | None = None
        self._under_way = False

    def start(self, copy: Callable[[], None]) -> None:
        """Launch `copy` behind what the current stream has been given, and beside what it is given next.

        Without streams it is put off until `wait`, so that whoever reads a tail too early reads what was there before.
        """
        if self._stream is None:
            self._waiting = copy
            return
        self._under_way = True
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            copy()

    def wait(self) -> None:
        """Let the current stream wait for the copies, if there are any."""
        if self._stream is not None:
            if self._under_way:
                torch.cuda.current_stream().wait_stream(self._stream)
            self._under_way = False
        elif self._waiting is not None:
            self._waiting()
            self._waiting = None
