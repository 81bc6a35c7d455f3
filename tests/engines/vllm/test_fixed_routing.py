"""Fixed routing gives each step as many distinct and as many new experts as asked for, by torch and by the kernel."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

pytest.importorskip("vllm")

COMPARE = """
import torch
from wisp.engines.vllm.calibrate import fixed_routing
plain, kernel = (fixed_routing.FixedRouting(3, 16, 4, "cpu") for _ in range(2))
for width, shift in ((4, 0), (6, 2), (8, 4)):
    plain.use(width, shift)
    kernel.use(width, shift)
    for _ in range(9):
        weights, ids = plain.route_tokens(torch.zeros(3, 8), torch.zeros(3, 16), 4, torch.int32)
        found, by_kernel = torch.empty((3, 4)), torch.empty((3, 4), dtype=torch.int32)
        fixed_routing._route[(1,)](kernel._asked, by_kernel, found, 12, 3, 16, TOP_K=4, BLOCK=8)
        assert torch.equal(ids, by_kernel) and torch.equal(weights, found)
print("equal")
"""


@pytest.fixture
def routed():
    """`routed(tokens, width, shift, steps)`: the experts of each step in each of three layers."""
    import torch

    from wisp.engines.vllm.calibrate.fixed_routing import FixedRouting

    def run(tokens, width, shift, steps):
        routing = FixedRouting(3, 16, 4, "cpu")
        routing.use(width, shift)
        hidden, logits = torch.zeros(tokens, 8), torch.zeros(tokens, 16)
        calls = [routing.route_tokens(hidden, logits, 4)[1] for _ in range(3 * steps)]
        assert all(len(set(row.tolist())) == 4 for ids in calls for row in ids), "no token has an expert twice"
        return [[set(ids.reshape(-1).tolist()) for ids in calls[3 * s : 3 * s + 3]] for s in range(steps)]

    return run


@pytest.mark.parametrize(("tokens", "width", "distinct"), [(1, 4, 4), (1, 8, 4), (2, 8, 8), (5, 4, 4), (5, 16, 16)])
def test_a_step_has_as_many_experts_as_asked_for(routed, tokens, width, distinct):
    for layers in routed(tokens, width, 0, 2):
        assert [len(experts) for experts in layers] == [distinct] * 3


@pytest.mark.parametrize("shift", [0, 1, 2, 4])
def test_a_step_has_as_many_new_experts_as_asked_for(routed, shift):
    steps = routed(1, 4, shift, 6)
    for before, after in pairwise(steps):
        assert [len(new - old) for new, old in zip(after, before, strict=True)] == [shift] * 3


def test_the_kernel_routes_alike():
    done = subprocess.run(
        [sys.executable, "-c", COMPARE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout.endswith("equal\n"), done.stderr
