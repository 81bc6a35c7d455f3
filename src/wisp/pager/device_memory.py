"""Device memory that grows and shrinks where it is."""

import logging
import weakref

import torch

from wisp.errors import DeviceMemoryError, UnsupportedError
from wisp.pager.address_range import AddressRange, CudaAddressSpace, NoRoomError
from wisp.pager.device_view import bytes_at
from wisp.units import format_bytes

logger = logging.getLogger(__name__)


class DeviceMemory:
    """`nbytes` of memory, from an address that is a multiple of `alignment`; it may become `most_bytes` in place.

    `bytes` is uint8 [most_bytes], or [nbytes] where it cannot be resized; of it the first `nbytes` may be used.
    """

    def __init__(self, nbytes: int, *, alignment: int, device: torch.device, most_bytes: int | None = None) -> None:
        """Without `most_bytes` the size is fixed. What is not used yet takes no memory.

        Raises:
            DeviceMemoryError: the device has too little.
        """
        self.nbytes, self.device = nbytes, device
        self._range: AddressRange | None = None
        if most_bytes is not None and device.type == "cuda" and nbytes > 0:
            self._range = _reserved(most_bytes + alignment, device)
            most_bytes = None if self._range is None else most_bytes
        self._resizable = most_bytes is not None
        span = nbytes if most_bytes is None else most_bytes
        if self._range is None:
            whole = torch.zeros(span + alignment, dtype=torch.uint8, device=device)  # lazily provided, on a CPU
            self._start = -whole.data_ptr() % alignment
        else:
            self._start = -self._range.address % alignment
            owner = _Owner(self._range, device)
            self._map(nbytes)
            whole = bytes_at(self._range.address, self._start + span, device, owner)
        self.bytes = whole[self._start : self._start + span]

    def resize(self, nbytes: int) -> None:
        """Use the first `nbytes` from now on. What is kept stays where it is; what is new holds anything.

        On a GPU it waits for the device.

        Raises:
            DeviceMemoryError: the device has too little; nothing has changed.
            UnsupportedError: this memory has a fixed size, or was made for less.
        """
        self.check_resize(nbytes)
        if self._range is not None:
            torch.cuda.synchronize(self.device)
            self._map(nbytes)
        self.nbytes = nbytes

    def check_resize(self, nbytes: int) -> None:
        """`UnsupportedError` if this memory has a fixed size, or was made for less."""
        if nbytes != self.nbytes and (nbytes > self.bytes.numel() or not self._resizable):
            most = f"made for {format_bytes(self.bytes.numel())} at most" if self._resizable else "of a fixed size"
            raise UnsupportedError(
                f"{format_bytes(self.nbytes)} of memory for slots cannot become {format_bytes(nbytes)} in place: it is "
                f"{most}; set expert_slots at the start instead"
            )

    def _map(self, nbytes: int) -> None:
        assert self._range is not None
        try:
            self._range.resize(self._start + nbytes)
        except NoRoomError:
            free_bytes, _ = torch.cuda.mem_get_info(self.device)
            more = self._start + nbytes - self._range.mapped_bytes
            raise DeviceMemoryError(more, free_bytes, "more memory for slots") from None


class _Owner:
    """Gives the range back once no tensor is left over it."""

    def __init__(self, held: AddressRange, device: torch.device) -> None:
        weakref.finalize(self, _give_back, held, device).atexit = False  # at the end of the process the driver does it


def _give_back(held: AddressRange, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # kernels may still be at it
    held.close()


def _reserved(nbytes: int, device: torch.device) -> AddressRange | None:
    try:
        return AddressRange(CudaAddressSpace(device), nbytes)
    except (ImportError, RuntimeError, NoRoomError) as error:
        logger.warning(
            "this device's memory cannot be mapped piece by piece (%s: %s), so the number of expert slots is fixed",
            type(error).__name__,
            error,
        )
        return None
