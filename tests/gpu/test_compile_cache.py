"""On a GPU, what the unpaged engine has compiled serves every paged one."""

import pytest

from wisp.engines.vllm.engine_process import engine_flags
from wisp.engines.vllm.verify.compare import judge, run_arm
from wisp.engines.vllm.verify.workload import Arrival, Workload

WORKLOAD = Workload(tuple(Arrival(step=0, max_tokens=16, token_ids=tuple(range(5, 5 + n))) for n in (3, 40, 300)))
SHARING = ("--kv-cache-memory-bytes", str(256 << 20), "--gpu-memory-utilization", "0.05", "--max-model-len", "1024")


@pytest.mark.timeout(600)
def test_a_paged_engine_runs_the_code_that_the_unpaged_one_has_compiled(checkpoint, tmp_path):
    def run(settings):
        variables = {"VLLM_CACHE_ROOT": str(tmp_path)}
        return run_arm(str(checkpoint("qwen3_moe")), settings, WORKLOAD, engine_flags(SHARING), variables=variables)

    def compiled():
        """Folders of code, and the file that holds all of it, which is written anew whenever the model is compiled."""
        cache = tmp_path / "torch_compile_cache"
        files = {path: path.stat().st_mtime_ns for path in cache.glob("torch_aot_compile/*/rank_*/model")}
        return {*cache.glob("*/*")}, files

    unpaged, code = run(None), compiled()
    assert all(code)
    for slots in (5, 9):
        assert judge(unpaged, run({"expert_slots": slots})).identical
        assert compiled() == code
