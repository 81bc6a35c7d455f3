"""Triton kernels that page on the device: no host round trip, so a CUDA graph can hold them.

The state of a layer, by expert (`experts` entries each):
    slot_of    int32, NOT_RESIDENT (-1) where an expert has no slot
    row_of     int64, the row in which its bytes lie: its slot's in the arena, its own in the backing store, or of
               what the layer's last step found no slot for an overflow row, which may hold something else since
    last_used  int64, the layer's step that referenced it last
and int64 `fields`, see `count_kernels`. Residents fill the slots from the lowest up, so their number says which slots
are free. Victims are those of `ResidentSet` with LRU: the longest unused first, and of one step the higher id.

A row is an index into the arena in units of one expert. Where the experts of the backing store are rows too
(`SEGMENTS` = 0), those are reached by indices beyond the arena's end (host and device share one address space), so an
engine's kernel can read an expert where it lies. Otherwise an expert is copied in pieces, its segments: from addresses
`sources`, int64 [experts, SEGMENTS], to where `segments` says, int64 [SEGMENTS, 3]: words, the address in row 0, and
the bytes from one row to the next. All are multiples of 4 bytes. So are filled a planar arena, in which every tensor is
a region of its own, and any arena from a store whose experts are no rows.

What a step needs beyond the slots is copied to overflow rows, the arena's first, which the next layer's step may
overwrite: an engine's kernel reads many experts over the link at 40 GB/s, where these copies make 51. Only what they
have no room for is read where it lies.
"""

import triton
import triton.language as tl

from wisp.pager.copy_kernels import copy_share, spread_share
from wisp.pager.count_kernels import ARRIVED, CLOCK, MIRROR_EVERY, SLOTS, count_step, load_fields, note_routing
from wisp.pager.set_kernels import bits_of_ids, flags_of_bits, size_of

_NEVER = tl.constexpr(1 << 62)


@triton.jit(do_not_specialize=["count", "first_row", "direct_row"])  # one binary for all layers and graphs
def decide_and_gather(
    ids,
    count,
    choice_rows,
    slot_of,
    row_of,
    last_used,
    fields,
    mirror,
    ring,
    source,
    arena,
    segments,
    loaded,
    first_row,
    row_stride,
    direct_row,
    overflow_rows,
    num_experts,
    CHUNK: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROW_WORDS: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    HEAD_SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    RING_STEPS: tl.constexpr,
    RING_STRIDE: tl.constexpr,
):
    """Make the experts that `ids` names resident as far as there are slots, and copy their bytes.

    `source` is the store's rows, int32 [experts, ROW_WORDS], and `arena` [rows, ROW_WORDS] is int32 too; with SEGMENTS
    they are the `sources`, and nothing, for `segments` says all. Slot s of the layer is row first_row + s * row_stride.
    Missing experts, ascending, get the free slots, then victims' slots, then the `overflow_rows` from row 0 up. Those
    beyond stay in the store, where expert e is row direct_row + e: with SEGMENTS there are none.
    choice_rows[i] = row of expert ids[i].
    Of a row only the first HEAD_WORDS or HEAD_SEGMENTS are copied; `loaded` (int64 [1 + 2 * experts]) then says for
    `gather_tails` or `gather_tail_segments` how many experts were copied, and of each itself and the row of the arena.
    `mirror` (host memory) gets a copy of `fields`, for the host to read at any time: after a load, and every so often
    besides. A launch that writes to the host ends only when the write has crossed the link, about a microsecond.
    `ring` (`RoutingRing`, from this layer on) gets the set of needed experts.

    Every program plans from the old state and copies its share; the last of them to have read the state writes the
    new one: one launch does both, and no program waits for another.
    """
    LEAVES_TAILS: tl.constexpr = HEAD_WORDS < ROW_WORDS or HEAD_SEGMENTS < SEGMENTS
    program = tl.program_id(0)
    WORDS: tl.constexpr = (EXPERTS + 31) // 32
    expert = tl.arange(0, EXPERTS)
    slot = tl.load(slot_of + expert, mask=expert < num_experts, other=-1)
    before = load_fields(fields)
    step = tl.load(fields + CLOCK) + 1
    bits = tl.zeros([WORDS], tl.int32)
    lacking = tl.zeros([CHUNK], tl.int32)
    own_count = tl.where(program == 0, count, 0)
    for start in range(0, count, CHUNK):
        place = start + tl.arange(0, CHUNK)
        chosen = tl.load(ids + place, mask=place < count, other=-1).to(tl.int32)
        real = (chosen >= 0) & (chosen < num_experts)
        at = tl.gather(slot, tl.where(real, chosen, 0), 0)
        bits |= bits_of_ids(chosen, real, WORDS)
        lacking |= (real & (at < 0)).to(tl.int32)
        # as if nothing were missing, before that is known; of what is needed nobody reads `last_used`
        row = tl.where(real, first_row + at.to(tl.int64) * row_stride, -1)
        tl.store(choice_rows + place, row, mask=place < own_count)
        tl.store(last_used + chosen, tl.zeros([CHUNK], tl.int64) + step, mask=real & (place < own_count))
    if tl.max(lacking, axis=0) > 0:
        tl.debug_barrier()  # another thread may write the rows that this one has written
        _load(
            ids,
            count,
            choice_rows,
            slot,
            bits,
            before,
            slot_of,
            row_of,
            last_used,
            fields,
            mirror,
            ring,
            source,
            arena,
            segments,
            loaded,
            first_row,
            row_stride,
            direct_row,
            overflow_rows,
            num_experts,
            CHUNK,
            EXPERTS,
            ROW_WORDS,
            HEAD_WORDS,
            SEGMENTS,
            HEAD_SEGMENTS,
            BLOCK,
            RING_STEPS,
            RING_STRIDE,
        )
    elif program == 0:  # the others need none of what it writes
        note_routing(bits, step, ring, RING_STEPS, RING_STRIDE, WORDS)
        count_step(fields, mirror, step % MIRROR_EVERY == 0, before, size_of(bits), 0, 0, 0, 1)
        if LEAVES_TAILS:
            tl.store(loaded, tl.zeros([], tl.int64))
        # the overflow of the step before has gone
        home = -1 if SEGMENTS > 0 else direct_row + expert.to(tl.int64)
        rows = tl.where(slot >= 0, first_row + slot.to(tl.int64) * row_stride, home)
        tl.store(row_of + expert, rows, mask=expert < num_experts)


@triton.jit
def _load(
    ids,
    count,
    choice_rows,
    slot,
    bits,
    before,
    slot_of,
    row_of,
    last_used,
    fields,
    mirror,
    ring,
    source,
    arena,
    segments,
    loaded,
    first_row,
    row_stride,
    direct_row,
    overflow_rows,
    num_experts,
    CHUNK: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROW_WORDS: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    HEAD_SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    RING_STEPS: tl.constexpr,
    RING_STRIDE: tl.constexpr,
):
    """`decide_and_gather` where experts are missing: `slot` and `before` is what was, `bits` the set of needed ones."""
    LEAVES_TAILS: tl.constexpr = HEAD_WORDS < ROW_WORDS or HEAD_SEGMENTS < SEGMENTS
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    WORDS: tl.constexpr = (EXPERTS + 31) // 32
    expert = tl.arange(0, EXPERTS)
    real = expert < num_experts
    used = tl.load(last_used + expert, mask=real, other=0)
    slots = tl.load(fields + SLOTS).to(tl.int32)
    needed = flags_of_bits(bits, WORDS, EXPERTS)
    resident = slot >= 0
    missing = needed & (slot < 0)
    references = size_of(bits)
    faults = tl.sum(missing.to(tl.int32), axis=0)
    loads = tl.minimum(faults, slots - (references - faults))
    new = slot
    evictions = 0
    writes = program == 0  # where nothing is loaded, the others need none of what it writes
    if loads > 0:
        tl.debug_barrier()  # the whole program has read before it is counted as arrived
        writes = tl.atomic_add(fields + ARRIVED, 1) == programs - 1
        held = tl.sum(resident.to(tl.int32), axis=0)
        rank = tl.cumsum(missing.to(tl.int32), axis=0) - 1
        # what may go, in the order of going: the id is in the low bits, the higher first
        age = tl.where(resident & (needed == 0), used * EXPERTS + (EXPERTS - 1 - expert), _NEVER)
        for load in range(0, loads):
            comes = missing & (rank == load)
            target = held + load
            if target >= slots:
                goes = age == tl.min(age, axis=0)
                target = tl.max(tl.where(goes, slot, -1), axis=0)
                new = tl.where(goes, -1, new)
                age = tl.where(goes, _NEVER, age)
                evictions += 1
            new = tl.where(comes, target, new)
            source_row = tl.sum(tl.where(comes, expert, 0), axis=0).to(tl.int64)
            target_row = first_row + target.to(tl.int64) * row_stride
            turn = (program + load) % programs  # the first blocks go to another program each time
            if SEGMENTS > 0:
                spread_share(
                    source, segments, source_row, target_row, turn, programs, 0, HEAD_SEGMENTS, SEGMENTS, BLOCK
                )
            else:
                from_row, to_row = source + source_row * ROW_WORDS, arena + target_row * ROW_WORDS
                copy_share(from_row, to_row, turn, programs, HEAD_WORDS, BLOCK)
            if writes & LEAVES_TAILS:
                tl.store(loaded + 1 + 2 * load, source_row)
                tl.store(loaded + 2 + 2 * load, target_row)
    overflow = (tl.cumsum(missing.to(tl.int32), axis=0) - 1 - loads).to(tl.int64)
    extras = tl.minimum(faults - loads, overflow_rows)
    for extra in range(0, extras):
        comes = missing & (overflow == extra)
        source_row = tl.sum(tl.where(comes, expert, 0), axis=0).to(tl.int64)
        target_row = tl.zeros([], tl.int64) + extra
        turn = (program + loads + extra) % programs
        if SEGMENTS > 0:
            spread_share(source, segments, source_row, target_row, turn, programs, 0, HEAD_SEGMENTS, SEGMENTS, BLOCK)
        else:
            from_row, to_row = source + source_row * ROW_WORDS, arena + target_row * ROW_WORDS
            copy_share(from_row, to_row, turn, programs, HEAD_WORDS, BLOCK)
        if writes & LEAVES_TAILS:
            tl.store(loaded + 1 + 2 * (loads + extra), source_row)
            tl.store(loaded + 2 + 2 * (loads + extra), target_row)
    if writes:
        if LEAVES_TAILS:
            tl.store(loaded, (loads + extras).to(tl.int64))
        step = tl.load(fields + CLOCK) + 1
        home = -1 if SEGMENTS > 0 else direct_row + expert.to(tl.int64)
        passes = missing & (overflow >= 0) & (overflow < extras)
        row = tl.where(new >= 0, first_row + new.to(tl.int64) * row_stride, tl.where(passes, overflow, home))
        tl.store(slot_of + expert, new, mask=real)
        tl.store(row_of + expert, row, mask=real)
        for start in range(0, count, CHUNK):
            place = start + tl.arange(0, CHUNK)
            chosen = tl.load(ids + place, mask=place < count, other=-1).to(tl.int32)
            known = (chosen >= 0) & (chosen < num_experts)
            rows = tl.gather(row, tl.where(known, chosen, 0), 0)
            tl.store(choice_rows + place, tl.where(known, rows, -1), mask=place < count)
        note_routing(bits, step, ring, RING_STEPS, RING_STRIDE, WORDS)
        hosts_turn = (loads > 0) | (step % MIRROR_EVERY == 0)
        count_step(fields, mirror, hosts_turn, before, references, faults, evictions, faults, 1)
        tl.store(fields + ARRIVED, tl.zeros([], tl.int64))


@triton.jit(do_not_specialize=["count"])
def look_up(experts, rows, count, row_of, num_experts, BLOCK: tl.constexpr):
    """rows[i] = row_of[experts[i]]; -1 where experts[i] is no expert (an engine's padding)."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(experts + place, mask=place < count, other=-1).to(tl.int64)
    real = (expert >= 0) & (expert < num_experts)
    tl.store(rows + place, tl.load(row_of + expert, mask=real, other=-1), mask=place < count)
