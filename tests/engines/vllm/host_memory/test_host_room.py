"""The first layer of a model speaks for all, so that too little host memory is told before anything is loaded."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.config import KVTransferConfig

from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.host_memory import host_room
from wisp.engines.vllm.host_memory.host_room import HostRoom
from wisp.engines.vllm.host_memory.memory_claims import path_for
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import HostMemoryError
from wisp.pager.host_memory import HEADROOM_BYTES

GIB, LAYERS = 1 << 30, 6


def make_config(**more):
    return SimpleNamespace(
        instance_id="engine",
        model_config=SimpleNamespace(model="a/model"),
        parallel_config=SimpleNamespace(world_size=2),
        **{"kv_transfer_config": None, **more},
    )


CONFIG = make_config()


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setattr(counter_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(host_room, "moe_layers", lambda model, parallel: LAYERS)


def make(gib, *, is_draft=False, config=CONFIG):
    settings = WispSettings(4, host_memory=f"{gib + HEADROOM_BYTES / GIB}GiB")
    return HostRoom(config, settings, is_draft=is_draft)


def claimed_gib():
    return [claim / GIB for claim in json.loads(path_for("engine").read_text())["claims"].values()]


def test_the_first_layer_stands_for_all_and_the_others_for_themselves():
    room = make(100)
    for made in range(1, LAYERS + 1):
        room.claim_layer(10 * GIB)
        assert claimed_gib() == [60 if made == 1 else 10 * made]


def test_a_model_that_does_not_fit_is_refused_at_its_first_layer():
    with pytest.raises(HostMemoryError, match=r"the backing store of a/model needs 60GiB .* host_memory in the wisp"):
        make(59).claim_layer(10 * GIB)


def test_a_drafts_layers_are_claimed_beside_the_targets():
    target, draft = make(65), make(0, is_draft=True)
    target.claim_layer(10 * GIB)
    draft.claim_layer(5 * GIB)
    assert sorted(claimed_gib()) == [5, 60]
    with pytest.raises(HostMemoryError, match="on 2 ranks so far needs 70GiB"):
        draft.claim_layer(5 * GIB)


def test_kv_that_is_to_be_kept_in_host_memory_is_claimed_with_the_first_layer():
    """By each of two ranks the half of it; a draft adds none."""
    transfer = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both")
    transfer.kv_connector_extra_config["cpu_bytes_to_use"] = 16.0 * GIB
    config = make_config(kv_transfer_config=transfer)
    make(68, config=config).claim_layer(10 * GIB)
    with pytest.raises(
        HostMemoryError, match=r"the backing store of a/model, beside 8GiB of KV that is kept there, needs 68GiB"
    ):
        make(67, config=config).claim_layer(10 * GIB)
    make(10, config=config, is_draft=True).claim_layer(10 * GIB)


def test_the_size_of_offloaded_kv_is_where_it_is_looked_for(checkpoint):
    from vllm.engine.arg_utils import EngineArgs

    model = str(checkpoint("qwen3_moe"))
    config = EngineArgs(model=model, skip_tokenizer_init=True, kv_offloading_size=2).create_engine_config()
    assert HostRoom(config, WispSettings(4), is_draft=False)._offloaded_kv_bytes() == 2 * GIB
