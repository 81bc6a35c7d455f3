"""The device's kernels compile for NVIDIA GPUs, which a machine without one can do; the interpreter takes more."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wisp.pager import copy_kernels, count_kernels, device_kernels

capability = int(sys.argv[1])
state = {"slot_of": "*i32", "last_used": "*i64", "fields": "*i64", "mirror": "*i64"}
state |= {"ring": "*i32", "num_experts": "i32"}
arguments = {
    "ids": "*i32", "count": "i32", "choice_rows": "*i64", "row_of": "*i64", "source": "*i32", "arena": "*i32",
    "segments": "*i64", "loaded": "*i64", "first_row": "i32", "row_stride": "i32", "direct_row": "i64",
    "overflow_rows": "i32", **state,
}
touch = {"needed_flags": "*i32", "moved": "i32", "waves": "i32", **state}
tails = {"loaded": "*i64", "store": "*i32", "arena": "*i32"}
copies = {"loaded": "*i64", "experts": "*i64", "rows": "*i64", "count": "i32", "sources": "*i64", "segments": "*i64"}
look_up = {"experts": "*i32", "rows": "*i64", "count": "i32", "row_of": "*i64", "num_experts": "i32"}
ring = {"RING_STEPS": 4096, "RING_STRIDE": 192}
interleaved = {**ring, "CHUNK": 16, "BLOCK": 4096, "segments": None, "SEGMENTS": 0, "HEAD_SEGMENTS": 0}
pieces = {**ring, "CHUNK": 16, "BLOCK": 4096, "arena": None, "direct_row": None, "ROW_WORDS": 0, "HEAD_WORDS": 0}
addressed = {**arguments, "source": "*i64"}
large = {"EXPERTS": 128, "ROW_WORDS": 2359296, "HEAD_WORDS": 1572864, **interleaved}
odd = {"EXPERTS": 64, "ROW_WORDS": 15361, "HEAD_WORDS": 15361, **interleaved}
ones = {"row_stride": 1, "EXPERTS": 8, "ROW_WORDS": 4096, "HEAD_WORDS": 4096, **interleaved}
cases = [
    ("decide_and_gather", arguments, large),
    ("decide_and_gather", arguments, odd),
    ("decide_and_gather", arguments, ones),
    ("decide_and_gather", addressed, {"EXPERTS": 128, "SEGMENTS": 12, "HEAD_SEGMENTS": 12, **pieces}),
    ("decide_and_gather", addressed, {"EXPERTS": 8, "SEGMENTS": 3, "HEAD_SEGMENTS": 2, **pieces}),
    ("decide_and_gather", addressed, {"EXPERTS": 8, "SEGMENTS": 1, "HEAD_SEGMENTS": 1, **pieces}),
    ("gather_tails", tails, {"ROW_WORDS": 2359296, "HEAD_WORDS": 1572864, "BLOCK": 4096}),
    ("gather_tail_segments", copies, {"SEGMENTS": 3, "HEAD_SEGMENTS": 2, "BLOCK": 4096}),
    ("copy_experts", copies, {"SEGMENTS": 12, "BLOCK": 4096}),
    ("touch", touch, {"EXPERTS": 128, **ring}),
    ("touch", touch, {"EXPERTS": 8, **ring}),
    ("look_up", look_up, {"BLOCK": 1024}),
]
modules = (copy_kernels, count_kernels, device_kernels)
sizes, whole = [], []
for name, signature, constants in cases:
    (kernel,) = [vars(module)[name] for module in modules if name in vars(module)]
    signature = {argument: signature.get(argument) for argument in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, (argument, type) in enumerate(signature.items())
        if type.startswith("*") and argument != "choice_rows"
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    sizes.append(len(compiled.asm["ptx"]))
    whole.append("ld.global.v4.b32" in compiled.asm["ptx"] and "st.global.v4.b32" in compiled.asm["ptx"])
print(json.dumps({"names": [name for name, *_ in cases], "sizes": sizes, "whole": whole}))
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability, tmp_path):
    script = tmp_path / "compile.py"  # Triton reads the source of what it compiles
    script.write_text(COMPILE)
    command = [sys.executable, script, str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert min(compiled["sizes"]) > 1000
    copying = ("decide_and_gather", "gather_tails", "gather_tail_segments", "copy_experts")
    quick = [whole for name, whole in zip(compiled["names"], compiled["whole"], strict=True) if name in copying]
    assert quick == [
        True,
        False,
        True,
        True,
        True,
        True,
        True,
        True,
        True,
    ]  # copied 16 bytes at a time, where they divide so


CHANGING = {
    "decide_and_gather": {"count", "first_row", "direct_row"},
    "look_up": {"count"},
    "copy_experts": {"count"},
    "touch": {"moved", "waves"},
}
"""Numbers that differ from layer to layer, or from step to step."""


@pytest.mark.parametrize("name", CHANGING)
def test_no_number_of_a_step_has_a_kernel_compiled_anew(name):
    from wisp.pager import copy_kernels, count_kernels, device_kernels

    (kernel,) = [vars(each)[name] for each in (device_kernels, copy_kernels, count_kernels) if name in vars(each)]
    assert {each.name for each in kernel.params if each.do_not_specialize} == CHANGING[name]
