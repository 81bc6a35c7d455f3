"""The benchmark of shapes asks for what its models have, and keeps what it is told."""

import json

import pytest

NAMES = ("olmoe-1b-7b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "minimax-m2")


@pytest.fixture
def shapes(script):
    return script("shapes/shapes.py")


@pytest.fixture
def run(script):
    return script("shapes/run.py")


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_slots_of_a_shape_are_fewer_than_its_experts_and_hold_a_token(shapes, name, tiny):
    shape = shapes.SHAPES[name]
    config = shapes.configuration(name, shape.layers, tiny=tiny)
    assert config["num_experts_per_tok"] <= shape.expert_slots < shapes.experts(config)
    assert 0 < shapes.moe_layers(config) <= config["num_hidden_layers"]


def test_fewer_layers_and_tiny_ones_keep_the_experts(shapes):
    whole = shapes.configuration("deepseek-v2-lite", None, tiny=False)
    assert (whole["num_hidden_layers"], shapes.moe_layers(whole), shapes.experts(whole)) == (27, 26, 64)
    assert shapes.moe_layers(shapes.configuration("deepseek-v2-lite", 5, tiny=False)) == 4
    tiny = shapes.configuration("deepseek-v2-lite", None, tiny=True)
    assert (tiny["num_hidden_layers"], tiny["hidden_size"], shapes.experts(tiny)) == (2, 256, 64)


def test_results_are_kept_by_model(run, tmp_path):
    path = tmp_path / "results.json"
    decode = {"4": {"step_s": 0.5, "moved_gib_a_step": 2.0, "decode_tok_s": 8.0}}
    run.merge(path, {"model": "one", "expert_slots": 3, "decode": decode}, {"command": "first"})
    run.merge(path, {"model": "two", "refused": "no such format"}, {"command": "first"})
    run.merge(path, {"model": "one", "failed": "ended with 1"}, {"command": "second"})
    results = json.loads(path.read_text())
    assert results["two"] == {"command": "first", "refused": "no such format", "rows": [], "routing": None}
    assert results["one"] == {"command": "second", "failed": "ended with 1", "rows": [], "routing": None}


def test_what_is_moved_is_divided_by_the_whole_step(run):
    decode = {"4": {"step_s": 0.5, "moved_gib_a_step": 2.0, "decode_tok_s": 8.0}}
    (row,) = run.rows_of({"model": "one", "expert_slots": 3, "decode": decode})
    assert row["batch"] == 4
    assert row["moved_gb_s"] == pytest.approx(2 * 2**30 / 0.5 / 1e9)


def test_a_shape_without_a_report_is_a_failure_by_name(run):
    outcome = run.Outcome("olmoe-1b-7b", failed="ended with 1: no room")
    assert run.report_of(outcome) == {"model": "olmoe-1b-7b", "failed": "ended with 1: no room"}


def test_the_peak_of_gpu_memory_is_what_the_end_of_a_shape_sets_free(run):
    outcome = run.Outcome("one", {"model": "one", "free_gpu_bytes": 3 << 30}, free_gpu_bytes=10 << 30)
    assert run.report_of(outcome) == {"model": "one", "peak_gpu_gib": 7.0}


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "uint8", "float32"])
@pytest.mark.parametrize("shape", [(3, 4, 64), (4, 64), (256,)], ids=str)
def test_made_up_weights_are_finite_and_not_zero(script, kind, shape):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("checked where the weights are drawn on the host")
    weights = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=getattr(torch, kind))[..., ::2]
    script("shared/dummy_weights.py").fill(weights)
    values = weights.float()
    assert values.isfinite().all()
    assert values.abs().sum() > 0
    assert values.abs().max() <= (127 if kind == "uint8" else 2**-9)


def test_routing_without_a_gpu_is_the_trace(script):
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    if torch.cuda.is_available():
        pytest.skip("a GPU has a kernel for it")
    routing = script("shared/routing.py")
    trace = routing.generate(6, 2, 3, 8, 2, routing.Locality())
    strategy = routing.TraceRouting(trace)
    for step in range(1, 8):
        for layer in range(2):
            for_decode = step % 2 == 0
            tokens = 3 if for_decode else 5
            _, ids = strategy.route_tokens(torch.zeros(tokens, 4), torch.zeros(tokens, 8), 2)
            for token in range(tokens):
                when, stream = (step, token) if for_decode else (step + token, 0)
                assert ids[token].tolist() == trace[when % 6, layer, stream].tolist()
