"""Sets of a layer's experts as bits in registers, int32 [WORDS], for the device's kernels.

The order of the bits is that of `numpy.packbits`, as the ring of routing has them.
"""

import triton
import triton.language as tl


@triton.jit
def bits_of_ids(ids, real, WORDS: tl.constexpr):
    """The set of those of `ids` (int32, of any order and number) that are `real`."""
    bit = tl.where(real, tl.full(ids.shape, 1, tl.int32) << ((ids & 31) ^ 7), 0)
    by_word = tl.where((ids >> 5)[:, None] == tl.arange(0, WORDS)[None, :], bit[:, None], 0)
    return tl.reduce(by_word, 0, _either)


@triton.jit
def bits_of_flags(flags, WORDS: tl.constexpr, EXPERTS: tl.constexpr):
    """The set of experts whose flag is true."""
    bits = flags.to(tl.int32) << ((tl.arange(0, EXPERTS) & 31) ^ 7)
    return tl.sum(tl.reshape(bits, [WORDS, EXPERTS // WORDS]), axis=1)


@triton.jit
def flags_of_bits(bits, WORDS: tl.constexpr, EXPERTS: tl.constexpr):
    """Whether each expert is in the set."""
    place = tl.arange(0, EXPERTS // WORDS) ^ 7
    return tl.reshape((bits[:, None] >> place[None, :]) & 1, [EXPERTS]) > 0


@triton.jit
def size_of(bits):
    """How many experts are in the set."""
    bits -= (bits >> 1) & 0x55555555  # sums of 2 bits each, then of 4, of 8 and of all
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    bits += bits >> 8
    bits += bits >> 16
    return tl.sum(bits & 0x3F, axis=0)


@triton.jit
def _either(one, other):
    return one | other
