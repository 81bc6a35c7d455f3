"""The integrity check finds nothing in a healthy engine, and exactly what is damaged in another.

Run as a script, python test_integrity.py MODEL RESULTS.json, this is the engine that is damaged.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EXTENSION = "wisp.engines.vllm.integrity.IntegrityExtension"
SLOTS, LAYERS = 5, 3


@pytest.fixture(scope="module")
def engine(run_script, checkpoint):
    from workload import EAGER

    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return run_script("test_integrity.py", checkpoint("qwen3_moe"), **EAGER, **variables)


@pytest.mark.engine
def test_a_healthy_engine_has_no_wrong_slot(engine):
    for healthy in (engine["healthy"], engine["repaired"]):
        assert healthy == {"layers": LAYERS, "residents": LAYERS * SLOTS, "wrong": 0, "wrong_slots": []}


@pytest.mark.engine
def test_one_flipped_bit_is_found_in_its_slot(engine):
    (wrong,) = engine["flipped"]["wrong_slots"]
    assert engine["flipped"]["wrong"] == 1
    assert wrong == {**engine["damaged"], "reason": "its bytes are not the backing store's"}


@pytest.mark.engine
def test_a_kernel_that_is_sent_elsewhere_is_found(engine):
    (wrong,) = engine["misled"]["wrong_slots"]
    assert wrong.pop("reason") == f"the kernel is sent to -1 instead of {engine['damaged']['slot']}"
    assert wrong == engine["damaged"]


@pytest.fixture(params=["interleaved", "planar", "in files"])
def on_device(request, tmp_path):
    """Three slots in each of two layers of six experts, decided on the device; layer 1 holds the experts 4 and 0.

    Its last step needed expert 5, too, which found no slot, and so is in an overflow row, as another of layer 0 was.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from file_store import write_store

    from wisp.engines.vllm.in_graph_paging import InGraphPaging
    from wisp.pager.store import HostStore

    like = {"w13": torch.empty(6, 8, 16, dtype=torch.bfloat16), "w2": torch.empty(6, 16, 4, dtype=torch.bfloat16)}
    stores = [HostStore(like) for _ in range(2)]
    for seed, store in enumerate(stores):
        store.rows.random_(0, 256, generator=torch.Generator().manual_seed(seed))  # some are NaN
    if request.param == "in files":
        stores = [write_store(store, tmp_path / str(seed)) for seed, store in enumerate(stores)]
    paging = InGraphPaging(stores, 3, torch.device("cpu"), planar=request.param == "planar")
    for slot, expert in enumerate((4, 0)):
        row = paging.arena.shape.slot_row(1, slot)
        put(paging, 1, expert, row)
        paging.state.slot_of[1, expert], paging.state.row_of[1, expert] = slot, row
    put(paging, 1, 5, 0)
    paging.state.row_of[0, 3] = paging.state.row_of[1, 5] = 0
    return paging


def put(paging, layer: int, expert: int, row: int) -> None:
    for name, tensor in paging.arena.tensors.items():
        tensor[row] = paging.pagers[layer].store.tensors[name][expert]


def damage(paging, row: int, name: str) -> None:
    import torch

    paging.arena.tensors[name][row].view(torch.uint8)[3, 5] ^= 1


def found(paging) -> list[tuple[str, int, int | None, str]]:
    from wisp.engines.vllm.integrity import check, device_tables

    result = check(list(device_tables(["first", "second"], paging)))
    assert (result.layers, result.residents, result.wrong) == (2, 2, len(result.wrong_slots))
    return [(wrong.layer, wrong.expert, wrong.slot, wrong.reason) for wrong in result.wrong_slots]


def test_a_healthy_device_has_no_wrong_slot(on_device):
    """Nor is an overflow row a mistake that the next layer has used since."""
    assert found(on_device) == []


@pytest.mark.parametrize("name", ["w13", "w2"])
def test_one_flipped_bit_on_the_device_is_found(on_device, name):
    damage(on_device, on_device.arena.shape.slot_row(1, 1), name)
    assert found(on_device) == [("second", 0, 1, "its bytes are not the backing store's")]


@pytest.mark.parametrize("name", ["w13", "w2"])
def test_one_flipped_bit_in_an_overflow_row_of_the_last_layer_is_found(on_device, name):
    damage(on_device, 0, name)
    assert found(on_device) == [("second", 5, None, "its bytes in overflow row 0 are not the backing store's")]


def test_a_flipped_bit_where_nothing_is_said_to_be_is_no_mistake(on_device):
    damage(on_device, on_device.arena.shape.slot_row(1, 2), "w13")
    assert found(on_device) == []


def test_a_resident_that_is_sent_to_an_overflow_row_is_found(on_device):
    on_device.state.row_of[1, 4] = 0
    ((*where, reason),) = found(on_device)
    assert where == ["second", 4, 0]
    assert reason.startswith("the kernel is sent to 0 instead of")


def test_an_expert_that_is_sent_to_the_slot_of_another_is_found(on_device):
    on_device.state.row_of[1, 2] = on_device.state.row_of[1, 4]
    ((*where, reason),) = found(on_device)
    assert where == ["second", 2, None]
    assert reason.startswith("the kernel is sent to")


def test_two_experts_in_one_overflow_row_are_found_in_any_layer(on_device):
    on_device.state.row_of[0, 4] = 0
    ((*where, reason),) = found(on_device)
    assert (where, reason) == (["first", 4, None], "the kernel is sent to 0 instead of 1")


def test_a_slot_that_is_left_free_below_others_is_found(on_device):
    """The device counts residents to know the first free slot: that of one of them, here."""
    row = on_device.arena.shape.slot_row(1, 2)
    put(on_device, 1, 0, row)
    on_device.state.slot_of[1, 0], on_device.state.row_of[1, 0] = 2, row
    assert found(on_device) == [("second", 0, 2, "2 experts leave a slot below it free")]


def test_two_experts_in_one_slot_are_found(on_device):
    on_device.state.slot_of[1, 0] = 0
    reasons = [(expert, slot) for _, expert, slot, reason in found(on_device) if reason.startswith("2 experts")]
    assert reasons == [(0, 0), (4, 0)]


def test_a_slot_that_is_not_there_is_found(on_device):
    on_device.state.slot_of[1, 0] = 3
    assert ("second", 0, 3, "the layer has 3 slots") in found(on_device)


@pytest.mark.parametrize(("layer", "expert", "slot"), [("second", 4, 0), ("first", 4, None)])
def test_a_row_that_is_not_the_slots_or_the_stores_is_found(on_device, layer, expert, slot):
    on_device.state.row_of[["first", "second"].index(layer), expert] += 100
    ((*where, reason),) = found(on_device)
    assert where == [layer, expert, slot]
    assert reason.startswith("the kernel is sent to")


def test_a_flipped_bit_is_found_where_every_expert_has_a_slot():
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from wisp.engines.vllm.integrity import check, paged_tables
    from wisp.engines.vllm.kernels.all_resident import resident_tensors
    from wisp.engines.vllm.paging import LoadedLayer
    from wisp.pager.store import HostStore

    store = HostStore({"w": torch.empty(6, 8, 16, dtype=torch.bfloat16)})
    store.rows.random_(0, 256, generator=torch.Generator().manual_seed(0))
    tensors = resident_tensors(store, torch.device("cpu"))
    tensors["w"] = tensors["w"].clone()
    module = SimpleNamespace(store=store, expert_tensors=SimpleNamespace(tensors=tensors))
    worker = SimpleNamespace(draft=None, pagers={}, in_graph=None, layers=[LoadedLayer("only", store, lambda: module)])
    healthy = check(list(paged_tables(worker)))
    assert (healthy.layers, healthy.residents, healthy.wrong) == (1, 6, 0)
    tensors["w"].view(torch.uint8)[4, 0, 3] ^= 1
    (wrong,) = check(list(paged_tables(worker))).wrong_slots
    assert (wrong.layer, wrong.expert, wrong.slot) == ("only", 4, 4)


def test_an_engine_that_pages_nothing_is_refused():
    pytest.importorskip("vllm")
    from wisp.engines.vllm.integrity import IntegrityExtension
    from wisp.errors import UnsupportedError

    extension = IntegrityExtension()
    extension.vllm_config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={}))
    with pytest.raises(UnsupportedError, match="pages no experts"):
        extension.wisp_check_integrity()


def main(model: str, results: str) -> None:
    """Damage one engine in several ways, each undone before the next."""
    import torch
    from vllm import LLM, SamplingParams

    from wisp.engines.vllm import workers

    llm = LLM(
        model,
        additional_config={"wisp": {"expert_slots": SLOTS}},
        worker_extension_cls=EXTENSION,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=256,
        num_gpu_blocks_override=64,
        enforce_eager=True,
    )
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": list(range(100, 140))}], sampling, use_tqdm=False)
    worker = workers.of_engine(llm.llm_engine.vllm_config)
    assert worker is not None

    def ask() -> dict[str, Any]:
        (result,) = llm.collective_rpc("wisp_check_integrity")
        return dict(result)

    outcome: dict[str, Any] = {"healthy": ask()}
    pager = worker.pagers[1]
    expert, slot = list(pager.resident.slot_of.items())[-1]
    outcome["damaged"] = {"layer": worker.layers[1].name, "expert": expert, "slot": slot}
    weights = pager.pool.tensors["w2_weight"][slot].view(torch.int16)
    weights[3, 4] ^= 1
    outcome["flipped"] = ask()
    weights[3, 4] ^= 1
    pager._slot_of[expert] = -1
    outcome["misled"] = ask()
    pager._slot_of[expert] = slot
    outcome["repaired"] = ask()
    Path(results).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
