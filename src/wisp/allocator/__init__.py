"""How one budget of device memory is divided between expert slots and KV blocks. Pure: no torch, no engine."""

from wisp.allocator.model_shape import ModelShape, model_shape, read_model_shape

__all__ = ["ModelShape", "model_shape", "read_model_shape"]
