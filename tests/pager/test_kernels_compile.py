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
from wisp.pager import device_kernels

capability = int(sys.argv[1])
state = {"slot_of": "*i32", "last_used": "*i64", "fields": "*i64", "mirror": "*i64", "num_experts": "i32"}
arguments = {
    "ids": "*i32", "count": "i32", "choice_rows": "*i64", "row_of": "*i64", "store": "*i32", "arena": "*i32",
    "first_row": "i32", "row_stride": "i32", "direct_row": "i64", "slots": "i32", **state,
}
touch = {"needed_flags": "*i32", "moved": "i32", "waves": "i32", **state}
look_up = {"experts": "*i32", "rows": "*i64", "count": "i32", "row_of": "*i64", "num_experts": "i32"}
large = {"CHUNK": 16, "EXPERTS": 128, "ROW_WORDS": 2359296, "BLOCK": 4096}
odd = {"CHUNK": 16, "EXPERTS": 64, "ROW_WORDS": 15361, "BLOCK": 4096}
ones = {"row_stride": 1, "count": 1, "CHUNK": 16, "EXPERTS": 8, "ROW_WORDS": 4096, "BLOCK": 4096}
cases = [
    ("decide_and_gather", arguments, large),
    ("decide_and_gather", arguments, odd),
    ("decide_and_gather", arguments, ones),
    ("touch", touch, {"EXPERTS": 128}),
    ("touch", touch, {"waves": 1, "EXPERTS": 128}),
    ("look_up", look_up, {"BLOCK": 1024}),
]
sizes = []
for name, signature, constants in cases:
    kernel = getattr(device_kernels, name)
    signature = {argument: signature.get(argument) for argument in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    sizes.append(len(compiled.asm["ptx"]))
print(json.dumps(sizes))
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability, tmp_path):
    script = tmp_path / "compile.py"  # Triton reads the source of what it compiles
    script.write_text(COMPILE)
    command = [sys.executable, script, str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert len(sizes) == 6
    assert min(sizes) > 1000
