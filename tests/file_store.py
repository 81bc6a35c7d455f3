"""The experts of a store in memory, written to a file in pieces that begin anywhere."""

import random
from pathlib import Path

from wisp.pager.checkpoint_store import CheckpointStore, FilePlace
from wisp.pager.mapped_file import MappedFile
from wisp.pager.store import HostStore, Segment


def write_store(store: HostStore, path: Path, *, gap: int = 4, **how) -> CheckpointStore:
    """The same experts from a file: w13 in two halves, pieces in any order, between them multiples of `gap` bytes."""
    parts = [(part.name, part.start, part.nbytes) for part in store.layout.parts]
    segments = []
    for name, start, nbytes in parts:
        first = nbytes // 8 * 4 if name == "w13" else nbytes
        segments += [Segment(name, start, first)] + ([Segment(name, start + first, nbytes - first)] if first else [])
    segments = [segment for segment in segments if segment.nbytes]
    content, starts = bytearray(), {}
    pieces = [(expert, index) for expert in range(store.num_experts) for index in range(len(segments))]
    random.shuffle(pieces)
    for expert, index in pieces:
        content += random.randbytes(gap * random.randrange(1, 5))
        starts[expert, index] = len(content)
        segment = segments[index]
        content += store.rows[expert, segment.start : segment.start + segment.nbytes].numpy().tobytes()
    path.write_bytes(content)
    file = MappedFile.of(path)
    places = [
        [FilePlace(file, starts[expert, index]) for index in range(len(segments))]
        for expert in range(store.num_experts)
    ]
    return CheckpointStore(store.layout, segments, places, **how)
