"""Where the device's bytes go: what is fixed, and what expert slots and KV blocks divide between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wisp.allocator.kv_layout import KvLayout
from wisp.allocator.model_shape import ModelShape
from wisp.allocator.workload import Workload
from wisp.staging import planar_rows, staging_rows

ENGINE_OVERHEAD_BYTES = 1200 << 20
"""What CUDA's context, captured graphs, libraries and fragmentation take, without activations.

With 60 slots `benchmarks/iso_vram` peaked at 30.84 GiB: 25.31 of slots, 1.50 of KV, 2.87 of other weights, 0.14 of
staging and, by `activation_bytes`, 0.38 of activations leave 0.64 GiB. That peak left out CUDA's own context, about
0.5 GiB (not measured there): 1.14 GiB, stated as 1200 MiB. A server with larger graphs or a vision tower takes more.
"""

_ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class Budget:
    """Divides `total_bytes`; `pageable_bytes`, B of the paper, is what the fixed parts leave."""

    total_bytes: int
    slot_bytes: int
    """One slot in every MoE layer: a of the paper."""
    block_bytes: int
    """One KV block over all layers: b of the paper."""
    least_slots: int
    """top-k: below it a token's experts do not fit."""
    most_slots: int
    """Experts of a layer."""
    floor_blocks: int
    """The admission floor, kappa_min of the paper."""
    fixed: Mapping[str, int] = field(default_factory=dict)

    @property
    def pageable_bytes(self) -> int:
        """What slots and blocks divide; negative if not even the fixed parts fit."""
        return self.total_bytes - sum(self.fixed.values())

    @property
    def floor_bytes(self) -> int:
        """What has to fit: the fixed parts, the fewest slots, and the admission floor."""
        least = self.least_slots * self.slot_bytes + self.floor_blocks * self.block_bytes
        return sum(self.fixed.values()) + least

    def blocks_left(self, slots: int) -> int:
        """KV blocks beside so many slots: kappa(C); 0 if the slots alone do not fit."""
        return max(0, (self.pageable_bytes - slots * self.slot_bytes) // self.block_bytes)

    def slots_left(self, blocks: int) -> int:
        """The most slots beside so many blocks, at most one an expert; may be less than `least_slots`."""
        left = (self.pageable_bytes - blocks * self.block_bytes) // self.slot_bytes
        return max(0, min(self.most_slots, left))

    def admissible_slots(self) -> range:
        """The slot counts C with C >= top-k and kappa(C) >= kappa_min, ascending; empty if there is none."""
        return range(self.least_slots, self.slots_left(self.floor_blocks) + 1)


def device_budget(
    shape: ModelShape,
    layout: KvLayout,
    workload: Workload,
    total_bytes: int,
    *,
    overhead_bytes: int = ENGINE_OVERHEAD_BYTES,
    in_files: bool = False,
) -> Budget:
    """The budget of a model on a device of which the engine may take `total_bytes`; see `staging_bytes`."""
    fixed = {
        **{f"weights: {kind}": count for kind, count in shape.weight_bytes.items()},
        "engine overhead": overhead_bytes,
        "activations": activation_bytes(shape, workload),
        "staging": staging_bytes(shape, in_files=in_files),
    }
    return Budget(
        total_bytes=total_bytes,
        slot_bytes=shape.slot_bytes,
        block_bytes=layout.block_bytes,
        least_slots=shape.top_k,
        most_slots=shape.num_experts,
        floor_blocks=layout.floor_blocks(workload.context, workload.sequences),
        fixed=fixed,
    )


def staging_bytes(shape: ModelShape, *, in_files: bool = False) -> int:
    """What experts pass through on their way to the kernel, all layers one after the other.

    In a planar arena, and where the backing store is `in_files`, that is also what a step needs beyond the slots. Here
    it is what it needs beyond top-k of them: an engine that plans by itself starts with so many, and keeps these rows.
    One that is given more slots takes a row less for each. Padding that a plan does not know of (`WeightFormat.tiles`)
    can make a group of experts more of it or less; an engine that plans by itself has measured what it takes.
    """
    if shape.expert_format.is_planar:
        rows = planar_rows(shape.expert_bytes, experts=shape.num_experts, slots=shape.top_k)
    else:
        rows = staging_rows(shape.expert_bytes, overflow=shape.num_experts - shape.top_k if in_files else 0)
    return rows * shape.expert_bytes


def activation_bytes(shape: ModelShape, workload: Workload) -> int:
    """What a prefill step needs: for each choice of each token two workspaces of vLLM's MoE kernel and its output.

    The workspaces hold max(intermediate, hidden) and max(2 * intermediate, hidden) values (vLLM 0.32,
    `TritonExperts.workspace_shapes`); the outputs are kept until all experts of the layer have passed.
    """
    width, hidden = shape.expert_intermediate, shape.hidden
    values = max(width, hidden) + max(2 * width, hidden) + hidden
    return workload.chunk * shape.top_k * values * _ACTIVATION_BYTES
