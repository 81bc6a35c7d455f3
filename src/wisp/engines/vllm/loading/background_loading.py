"""What a layer's loader copies in host memory, copied by several threads while it reads on: vLLM copies by one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from wisp.pager.host_copies import HostCopies


class CopyInBackground(TorchFunctionMode):
    """Within, `target.copy_(source)` may be handed over, to be waited for before anything reads the target."""

    def __init__(self, copies: HostCopies) -> None:
        super().__init__()
        self._copies = copies

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Hand over a copy that can be; all else is as it was."""
        if func is torch.Tensor.copy_ and len(args) == 2 and not kwargs and self._copies.take(*args):
            return args[0]
        return func(*args, **(kwargs or {}))
