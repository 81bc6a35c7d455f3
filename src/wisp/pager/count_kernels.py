"""What a layer counts on the device, its int64 `fields`, and how the kernels that page add a step to it.

`fields`: steps so far; totals of references, faults, evictions, experts read from the store and kernel waves; how many
programs of the running launch have read the state; and the slots of the layer, which the host may change between two
launches, so that a captured graph need not be captured again.
"""

import triton
import triton.language as tl

from wisp.pager.set_kernels import bits_of_flags

CLOCK = tl.constexpr(0)
REFERENCES = tl.constexpr(1)
FAULTS = tl.constexpr(2)
EVICTIONS = tl.constexpr(3)
MOVED = tl.constexpr(4)
WAVES = tl.constexpr(5)
ARRIVED = tl.constexpr(6)
SLOTS = tl.constexpr(7)
FIELDS = tl.constexpr(8)

MIRROR_EVERY = tl.constexpr(16)
"""Steps without a load after which the host's copy of `fields` is brought up to date."""


@triton.jit
def load_fields(fields):
    """All of them at once, int64 [FIELDS]."""
    return tl.load(fields + tl.arange(0, FIELDS))


@triton.jit
def count_step(fields, mirror, hosts_turn, before, references, faults, evictions, moved, waves):
    """Add one step to the totals, which were `before`, and show them to the host if it is its turn."""
    field = tl.arange(0, FIELDS)
    more = (field == CLOCK).to(tl.int64)
    more = tl.where(field == REFERENCES, references, more)
    more = tl.where(field == FAULTS, faults, more)
    more = tl.where(field == EVICTIONS, evictions, more)
    more = tl.where(field == MOVED, moved, more)
    more = tl.where(field == WAVES, waves, more)
    tl.store(fields + field, before + more, mask=field <= WAVES)
    if hosts_turn:
        tl.store(mirror + field, before + more, mask=field <= WAVES)


@triton.jit
def note_routing(bits, step, ring, STEPS: tl.constexpr, STRIDE: tl.constexpr, WORDS: tl.constexpr):
    """Write a step's set of needed experts, int32 [WORDS], to the step's place in the ring."""
    tl.store(ring + ((step - 1) & (STEPS - 1)) * STRIDE + tl.arange(0, WORDS), bits)


@triton.jit(do_not_specialize=["moved", "waves"])  # one binary for all steps: no prefill waits for a compiler
def touch(
    needed_flags,
    slot_of,
    last_used,
    fields,
    mirror,
    ring,
    num_experts,
    moved,
    waves,
    EXPERTS: tl.constexpr,
    RING_STEPS: tl.constexpr,
    RING_STRIDE: tl.constexpr,
):
    """Count a step that the host streams, and mark the experts that it uses (nonzero `needed_flags`, int32).

    `moved` is how many experts the host reads from the store for it, in `waves` waves. One program.
    """
    expert = tl.arange(0, EXPERTS)
    real = expert < num_experts
    slot = tl.load(slot_of + expert, mask=real, other=-1)
    needed = tl.load(needed_flags + expert, mask=real, other=0) > 0
    before = load_fields(fields)
    step = tl.load(fields + CLOCK) + 1
    tl.store(last_used + expert, tl.zeros([EXPERTS], tl.int64) + step, mask=needed)
    WORDS: tl.constexpr = (EXPERTS + 31) // 32
    note_routing(bits_of_flags(needed, WORDS, EXPERTS), step, ring, RING_STEPS, RING_STRIDE, WORDS)
    references = tl.sum(needed.to(tl.int32), axis=0)
    faults = tl.sum((needed & (slot < 0)).to(tl.int32), axis=0)
    count_step(fields, mirror, True, before, references, faults, 0, moved, waves)
