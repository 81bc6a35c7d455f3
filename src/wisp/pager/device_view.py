"""Memory that PyTorch has not allocated, or not on the device, as a tensor of the device."""

from collections.abc import Sequence

import torch

_TYPE_STRINGS = {torch.uint8: "|u1", torch.int32: "<i4", torch.int64: "<i8"}


class _Span:
    """Addresses as CUDA sees them, for `torch.as_tensor`."""

    def __init__(self, address: int, shape: Sequence[int], dtype: torch.dtype, owner: object) -> None:
        self.owner = owner  # torch keeps this object, and this object the memory
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": _TYPE_STRINGS[dtype],
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def device_view(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A contiguous page-locked int32 or int64 tensor, addressed by the device; on a CPU the tensor itself."""
    if device.type != "cuda":
        return tensor
    view = torch.as_tensor(_Span(tensor.data_ptr(), tensor.shape, tensor.dtype, tensor), device=device)
    assert view.data_ptr() == tensor.data_ptr(), "page-locked memory has one address on host and device"
    return view


def bytes_at(address: int, nbytes: int, device: torch.device, owner: object) -> torch.Tensor:
    """uint8 [nbytes] over memory of the device, of which the start is mapped; keeps `owner` for as long as it lives."""
    return torch.as_tensor(_Span(address, (nbytes,), torch.uint8, owner), device=device)
