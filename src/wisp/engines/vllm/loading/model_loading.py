"""What the layers of one model share on their way from the checkpoint to their stores."""

from dataclasses import dataclass, field
from typing import Any

from wisp.engines.vllm.host_memory.host_room import HostRoom
from wisp.engines.vllm.loading.page_locking import PageLocking
from wisp.pager.file_places import FileFinder
from wisp.pager.host_copies import HostCopies


@dataclass
class ModelLoading:
    """The loading of one worker's layers; it lives as long as they do, since the claim on host memory does."""

    host_room: HostRoom
    """Asked before a layer is made."""
    page_locking: PageLocking = field(default_factory=PageLocking)
    """Of stores in memory, while others are filled. Its thread ends with it."""
    host_copies: HostCopies = field(default_factory=HostCopies)
    """Under way into stores in memory."""
    file_finder: FileFinder = field(default_factory=FileFinder)
    """Where experts stay in files."""
    finished: list[Any] = field(default_factory=list)
    """Layers whose stores are full, while others are still to come."""

    def finish(self, layer: Any, layers: int) -> list[Any]:
        """Take a layer whose store is full; returns none before the last of so many layers, and all of them then."""
        self.finished.append(layer)
        if len(self.finished) < layers:
            return []
        finished, self.finished, self.file_finder = self.finished, [], FileFinder()
        return finished
