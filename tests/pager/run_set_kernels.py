"""Random sets of experts through `set_kernels`, in the interpreter, beside numpy; fails at the first difference."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import triton_interpreter  # noqa: F401, I001
import numpy as np
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp.pager.set_kernels import bits_of_flags, bits_of_ids, flags_of_bits, size_of

PLACES = 32


@triton.jit
def describe(ids, bits, flags, size, same, num_experts, PLACES: tl.constexpr, EXPERTS: tl.constexpr):
    """The set of the ids that are experts: as bits, flags and size; and its bits again, made of the flags."""
    WORDS: tl.constexpr = (EXPERTS + 31) // 32
    chosen = tl.load(ids + tl.arange(0, PLACES))
    chosen_bits = bits_of_ids(chosen, (chosen >= 0) & (chosen < num_experts), WORDS)
    chosen_flags = flags_of_bits(chosen_bits, WORDS, EXPERTS)
    tl.store(bits + tl.arange(0, WORDS), chosen_bits)
    tl.store(flags + tl.arange(0, EXPERTS), chosen_flags.to(tl.int32))
    tl.store(size, size_of(chosen_bits))
    tl.store(same + tl.arange(0, WORDS), bits_of_flags(chosen_flags, WORDS, EXPERTS))


@given(num_experts=st.sampled_from([8, 12, 16, 32, 64, 100, 256]), data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
def check(num_experts: int, data) -> None:
    padded = triton.next_power_of_2(num_experts)
    ids = data.draw(st.lists(st.integers(-1, num_experts + 3), min_size=PLACES, max_size=PLACES))
    wanted = np.zeros(max(padded, 32), np.uint8)
    wanted[[expert for expert in ids if 0 <= expert < num_experts]] = 1
    bits, same = (torch.zeros(max(1, padded // 32), dtype=torch.int32) for _ in range(2))
    flags, size = torch.zeros(padded, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    describe[(1,)](torch.tensor(ids, dtype=torch.int32), bits, flags, size, same, num_experts, PLACES, padded)
    assert bits.numpy().tobytes() == np.packbits(wanted).tobytes()
    assert torch.equal(bits, same)
    assert flags.tolist() == wanted[:padded].tolist()
    assert size.item() == wanted.sum()


if __name__ == "__main__":
    check()
