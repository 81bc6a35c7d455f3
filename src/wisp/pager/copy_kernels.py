"""Triton kernels that copy experts from a backing store into an arena, and their parts.

A share is what one program of several copies of an expert: every so many blocks of int32 words. Rows, heads, tails and
`segments` are those of `device_kernels`.
"""

import triton
import triton.language as tl


@triton.jit
def copy_share(source, target, program, programs, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """This program's blocks of a row, or of its head or tail: int32 words."""
    word = tl.arange(0, BLOCK)
    for block in range(program, tl.cdiv(WORDS, BLOCK), programs):
        at = block * BLOCK + word
        if WORDS % BLOCK == 0:
            tl.store(target + at, tl.load(source + at))
        else:
            tl.store(target + at, tl.load(source + at, mask=at < WORDS), mask=at < WORDS)


@triton.jit
def _copy_segment(source, segments, index, row, program, programs, ALIGNED_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """This program's blocks of one tensor of an expert, whose length is a multiple of ALIGNED_WORDS."""
    at = tl.multiple_of(tl.load(segments + index * 3), 4)
    words = tl.multiple_of(tl.load(segments + index * 3 + 1), ALIGNED_WORDS)
    address = tl.load(segments + index * 3 + 2)
    region = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)  # of the integer it would be lost in the cast
    word = tl.arange(0, BLOCK)
    for block in range(program, tl.cdiv(words, BLOCK), programs):
        place = block * BLOCK + word
        values = tl.load(source + at + place, mask=place < words)
        tl.store(region + row * words + place, values, mask=place < words)


@triton.jit
def spread_share(
    source, segments, row, turn, programs, SEGMENTS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """This program's share of one expert: from its row of the store to row `row` of every region."""
    for index in range(0, WIDE):
        _copy_segment(source, segments, index, row, (turn + index) % programs, programs, 4, BLOCK)
    for index in range(WIDE, SEGMENTS):
        _copy_segment(source, segments, index, row, (turn + index) % programs, programs, 1, BLOCK)


@triton.jit
def gather_tails(loaded, store, arena, ROW_WORDS: tl.constexpr, HEAD_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy what `decide_and_gather` has left out: the words from HEAD_WORDS on of every expert in `loaded`."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    for load in range(0, tl.load(loaded).to(tl.int32)):
        source = store + tl.load(loaded + 1 + 2 * load) * ROW_WORDS + HEAD_WORDS
        target = arena + tl.load(loaded + 2 + 2 * load) * ROW_WORDS + HEAD_WORDS
        copy_share(source, target, (program + load) % programs, programs, ROW_WORDS - HEAD_WORDS, BLOCK)


@triton.jit(do_not_specialize=["count"])
def copy_experts(
    experts,
    rows,
    count,
    store,
    segments,
    ROW_WORDS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy each of `count` experts of the store, experts[i], to row rows[i] of a planar arena; int64 both."""
    programs = tl.num_programs(0)
    for place in range(0, count):
        source = store + tl.load(experts + place) * ROW_WORDS
        turn = (tl.program_id(0) + place) % programs
        spread_share(source, segments, tl.load(rows + place), turn, programs, SEGMENTS, WIDE, BLOCK)
