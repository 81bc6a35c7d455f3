"""The tensors that make up the experts of one of vLLM's layers, and every place that holds one of them.

A layer's weights are read from the layer, but its scales, zero points, biases and alphas were taken from it when its
kernel was built. All of these have to be pointed at the slots: one that was missed would go on naming the experts that
were there at first, and the output would be wrong in silence.
"""

import functools
import types
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from wisp.errors import UnsupportedError

NOT_PAGED = ("e_score_correction_bias", "w13_input_scale", "w2_input_scale", "hash_indices_table")
"""Parameters that vLLM keeps on this layer and that do not belong to one expert."""

WEIGHTS = ("w13_weight", "w2_weight")
"""What every method's `apply` reads from the layer."""

_Identity = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class _Reference:
    """One place, apart from the layer's parameters, that holds a tensor."""

    holder: Any
    """None for a place that cannot be written to."""
    key: Any
    path: str

    def set(self, tensor: torch.Tensor) -> None:
        if isinstance(self.holder, MutableMapping | MutableSequence):
            self.holder[self.key] = tensor
        else:
            object.__setattr__(self.holder, self.key, tensor)  # frozen dataclasses too


class ExpertTensors:
    """`tensors[name]` is what the engine computes from now: [rows, ...], by the names of the layer's parameters.

    At first a row is an expert.
    """

    def __init__(self, layer: nn.Module, method: Any, num_experts: int) -> None:
        """Find them in a layer whose quantisation `method` has finished loading.

        Raises:
            UnsupportedError: something holds a tensor with a row for each expert, or a view of a parameter's memory in
                another shape, that is none of the parameters; or nothing that was searched holds a bias.
        """
        self._layer, self._what = layer, f"{type(method).__name__} with {_kernel_name(method)}"
        parameters = expert_parameters(layer, num_experts)
        names: dict[_Identity, list[str]] = {}
        for name, parameter in parameters.items():
            names.setdefault(_identity(parameter), []).append(name)  # some methods give a tensor two names
        self._memory = {parameter.untyped_storage().data_ptr() for parameter in parameters.values()}
        self._references: dict[str, list[_Reference]] = {}
        for reference, tensor in self._captured(method):
            self._take(reference, tensor, names, num_experts)
        for missing in set(WEIGHTS) - {name for group in names.values() for name in group}:
            raise UnsupportedError(f"{self._what} has no {missing} with a row for each expert; serve without wisp")
        self._names: dict[str, list[str]] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for group in names.values():
            if group[0] in self._references or set(group) & set(WEIGHTS):
                self._names[group[0]] = group
                self.tensors[group[0]] = parameters[group[0]].data
            else:  # needed to load the checkpoint only: whoever reads it after all shall notice
                self._check_dispensable(group)
                for name in group:
                    layer.register_parameter(name, None)
        for name, tensor in self.tensors.items():
            if not tensor[0].is_contiguous():
                raise UnsupportedError(
                    f"{self._what} lays {name} out with strides {tensor.stride()}; serve without wisp"
                )

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Point the layer, and all that had taken a tensor from it, at these: [rows, ...] each."""
        for name, aliases in self._names.items():
            for alias in aliases:
                if alias in self._layer._parameters:
                    delattr(self._layer, alias)
                self._layer.register_buffer(alias, tensors[name], persistent=False)
            for reference in self._references.get(name, ()):
                reference.set(tensors[name])
        self.tensors = {name: tensors[name] for name in self._names}

    def release(self) -> None:
        """Let go of the tensors that were found, on the device too; the layer computes nothing until `bind`."""
        self.bind({name: tensor.new_empty(0) for name, tensor in self.tensors.items()})

    def _captured(self, method: Any) -> Iterator[tuple[_Reference, torch.Tensor]]:
        yield from _walk(method, type(method).__name__, {id(self._layer)})
        for key, value in list(vars(self._layer).items()):
            if isinstance(value, torch.Tensor) and key not in NOT_PAGED:
                yield _Reference(self._layer, key, f"layer.{key}"), value

    def _take(
        self, reference: _Reference, tensor: torch.Tensor, names: Mapping[_Identity, list[str]], num_experts: int
    ) -> None:
        group = names.get(_identity(tensor))
        if group is not None and reference.holder is not None:
            self._references.setdefault(group[0], []).append(reference)
        elif group is not None or self._is_of_experts(tensor, num_experts):
            raise UnsupportedError(
                f"{self._what} holds a tensor {tuple(tensor.shape)} for its {num_experts} experts in {reference.path}, "
                f"which cannot be pointed at slots; serve without wisp, or with another --moe-backend"
            )

    def _check_dispensable(self, group: list[str]) -> None:
        """Refuse a bias that nobody seems to have taken: kernels compute with every bias, so somebody was not found."""
        for name in group:
            if name.endswith("_bias"):
                raise UnsupportedError(
                    f"{self._what} has {name} with a row for each expert, but what takes it was not found; serve "
                    f"without wisp, or with another --moe-backend"
                )

    def _is_of_experts(self, tensor: torch.Tensor, num_experts: int) -> bool:
        """Whether it has a row for each of them that is not the same for all, or lies where a parameter does."""
        has_rows = tensor.ndim > 0 and tensor.shape[0] == num_experts and not self._is_shared(tensor)
        return has_rows or (tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self._memory)

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether all experts have the same, so that it stays where it is."""
        kept = [value for name in NOT_PAGED if isinstance(value := getattr(self._layer, name, None), torch.Tensor)]
        return tensor.stride(0) == 0 or any(_identity(tensor) == _identity(value) for value in kept)


def expert_parameters(layer: nn.Module, num_experts: int) -> dict[str, nn.Parameter]:
    """The parameters with a row for each expert, by all the names that the layer has for them.

    Those of the first product come first: the others of an expert may still be on their way while it is computed.
    """
    return {
        name: parameter
        for name, parameter in sorted(layer._parameters.items(), key=lambda item: item[0].startswith("w2"))
        if parameter is not None
        and name not in NOT_PAGED
        and parameter.ndim > 0
        and parameter.shape[0] == num_experts
        and parameter.numel() > 0
    }


def _identity(tensor: torch.Tensor) -> _Identity:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _kernel_name(method: Any) -> str:
    return type(method.moe_kernel.fused_experts).__name__


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[_Reference, torch.Tensor]]:
    """The tensors that this object of vLLM's holds, directly or through other such objects, but for modules.

    It may be a module itself, as the method of unquantised experts is.
    """
    seen.add(id(value))
    for holder, key, item, name in _items(value):
        if isinstance(item, torch.Tensor):
            yield _Reference(holder, key, path + name), item
        elif id(item) not in seen and not isinstance(item, nn.Module | type):
            yield from _walk(item, path + name, seen)


def _items(value: Any) -> Iterator[tuple[Any, Any, Any, str]]:
    """(who holds it, None if it cannot be replaced; under which key; what; how to name it)."""
    if isinstance(value, Mapping):
        yield from ((value, key, item, f"[{key!r}]") for key, item in list(value.items()))
    elif isinstance(value, list):
        yield from ((value, place, item, f"[{place}]") for place, item in enumerate(value))
    elif isinstance(value, tuple):
        yield from ((None, place, item, f"[{place}]") for place, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((None, None, item, " (partial)") for item in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield from ((None, None, item, " (method)") for item in (value.__self__, value.__func__))
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                yield None, None, cell.cell_contents, " (closure)"
    elif is_dataclass(value) or type(value).__module__.startswith("vllm"):
        held = (
            vars(value)
            if hasattr(value, "__dict__")
            else {each.name: getattr(value, each.name) for each in fields(value)}
        )
        yield from ((value, key, item, f".{key}") for key, item in held.items())
