"""What cannot be paged stops before anything is loaded, by name and with the remedy."""

import ast
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

vllm = pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs  # noqa: E402

from wisp.engines.vllm import checks, formats  # noqa: E402
from wisp.engines.vllm.budget.config import go_by_budget  # noqa: E402
from wisp.engines.vllm.kernels.base import KINDS  # noqa: E402
from wisp.engines.vllm.settings import WispSettings  # noqa: E402
from wisp.errors import ConfigError, UnsupportedError  # noqa: E402

pytestmark = pytest.mark.engine
WISP = {"additional_config": {"wisp": {"expert_slots": 5}}}


def make_config(model, **args):
    """The configuration that an engine of the CPU would start with; the plug-in checks it here."""
    common = {"dtype": "bfloat16", "max_model_len": 256, "skip_tokenizer_init": True, "enforce_eager": True}
    return EngineArgs(model=str(model), **{**common, **args}).create_engine_config()


@pytest.fixture(scope="module")
def moe(checkpoint):
    return checkpoint("qwen3_moe")


@pytest.fixture(scope="module")
def config(moe):
    return make_config(moe)


def test_a_sound_configuration_passes(moe):
    make_config(moe, **WISP)
    make_config(moe, **WISP, tensor_parallel_size=2)
    make_config(moe, **WISP, pipeline_parallel_size=2)
    make_config(moe, **WISP, enable_expert_parallel=True)  # of one rank


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expert_slots": 17}, "a layer of this model has 16 experts; set it to 16 or less"),
        ({"expert_slots": 3}, "a token of this model needs 4 experts at once.* set expert_slots to 4 or more"),
        ({"expert_slots": 0}, "expert_slots must be 1 or more"),
        ({"expert_slots": "many"}, "expert_slots must be a whole number"),
        ({"slots": 4}, "unknown wisp setting 'slots'"),
        ({"expert_slots": 5, "policy": "mru"}, "unknown replacement policy 'mru'"),
        ({"expert_slots": 5, "page_lock": "require"}, "nothing to page-lock"),
        ({"expert_slots": 5, "backing_store": "disk"}, "backing_store must be one of memory, checkpoint, not 'disk'"),
        (5, "must be an object"),
    ],
)
def test_wrong_settings_stop_the_start(moe, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(moe, additional_config={"wisp": settings})


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"load_format": "dummy"}, "--load-format dummy maps no files"),
        ({"load_format": "pt"}, "--load-format pt maps no files"),
        ({"safetensors_load_strategy": "eager"}, "--safetensors-load-strategy eager maps no files"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size cuts experts across the rows"),
    ],
)
def test_what_leaves_no_experts_in_files_stops_the_start(moe, args, reason):
    settings = {"wisp": {"expert_slots": 5, "backing_store": "checkpoint"}}
    make_config(moe, additional_config=settings)
    with pytest.raises(UnsupportedError, match=f"backing_store is set to checkpoint, but {reason}.*set it to memory"):
        make_config(moe, additional_config=settings, **args)


def test_quantised_experts_are_no_files_of_the_kernel_s(config, monkeypatch):
    settings = WispSettings(5, backing_store="checkpoint")
    checks.check_engine(config, settings)
    monkeypatch.setattr(config.model_config, "quantization", "fp8")
    with pytest.raises(UnsupportedError, match="fp8 experts are laid out anew for their kernel; set it to memory"):
        checks.check_engine(config, settings)


@pytest.fixture
def gpu(config, monkeypatch):
    """As if the configuration were a GPU's, with CUDA graphs."""
    gpu = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True, device_type="cuda", device_name="cuda")
    monkeypatch.setattr("vllm.platforms.current_platform", gpu)
    monkeypatch.setattr(config.model_config, "enforce_eager", False)


@pytest.mark.parametrize("quantization", [None, "fp8"])
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"policy": "lfru"}, "use policy lru with decide set to auto"),
        ({"page_lock": "off"}, "set it to auto"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_the_host_is_a_remedy_only_for_kernels_that_it_surely_feeds(
    config, monkeypatch, settings, told, quantization
):
    monkeypatch.setattr(config.model_config, "quantization", quantization)
    with pytest.raises((ConfigError, UnsupportedError)) as refused:
        checks.check_engine(config, WispSettings(5, **settings))
    assert told in str(refused.value)
    assert ("--enforce-eager" in str(refused.value)) == (quantization is None)


@pytest.mark.usefixtures("gpu")
def test_ranks_in_cuda_graphs_are_served_with_a_word_of_warning(config, monkeypatch):
    assert not list(checks.doubts(config))
    monkeypatch.setattr(config.parallel_config, "world_size", 2)
    assert ["add --enforce-eager" in doubt for doubt in checks.doubts(config)] == [True]
    monkeypatch.setattr(config.model_config, "enforce_eager", True)
    assert not list(checks.doubts(config))


def test_a_budget_is_not_divided_for_stages_of_a_pipeline(moe):
    with pytest.raises(ConfigError, match=r"with --pipeline-parallel-size .* set the split by hand with expert_slots"):
        make_config(moe, additional_config={"wisp": {"gpu_memory": "1GiB"}}, pipeline_parallel_size=2)


def test_a_kv_size_of_an_earlier_start_which_had_other_slots_is_refused(moe, monkeypatch):
    from vllm.v1.worker.startup_plan import compute_plan_fingerprint

    kept = {
        compute_plan_fingerprint(make_config(moe, additional_config={"wisp": {"expert_slots": slots}}), 0, 1)
        for slots in (5, 6)
    }
    assert len(kept) == 1, "otherwise there would be nothing to refuse"
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    make_config(moe)
    for settings in ({"expert_slots": 5}, {"gpu_memory": "1MiB"}):
        with pytest.raises(
            UnsupportedError, match="VLLM_ENABLE_STARTUP_PLAN takes the KV's size from an earlier start"
        ):
            make_config(moe, additional_config={"wisp": settings})


def test_a_model_without_experts_stops_the_start(checkpoint):
    dense = checkpoint("dense")
    make_config(dense)
    with pytest.raises(UnsupportedError, match="has no routed experts, so there is nothing to page"):
        make_config(dense, **WISP)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"dtype": "float32"}, "torch.float32 experts cannot be paged; add --dtype bfloat16"),
        ({"cpu_offload_gb": 1}, "--cpu-offload-gb moves the tensors that wisp pages; use one of the two"),
        ({"offload_group_size": 2, "offload_num_in_group": 1}, "--offload-group-size moves the tensors"),
        ({"enable_expert_parallel": True, "tensor_parallel_size": 2}, "CPU kernels do not know which experts a rank"),
        ({"data_parallel_size": 2}, "--data-parallel-size above 1 .* start one engine for each replica instead"),
        ({"enable_lora": True}, "--enable-lora does not work with paging yet"),
        ({"weight_transfer_config": {"backend": "ipc"}}, "--weight-transfer-config does not work with paging yet"),
        (
            {"speculative_config": {"method": "ngram_gpu", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            "speculative decoding by ngram_gpu was not tried with paging; use one of ngram, mtp",
        ),
        ({"load_format": "sharded_state"}, "--load-format sharded_state bypasses host memory; use one of auto"),
        ({"load_format": "fastsafetensors"}, "--load-format fastsafetensors bypasses host memory"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_feature_that_cannot_be_paged_stops_the_start(moe, args, message):
    make_config(moe, **args)
    with pytest.raises(UnsupportedError, match=message):
        make_config(moe, **WISP, **args)


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        ("parallel_config", "enable_eplb", True, "--enable-eplb does not work"),
        ("parallel_config", "enable_elastic_ep", True, "--enable-elastic-ep does not work"),
        ("parallel_config", "prefill_context_parallel_size", 2, "--prefill-context-parallel-size above 1 does not"),
        ("parallel_config", "enable_dbo", True, "--enable-dbo does not work"),
        ("parallel_config", "ubatch_size", 2, "--ubatch-size above 1 does not work"),
        ("model_config", "enable_sleep_mode", True, "--enable-sleep-mode does not work"),
        ("model_config", "enable_cumem_allocator", True, "--enable-cumem-allocator does not work"),
        ("parallel_config", "enable_fault_tolerance", True, "--enable-fault-tolerance does not work"),
        ("model_config", "quantization", "torchao", "torchao experts cannot be paged yet; serve a bf16"),
        ("model_config", "dtype", torch.float32, "float32 experts cannot be paged"),
    ],
)
def test_a_feature_that_a_cpu_does_not_have_is_refused_too(config, monkeypatch, part, field, value, message):
    checks.check_engine(config, WispSettings(5))
    monkeypatch.setattr(getattr(config, part), field, value)
    with pytest.raises(UnsupportedError, match=message):
        checks.check_engine(config, WispSettings(5))


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.7+cpu", "0.32.0rc2"])
def test_the_tested_versions_pass(version):
    checks.check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.32.0", "0.26.0+cu130", "dev", "", "0.3.2", "0.320.0"])
def test_another_version_is_refused_with_the_range(config, monkeypatch, version):
    with pytest.raises(UnsupportedError, match=r"from 0\.32\.0 to below 0\.33\.0, not .*; install vllm==0\.32\.0"):
        checks.check_version(version)
    monkeypatch.setattr(vllm, "__version__", version)
    with pytest.raises(UnsupportedError, match=r"from 0\.32\.0 to below 0\.33\.0"):
        checks.check_engine(config, WispSettings(5))


def make_method(name, kernel, bits=4):
    """As far as `format_of` looks at one."""
    experts_class = None if kernel == "none" else type(kernel, (), {})
    quant_config = SimpleNamespace(quant_type=SimpleNamespace(size_bits=bits), weight_bits=bits)
    return type(name, (), {"experts_cls": experts_class, "num_bits": bits, "quant_config": quant_config})()


@pytest.mark.parametrize("kernel", ["FlashInferExperts", "DeepGemmExperts", "BatchedTritonExperts", "none"])
def test_a_kernel_that_is_not_known_to_compute_from_slots_is_refused(kernel):
    with pytest.raises(UnsupportedError, match=f"the MoE kernel {kernel} .* for bf16 .*--moe-backend triton"):
        formats.format_of(make_method("UnquantizedFusedMoEMethod", kernel))
    with pytest.raises(UnsupportedError, match=r"for MXFP4 of gpt-oss experts .*add --moe-backend marlin "):
        formats.format_of(make_method("GptOssMxfp4MoEMethod", "OAITritonExperts"), unshown=True)
    with pytest.raises(UnsupportedError, match=r"for FP8 experts .*add --moe-backend marlin or triton"):
        formats.format_of(make_method("Fp8MoEMethod", kernel), unshown=True)


def test_a_format_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedError, match="experts of Fp8PerTensorOnlineMoEMethod cannot be paged yet"):
        formats.format_of(make_method("Fp8PerTensorOnlineMoEMethod", "TritonExperts"), unshown=True)


PAIRS = {(name, kernel): each for name, each in formats.FORMATS.items() for kernel in each.kernels}


@pytest.mark.parametrize(("name", "kernel"), PAIRS)
def test_a_pair_of_format_and_kernel_that_no_run_has_shown_has_to_be_asked_for(name, kernel):
    method, known = make_method(name, kernel), PAIRS[name, kernel]
    assert formats.format_of(method, unshown=True) is known
    if kernel in known.shown:
        assert formats.format_of(method) is known
        return
    instead = f"add {formats._flags(known.shown)}" if known.shown else "serve a checkpoint in bf16"
    message = rf"no run on a GPU has shown .*, computed by {kernel}, .*; {instead}, or set unshown_formats to true"
    with pytest.raises(UnsupportedError, match=message):
        formats.format_of(method)


@pytest.mark.parametrize("name", [name for name, each in formats.FORMATS.items() if each.bits_at])
@pytest.mark.parametrize("bits", [2, 8])
def test_a_width_of_weights_that_no_run_has_shown_has_to_be_asked_for(name, bits, monkeypatch):
    known = dataclasses.replace(formats.FORMATS[name], shown_8_bits=())
    monkeypatch.setitem(formats.FORMATS, name, known)
    method = make_method(name, known.kernels[0], bits)
    assert formats.format_of(method, unshown=True) is known
    with pytest.raises(UnsupportedError, match=rf"\(of {bits} bits\) experts.*; serve a checkpoint in bf16, or set"):
        formats.format_of(method)
    shown = dataclasses.replace(known, shown_8_bits=known.kernels)
    monkeypatch.setitem(formats.FORMATS, name, shown)
    if bits == 8:
        assert formats.format_of(method) is shown
    else:
        with pytest.raises(UnsupportedError, match="to be identical"):
            formats.format_of(method)


CHECKPOINTS_OF = {
    "UnquantizedFusedMoEMethod": ("bf16",),
    "Fp8MoEMethod": ("fp8_block", "fp8_tensor", "fp8_static"),
    "CompressedTensorsW8A8Fp8MoEMethod": ("ct_fp8_static", "ct_fp8_channel", "ct_fp8_block"),
    "ModelOptFp8MoEMethod": ("modelopt_fp8",),
    "CompressedTensorsW8A8Mxfp8MoEMethod": ("ct_mxfp8",),
    "ModelOptMxFp8FusedMoE": ("modelopt_mxfp8",),
    "CompressedTensorsW8A8Int8MoEMethod": ("ct_int8_channel",),
    "CompressedTensorsWNA16MoEMethod": ("ct_int4", "ct_int4_zeros", "ct_int4_channel"),
    "AutoGPTQMoEMethod": ("gptq", "gptq_channel", "auto_round"),
    "MoeWNA16Method": ("gptq_wna16",),
    "AutoAWQMoEMethod": ("awq",),
    "GptOssMxfp4MoEMethod": ("gpt_oss_mxfp4",),
    "Mxfp4MoEMethod": ("mxfp4",),
    "CompressedTensorsW4A4Mxfp4MoEMethod": ("ct_mxfp4",),
    "CompressedTensorsW4A4Nvfp4MoEMethod": ("ct_nvfp4", "ct_nvfp4_weights"),
    "ModelOptNvFp4FusedMoE": ("modelopt_nvfp4",),
}
"""vLLM's class of method -> those of benchmarks/formats that it loads."""
CHECKPOINTS_OF_8_BITS = {"CompressedTensorsWNA16MoEMethod": ("ct_int8",), "AutoGPTQMoEMethod": ("gptq_8_bits",)}


SHOWN = [
    (name, kernel, checkpoints)
    for of_method, field in ((CHECKPOINTS_OF, "shown"), (CHECKPOINTS_OF_8_BITS, "shown_8_bits"))
    for name, known in formats.FORMATS.items()
    for kernel in getattr(known, field)
    if kernel in formats.BACKENDS
    for checkpoints in [of_method[name]]
]


@pytest.mark.parametrize(("name", "kernel", "checkpoints"), SHOWN)
def test_what_is_said_to_be_shown_has_rows_in_the_record(name, kernel, checkpoints):
    """At least one that says `identical`, and none that does not."""
    record = json.loads((Path(__file__).parents[3] / "benchmarks" / "formats" / "results.json").read_text())
    verdicts = {
        row["verdict"]
        for row in record["rows"]
        if row["format"] in checkpoints and row["backend"] == formats.BACKENDS[kernel]
    }
    assert verdicts == {"identical"}


def test_the_methods_and_kernels_that_are_fed_exist_in_this_version():
    """Looked up in the source: some modules are for other devices, and end the process of who imports them."""
    layers = Path(vllm.__file__).parent / "model_executor" / "layers"
    files = [file for package in ("quantization", "fused_moe") for file in (layers / package).rglob("*.py")]
    found = {each.name for file in files for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)}
    assert set(formats.FORMATS) <= found
    assert set(KINDS) == {kernel for each in formats.FORMATS.values() for kernel in each.kernels} <= found


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, 24),
        ({"decoder_sparse_step": 2}, 12),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 5]}, 22),
        ({"first_k_dense_replace": 3}, 21),
        ({"num_dense_layers": 2}, 22),
        ({"expert_layer_period": 5}, 5),
        ({"moe_layer_freq": [0] + 23 * [1]}, 23),
        ({"layers_block_type": 8 * ["mamba", "moe", "attention"]}, 8),
        ({"layers_block_type": 12 * ["mamba", "attention"], "expert_layer_period": 2}, 12),
    ],
)
def test_only_layers_with_experts_are_asked_memory_for(keys, layers):
    from types import SimpleNamespace

    from wisp.engines.vllm.host_memory.moe_layers import moe_layers

    model = SimpleNamespace(hf_text_config=SimpleNamespace(**keys), get_layers_start_end_indices=lambda stage: stage)
    assert moe_layers(model, (0, 24)) == layers


@pytest.mark.parametrize(
    ("keys", "stage", "layers"),
    [
        ({}, (12, 24), 12),
        ({"first_k_dense_replace": 3}, (0, 8), 5),
        ({"first_k_dense_replace": 3}, (8, 16), 8),
        ({"decoder_sparse_step": 2}, (0, 7), 3),
        ({"interleave_moe_layer_step": 2}, (8, 16), 4),
        ({"layers_block_type": [*20 * ["mamba"], *4 * ["moe"]]}, (12, 22), 2),
        ({"moe_layer_freq": [*20 * [0], *4 * [1]]}, (0, 12), 1),
    ],
)
def test_a_stage_asks_memory_for_its_own_layers(keys, stage, layers):
    from types import SimpleNamespace

    from wisp.engines.vllm.host_memory.moe_layers import moe_layers

    model = SimpleNamespace(hf_text_config=SimpleNamespace(**keys), get_layers_start_end_indices=lambda stage: stage)
    assert moe_layers(model, stage) == layers


def test_slots_are_held_against_the_experts_of_one_rank():
    WispSettings(8).check_model(8, 4, waves_by_expert=True, ranks=2)
    with pytest.raises(
        ConfigError, match="a layer of this model has 8 experts on each of 2 ranks; set it to 8 or less"
    ):
        WispSettings(9).check_model(8, 4, waves_by_expert=True, ranks=2)


@pytest.mark.parametrize("slots", [None, 8])
@pytest.mark.parametrize(
    ("key", "value"), [("pipeline_parallel_size", 2), ("data_parallel_size", 2), ("enable_expert_parallel", True)]
)
def test_a_budget_for_ranks_that_hold_unlike_parts_is_refused(key, value, slots):
    class Given:
        gpu_memory_utilization, kv_cache_memory_bytes, num_gpu_blocks_override = 0.9, None, None

    alike = {"pipeline_parallel_size": 1, "data_parallel_size": 1, "enable_expert_parallel": False}
    config = SimpleNamespace(parallel_config=SimpleNamespace(**{**alike, key: value}))
    told = f"with --{key.replace('_', '-')} .* by hand with expert_slots and --kv-cache-memory-bytes"
    with pytest.raises(ConfigError, match=told):
        go_by_budget(Given(), config, WispSettings(slots, gpu_memory="1GiB"))
