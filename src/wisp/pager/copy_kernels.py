"""Triton kernels that copy experts from a backing store into an arena, and their parts.

A share is what one program of several copies of an expert: every so many blocks of int32 words. Rows, heads, tails,
`sources` and `segments` are those of `device_kernels`.
"""

import triton
import triton.language as tl

LINE_WORDS = tl.constexpr(32)
"""What crosses the link at a time: 128 bytes from a multiple of 128."""


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
def _copy_lines(source, target, words, program, programs, ALIGNED_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """This program's blocks of `words` words, from one address to another: multiples of 4 bytes.

    Blocks begin where lines of the source do, and its words are read four at a time, since the source lies beyond the
    link. So up to three words are read on either side, which share 16 bytes with words of the piece. ALIGNED_WORDS = 4
    says that both addresses and the length are multiples of 16 bytes: then four words at a time are written too.
    """
    skip = ((source // 4) % LINE_WORDS).to(tl.int32)
    end = skip + words
    line = tl.multiple_of((source - skip * 4).to(tl.pointer_type(tl.int32)), 16)  # of an integer it would be lost
    start = tl.multiple_of((target - skip * 4).to(tl.pointer_type(tl.int32)), 4 * ALIGNED_WORDS)
    word = tl.arange(0, BLOCK)
    for block in range(program, tl.cdiv(end, BLOCK), programs):
        place = block * BLOCK + word
        whole = (place // 4 >= skip // 4) & (place // 4 <= (end - 1) // 4)
        values = tl.load(line + place, mask=whole)
        tl.store(start + place, values, mask=whole if ALIGNED_WORDS == 4 else (place >= skip) & (place < end))


@triton.jit
def spread_share(
    sources,
    segments,
    expert,
    row,
    turn,
    programs,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """This program's share of an expert's segments from FIRST to before LAST, from the store to arena row `row`."""
    for index in range(FIRST, LAST):
        words = tl.load(segments + index * 3).to(tl.int32)
        target = tl.load(segments + index * 3 + 1) + row * tl.load(segments + index * 3 + 2)
        source = tl.load(sources + expert * SEGMENTS + index)
        program = (turn + index) % programs
        if (source | target | (words * 4)) % 16 == 0:
            _copy_lines(source, target, words, program, programs, 4, BLOCK)
        else:
            _copy_lines(source, target, words, program, programs, 1, BLOCK)


@triton.jit
def gather_tails(loaded, store, arena, ROW_WORDS: tl.constexpr, HEAD_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy what `decide_and_gather` has left out: the words from HEAD_WORDS on of every expert in `loaded`."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    for load in range(0, tl.load(loaded).to(tl.int32)):
        source = store + tl.load(loaded + 1 + 2 * load) * ROW_WORDS + HEAD_WORDS
        target = arena + tl.load(loaded + 2 + 2 * load) * ROW_WORDS + HEAD_WORDS
        copy_share(source, target, (program + load) % programs, programs, ROW_WORDS - HEAD_WORDS, BLOCK)


@triton.jit
def gather_tail_segments(
    loaded, sources, segments, SEGMENTS: tl.constexpr, HEAD_SEGMENTS: tl.constexpr, BLOCK: tl.constexpr
):
    """As `gather_tails`, where experts are copied segment by segment: those from HEAD_SEGMENTS on."""
    programs = tl.num_programs(0)
    for load in range(0, tl.load(loaded).to(tl.int32)):
        expert = tl.load(loaded + 1 + 2 * load)
        row = tl.load(loaded + 2 + 2 * load)
        turn = (tl.program_id(0) + load) % programs
        spread_share(sources, segments, expert, row, turn, programs, HEAD_SEGMENTS, SEGMENTS, SEGMENTS, BLOCK)


@triton.jit(do_not_specialize=["count"])
def copy_experts(experts, rows, count, sources, segments, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy each of `count` experts of the store, experts[i], to row rows[i] of the arena; int64 both."""
    programs = tl.num_programs(0)
    for place in range(0, count):
        turn = (tl.program_id(0) + place) % programs
        expert = tl.load(experts + place)
        spread_share(sources, segments, expert, tl.load(rows + place), turn, programs, 0, SEGMENTS, SEGMENTS, BLOCK)
