"""Quantised experts, and those with biases, are loaded, laid out by vLLM for its kernel, paged, and computed as before.

vLLM loads real (tiny) checkpoints. Its Triton kernels run in Triton's interpreter; Marlin, which exists for CUDA alone,
has a stand-in that mixes every byte of an expert, and so does what it does with blocks.
"""

import pytest

pytestmark = pytest.mark.engine

PLANAR = {
    "gptq:marlin": 4,
    "gpt_oss_mxfp4:marlin": 6,
    "ct_mxfp4:marlin": 4,
    "modelopt_nvfp4:marlin": 6,
    "fp8_tensor:triton": 4,
}
"""Format and backend -> how many tensors make up an expert. A case takes 10 to 20 seconds: these are the telling ones,
and `run_formats.py` takes any of `benchmarks/formats`, which runs all of them on a GPU."""
STRIDED = {"fp8_block:triton": 4, "ct_int8_channel:triton": 4, "ct_int4_zeros:triton": 6, "gpt_oss_bf16:triton": 4}
KERNELS = {
    "fp8_tensor:triton": "TritonExperts",
    "fp8_block:triton": "TritonExperts",
    "ct_int8_channel:triton": "TritonExperts",
    "ct_int4_zeros:triton": "TritonWNA16Experts",
    "gpt_oss_bf16:triton": "TritonExperts",
}
"""Where it is not Marlin's."""
SLOW = (
    "ct_mxfp4:marlin",
    "modelopt_nvfp4:marlin",
    "ct_int8_channel:triton",
    "ct_int4_zeros:triton",
    "gpt_oss_bf16:triton",
)
"""Left to `make test-all`: others of their kind run here, and each takes 10 to 20 seconds."""
CASES = [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in (*PLANAR, *STRIDED)]


@pytest.fixture(scope="module")
def results(run_script, request):
    left_out = SLOW if request.config.option.markexpr == "not slow" else ()
    return run_script("run_formats.py", ",".join(each for each in (*PLANAR, *STRIDED) if each not in left_out))


@pytest.mark.parametrize("case", CASES)
def test_every_step_gives_the_bits_of_the_unpaged_layer(results, case):
    found = results[case]
    assert "error" not in found, found["error"]
    for slots, of_slots in found["slots"].items():
        steps = of_slots["steps"]
        assert all(step["finite"] and step["layers_differ"] for step in steps), slots
        assert [step["tokens"] for step in steps if not step["identical"]] == [], slots
        assert all(calls == identical > 0 for calls, identical in of_slots["layerwise"]), slots
    assert found["slots"]["3"]["faults"] > 3
    if case.endswith("marlin"):
        assert (
            found["slots"]["3"]["faults"] > found["slots"]["15"]["faults"] >= 16 > found["slots"]["16"]["faults"] == 0
        )


@pytest.mark.parametrize("case", [each for each in CASES if each.values[0] in PLANAR and each.values[0] not in KERNELS])
def test_slots_that_grow_at_the_start_give_the_same_bits(results, case):
    """In place, and anew where every expert gets one and nothing is paged any more."""
    grown = results[case]["grown"]
    assert [(each["slots"], each["in_place"], each["paged"]) for each in grown] == [(8, True, True), (16, False, False)]
    assert all(each["identical"] and each["finite"] and each["layers_differ"] for each in grown)


@pytest.mark.parametrize("case", CASES)
def test_what_belongs_to_an_expert_is_paged_and_nothing_else(results, case):
    found = results[case]
    assert found["kernel"] == KERNELS.get(case, "MarlinExperts")
    for slots, of_slots in found["slots"].items():
        assert of_slots["planar"] == (None if slots == "16" else case in PLANAR)
        assert len(of_slots["tensors"]) == {**PLANAR, **STRIDED}[case], of_slots["tensors"]


@pytest.mark.parametrize(("name", "words"), [("gptq_8_bits", "GPTQ"), ("ct_int8", "compressed-tensors packed integer")])
def test_weights_of_8_bits_which_no_run_has_shown_are_refused(results, name, words):
    assert f"has shown paged {words} (of 8 bits) experts, computed by MarlinExperts" in results["8 bits"][name]
