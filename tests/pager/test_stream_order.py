"""No copy of a stream, and none of the tails of a step, can meet a kernel in rows that both use, whoever comes first.

Streams and events are recorded in place of a device's, with all that is launched. Two accesses of a row, one of which
writes, have to be ordered by what the device is told, not by what it happened to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from wisp.errors import WispError  # noqa: E402
from wisp.pager.arena import ArenaShape  # noqa: E402
from wisp.pager.stream import ExpertStream  # noqa: E402
from wisp.pager.stream_layout import StreamShape  # noqa: E402
from wisp.pager.tails import TailCopies  # noqa: E402

Place = tuple[int, str]
"""A row, and the part of it."""
HEAD, TAIL = "head", "tail"


def whole(rows: dict[int, object]) -> dict[Place, object]:
    """What is in both parts of rows."""
    return {(row, part): content for row, content in rows.items() for part in (HEAD, TAIL)}


def only(wanted: str, places: dict[Place, object]) -> dict[Place, object]:
    return {place: content for place, content in places.items() if place[1] == wanted}


class Launches:
    """What a device was told: each launch with what it comes after, as the number of launches of each stream."""

    def __init__(self) -> None:
        self.after: dict[object, dict[object, int]] = {}
        self.current: object = Stream(self)
        self.written: dict[Place, tuple[object, int, object]] = {}
        self.read: dict[Place, list[tuple[object, int]]] = {}

    def join(self, stream: object, other: dict[object, int]) -> None:
        after = self.after[stream]
        for each, count in other.items():
            after[each] = max(after.get(each, 0), count)

    def launch(self, *, reads: dict[Place, object] | None = None, writes: dict[Place, object] | None = None) -> None:
        """One launch on the current stream; places, and what is or will be in them."""
        stream = self.current
        after = dict(self.after[stream])

        def ordered(place: tuple[object, int]) -> bool:
            return after.get(place[0], 0) >= place[1]

        self.after[stream][stream] = number = after.get(stream, 0) + 1
        for row, content in (reads or {}).items():
            writer, at, found = self.written[row]
            assert found == content, f"row {row} has {found} in place of {content}"
            assert ordered((writer, at)), f"row {row} is read while it may still be written"
            self.read.setdefault(row, []).append((stream, number))
        for row, content in (writes or {}).items():
            if row in self.written:
                assert ordered(self.written[row][:2]), f"row {row} is written twice at once"
            assert all(map(ordered, self.read.pop(row, []))), f"row {row} is written while it may still be read"
            self.written[row] = (stream, number, content)


class Stream:
    """In place of `torch.cuda.Stream`."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches
        launches.after[self] = {}

    def wait_event(self, event: dict[object, int]) -> None:
        self.launches.join(self, event)

    def wait_stream(self, other: "Stream") -> None:
        self.launches.join(self, self.launches.after[other])


class Model:
    """Layers of an arena that reaches no store, with what else uses the rows of its `stream` and of its `tails`."""

    def __init__(self, layers: int, experts: int, slots: int, shape: StreamShape) -> None:
        self.layers, self.experts = layers, experts
        self.shape = ArenaShape(layers, experts, max(shape.rows, experts))
        self.launches = Launches()
        nothing = torch.full((layers, experts), -1)
        self.state = SimpleNamespace(
            slot_of=nothing.int(), row_of=nothing.clone(), home_row_of=nothing, slots=slots, num_experts=experts
        )
        self.arena = SimpleNamespace(shape=self.shape, device=torch.device("cpu"), reaches=lambda _store: False)
        self.pagers = [self._pager(layer) for layer in range(layers)]
        self.stream = ExpertStream(self.pagers, self.state, shape)
        self.stream._on_gpu, self.stream._copies = True, Stream(self.launches)
        self.tails = TailCopies(1, torch.device("cpu"))
        self.tails._stream = Stream(self.launches)

    def _pager(self, layer: int) -> SimpleNamespace:
        def copy(experts: torch.Tensor, rows: torch.Tensor) -> None:
            pairs = zip(experts.tolist(), rows.tolist(), strict=True)
            self.launches.launch(writes=whole({row: (layer, expert) for expert, row in pairs}))

        return SimpleNamespace(arena=self.arena, store=None, copy=copy, touch=lambda *_, **__: None)

    def compute(self, layer: int, row_of: list[int]) -> set[int]:
        """Two products, before the second of which tails are waited for."""
        found = {row: (layer, expert) for expert, row in enumerate(row_of) if row >= 0}
        self.launches.launch(reads=only(HEAD, whole(found)))
        self.tails.wait()
        self.launches.launch(reads=only(TAIL, whole(found)))
        return {expert for _, expert in found.values()}

    def streamed(self, layers: int) -> None:
        """A prefill, or the first layers of one."""
        for layer in range(layers):
            waves = [self.compute(layer, row_of.tolist()) for row_of in self.stream.waves(layer, torch.zeros(1, 1))]
            assert sorted(expert for wave in waves for expert in wave) == list(range(self.experts))
            assert len(waves) == 1 or not self.stream.shape.whole

    def in_place(self, layer: int, needed: set[int]) -> None:
        """What a layer's kernel has `decide_and_gather` do, and what it computes then."""
        self.stream.check_is_idle(layer)
        table = self.state.slot_of[layer]
        row_of, writes = {}, {}
        held, overflow = int((table >= 0).sum()), 0
        missing = [expert for expert in sorted(needed) if table[expert] < 0]
        victims = [expert for expert in range(self.experts) if table[expert] >= 0 and expert not in needed]
        for expert in missing:
            if held < self.state.slots:
                slot, held = held, held + 1
            elif victims:
                slot = int(table[victims[0]])
                table[victims.pop(0)] = -1
            else:
                row_of[expert], overflow = overflow, overflow + 1
                writes[row_of[expert]] = (layer, expert)
                continue
            table[expert] = slot
            writes[self.shape.slot_row(layer, slot)] = (layer, expert)
        self.state.row_of[layer] = torch.where(table >= 0, self.shape.slot_row(layer, 0) + table * self.layers, -1)
        for expert, row in row_of.items():
            self.state.row_of[layer, expert] = row
        self.launches.launch(writes=only(HEAD, whole(writes)))
        self.tails.start(lambda: self.launches.launch(writes=only(TAIL, whole(writes))))
        self.compute(
            layer, [int(row) if expert in needed else -1 for expert, row in enumerate(self.state.row_of[layer])]
        )

    def resize(self, slots: int) -> None:
        """Evicts what is in the slots that go."""
        self.state.slots = slots
        self.state.slot_of[self.state.slot_of >= slots] = -1


@contextmanager
def recorded(launches: Launches) -> Iterator[None]:
    """Within, what is told to a device is told to these."""

    class Event(dict[object, int]):
        def record(self) -> None:
            self.update(launches.after[launches.current])

    @contextmanager
    def stream(used: Stream) -> Iterator[None]:
        launches.current, before = used, launches.current
        yield
        launches.current = before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "stream", stream)
        patch.setattr(torch.cuda, "current_stream", lambda: launches.current)
        yield


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Streams by groups and by whole layers, of which the staging rows hold one and more or less of the next."""
    layers, experts, size, whole = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
    )
    slots = draw(st.integers(1, experts))
    layer_groups = -(-(experts - slots) // size) if whole else 0
    groups = max(1, layer_groups + draw(st.integers(0, 4)))
    return Model(layers, experts, slots, StreamShape(size, groups, whole))


@settings(deadline=None)
@given(
    models(),
    st.lists(
        st.one_of(
            st.tuples(st.just("streamed"), st.none()),
            st.tuples(st.just("in place"), st.sets(st.integers(0, 11))),
            st.tuples(st.just("slots"), st.integers(1, 12)),
            st.tuples(st.just("in place too soon"), st.integers(1, 3)),
            st.tuples(st.just("streamed too soon"), st.integers(1, 3)),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_copies_and_kernels_that_share_rows_are_ordered(model: Model, steps: list[tuple[str, Any]]) -> None:
    shape = model.stream.shape
    least = max(1, model.experts - shape.rows) if shape.whole else 1
    with recorded(model.launches):
        for what, how in steps:
            if what == "streamed":
                model.streamed(model.layers)
            elif what == "in place":
                for layer in range(model.layers):
                    model.in_place(layer, {each for each in how if each < model.experts})
            elif what == "slots":
                model.resize(max(least, min(how, model.experts)))
            elif model.layers > 1:
                model.streamed(done := min(how, model.layers - 1))
                narrower = partial(model.in_place, done, set(range(model.experts)))
                with pytest.raises(WispError, match=f"where layer {done} was to stream"):
                    (narrower if what == "in place too soon" else partial(model.streamed, 1))()
