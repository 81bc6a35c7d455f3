"""A range of addresses has memory under its start and nowhere else, whatever it is resized to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.pager.address_range import CHUNK_BYTES, SMALL_CHUNK_BYTES, AddressRange, NoRoomError

MIB = 1 << 20


class Space:
    """A device of so much memory, which fails where CUDA's driver would."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.reserved: dict[int, int] = {}
        self.mapped: dict[int, int] = {}

    def reserve(self, nbytes: int) -> int:
        assert nbytes % SMALL_CHUNK_BYTES == 0
        address = 1 << 40
        self.reserved[address] = nbytes
        return address

    def map(self, address: int, nbytes: int) -> None:
        if sum(self.mapped.values()) + nbytes > self.room_bytes:
            raise NoRoomError
        ((start, size),) = self.reserved.items()
        assert start <= address
        assert address + nbytes <= start + size
        assert all(address + nbytes <= other or other + length <= address for other, length in self.mapped.items())
        self.mapped[address] = nbytes

    def unmap(self, address: int, nbytes: int) -> None:
        assert self.mapped.pop(address) == nbytes

    def free(self, address: int, nbytes: int) -> None:
        assert not self.mapped
        assert self.reserved.pop(address) == nbytes


@given(
    reserved=st.integers(1, 900),
    room=st.integers(0, 900),
    sizes=st.lists(st.integers(0, 900), max_size=12),
)
def test_what_is_mapped_is_the_start_and_a_refusal_changes_nothing(reserved, room, sizes):
    space = Space(room * MIB)
    held = AddressRange(space, reserved * MIB)
    for size in sizes:
        size = min(size, reserved)
        before, kept = held.mapped_bytes, set(space.mapped)
        need = -(-size * MIB // held.chunk_bytes) * held.chunk_bytes
        if need > space.room_bytes and need > before:
            with pytest.raises(NoRoomError):
                held.resize(size * MIB)
            assert (held.mapped_bytes, set(space.mapped)) == (before, kept)
            continue
        held.resize(size * MIB)
        assert held.mapped_bytes == need == sum(space.mapped.values())
        assert sorted(space.mapped) == list(range(held.address, held.address + need, held.chunk_bytes))
        assert kept <= set(space.mapped) or need < before  # what stays is not mapped anew
    held.close()
    assert not space.mapped
    assert not space.reserved


def test_short_ranges_are_not_rounded_up_to_the_larger_piece():
    assert AddressRange(Space(0), 3 * MIB).chunk_bytes == SMALL_CHUNK_BYTES
    assert AddressRange(Space(0), 300 * MIB).chunk_bytes == CHUNK_BYTES
