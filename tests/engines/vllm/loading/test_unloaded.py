"""What a loader copies into a parameter without memory is found in the file, or refused with the reason."""

import os
from pathlib import Path

import pytest
import torch
from file_store import write_store
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from wisp.engines.vllm.loading.unloaded import places_of, unload
from wisp.engines.vllm.paging import LoadedLayer, WorkerPaging
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import CheckpointError, UnsupportedError
from wisp.pager.checkpoint_store import CheckpointStore
from wisp.pager.file_places import FileFinder
from wisp.pager.store import HostStore, RowLayout

EXPERTS, INNER, HIDDEN = 3, 4, 6
DTYPE = torch.bfloat16


def make_layer() -> nn.Module:
    layer = nn.Module()
    for name, shape in (("w13", (EXPERTS, 2 * INNER, HIDDEN)), ("w2", (EXPERTS, HIDDEN, INNER))):
        layer.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=DTYPE), requires_grad=False))
    return layer


def make_file(folder: Path, seed: int = 0, *, rows: int = HIDDEN) -> dict[str, torch.Tensor]:
    """Experts one by one and all together, read as vLLM reads them: views into a mapping of the file."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"gate_up": (EXPERTS, 2 * INNER, HIDDEN), "down": (EXPERTS, HIDDEN, INNER), "odd": (3,)}
    for expert in range(EXPERTS):
        shapes |= {
            f"{expert}.gate": (INNER, HIDDEN),
            f"{expert}.up": (INNER, HIDDEN),
            f"{expert}.down": (rows, INNER),
        }
    path = folder / f"model {seed}.safetensors"
    save_file({name: torch.randn(shape, generator=random).to(DTYPE) for name, shape in shapes.items()}, path)
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in shapes}


def one_by_one(layer: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    for expert in range(EXPERTS):
        data = layer.w13.data[expert]
        data.narrow(0, 0, INNER).copy_(tensors[f"{expert}.gate"])
        data.narrow(0, INNER, INNER).copy_(tensors[f"{expert}.up"])
        layer.w2.data[expert].copy_(tensors[f"{expert}.down"])


def all_together(layer: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    layer.w13.data[:, :INNER].copy_(tensors["gate_up"].chunk(2, dim=1)[0])
    layer.w13.data[:, INNER:].copy_(tensors["gate_up"].chunk(2, dim=1)[1])
    layer.w2.data.copy_(tensors["down"])


def twice(layer: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    all_together(layer, tensors)
    one_by_one(layer, tensors)


def store_of(layer: nn.Module, load, tensors) -> CheckpointStore:
    layout = RowLayout({name: (tuple(each.shape[1:]), each.dtype) for name, each in layer.named_parameters()})
    notes = unload(layer, ["w13", "w2"], FileFinder())
    load(layer, tensors)
    segments, places = places_of("the layer", layout, notes)
    return CheckpointStore(layout, segments, places)


@given(load=st.sampled_from([one_by_one, all_together, twice]), seed=st.integers(0, 9))
def test_the_files_hold_what_would_have_been_loaded(tmp_path_factory, load, seed):
    tensors = make_file(tmp_path_factory.mktemp("file"), seed)
    usual = make_layer()
    load(usual, tensors)
    store = store_of(make_layer(), load, tensors)
    assert [segment.name for segment in store.segments] == ["w13", "w13", "w2"]
    for name, parameter in usual.named_parameters():
        for expert in range(EXPERTS):
            assert torch.equal(store.tensors[name][expert], parameter[expert])


def test_a_file_that_takes_the_addresses_of_another_is_told_from_it(tmp_path):
    finder = FileFinder()
    for seed in range(4):  # each is unmapped before the next is mapped, but for what the finder keeps
        tensors = make_file(tmp_path, seed)
        place = finder.find(tensors["down"])
        assert place.file.path == tmp_path / f"model {seed}.safetensors"
        assert (
            bytes(place.file.bytes[place.start :][:4].tolist())
            == tensors["down"].view(torch.uint8)[0, 0, :4].numpy().tobytes()
        )
        del tensors


def change_last(tensor: torch.Tensor) -> torch.Tensor:
    tensor[-1, -1] += 1
    return tensor


@pytest.mark.parametrize("told", [True, False])
def test_a_change_beyond_the_start_shows_whether_or_not_the_system_tells_of_pages(tmp_path, told):
    down = make_file(tmp_path, rows=90)["0.down"]
    finder = FileFinder() if told else FileFinder(pagemap=tmp_path / "no such list")
    assert finder.find(down)
    with pytest.raises(UnsupportedError, match="were changed on their way"):
        finder.find(change_last(down))


def test_a_neighbour_that_was_changed_in_the_same_page_does_no_harm(tmp_path):
    tensors = make_file(tmp_path)
    change_last(tensors["0.gate"])
    assert FileFinder().find(tensors["0.down"])


def test_the_files_are_looked_for_no_more_after_a_problem(tmp_path, monkeypatch):
    layer, tensors, looked = make_layer(), make_file(tmp_path), []
    notes = unload(layer, ["w13", "w2"], FileFinder())
    monkeypatch.setattr(FileFinder, "find", lambda _, tensor: looked.append(tensor))
    layer.w2.data.mul_(2)
    layer.w2.data.copy_(tensors["down"])
    assert notes["w2"].problem is not None
    assert not looked


REFUSALS = {
    "read into memory": (
        lambda layer, tensors: layer.w13.data.copy_(tensors["gate_up"].clone()),
        "not mapped from a file",
    ),
    "cast": (
        lambda layer, tensors: layer.w13.data.copy_(tensors["gate_up"].float()),
        "torch.float32 in the checkpoint",
    ),
    "transposed": (
        lambda layer, tensors: layer.w2.data[0].copy_(tensors["0.down"].view(INNER, HIDDEN).t()),
        "are transposed, or cut across",
    ),
    "padded": (
        lambda layer, tensors: layer.w2.data[0, :, :2].copy_(tensors["0.down"].view(-1)[: 2 * HIDDEN].view(HIDDEN, 2)),
        "are padded",
    ),
    "left out": (None, r"\(w2\) are not all in the files: 0 pieces of expert 2"),
    "scaled": (lambda layer, tensors: layer.w2.data.mul_(2), "are changed by mul_"),
    "replaced": (
        lambda layer, tensors: setattr(layer.w2, "data", layer.w2.data.flip(0)),
        "are changed by assignment",
    ),
    "assigned": (lambda layer, tensors: layer.w2.data.__setitem__(0, tensors["0.down"]), "are changed by __setitem__"),
    "broadcast": (lambda layer, tensors: layer.w2.data.copy_(tensors["0.down"]), "are put together"),
    "changed": (
        lambda layer, tensors: layer.w2.data[1].copy_(tensors["1.down"].mul_(2)),
        "were changed on their way from .*safetensors",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_the_files_do_not_hold_is_refused_with_the_reason(tmp_path, case):
    act, reason = REFUSALS[case]

    def load(layer, tensors):
        if case == "left out":
            for expert in range(EXPERTS - 1):
                layer.w2.data[expert].copy_(tensors[f"{expert}.down"])
            layer.w13.data.copy_(tensors["gate_up"])
        else:
            act(layer, tensors)
            one_by_one(layer, tensors)  # what comes after does not make it good

    with pytest.raises(UnsupportedError, match=f"{reason}.*set backing_store to memory") as caught:
        store_of(make_layer(), load, make_file(tmp_path))
    assert "backing_store is set to checkpoint, but the experts of the layer" in str(caught.value)


def test_a_file_that_was_replaced_since_it_was_mapped_is_refused(tmp_path):
    tensors = make_file(tmp_path)
    (tmp_path / "model 0.safetensors").unlink()
    make_file(tmp_path)
    with pytest.raises(UnsupportedError, match="not mapped from a file"):
        FileFinder().find(tensors["down"])


def test_parameters_without_memory_are_parameters_all_the_same():
    layer = make_layer()
    layer.w2.weight_loader = print
    unload(layer, ["w2"], FileFinder())
    assert isinstance(layer.w2, nn.Parameter)
    assert layer.w2.is_meta
    assert layer.w2.weight_loader is print
    assert dict(layer.named_parameters())["w2"].shape == (EXPERTS, HIDDEN, INNER)


def test_a_start_does_not_end_with_a_file_that_was_written_to_meanwhile(tmp_path):
    store = write_store(HostStore({"w2": torch.empty(3, 4, 4, dtype=DTYPE)}), tmp_path / "file")
    worker = WorkerPaging(
        WispSettings(2, backing_store="checkpoint"), None, None, layers=[LoadedLayer("layer", store, lambda: None)]
    )
    worker.forget_warm_up()
    os.truncate(tmp_path / "file", 8)
    with pytest.raises(CheckpointError, match="was written to while it is a backing store"):
        worker.forget_warm_up()
