"""What KV reuse predicts for a pool of any size is what vLLM's own block pool of that size finds."""

import random

import numpy as np
import pytest

from wisp.allocator.kv_layout import NULL_BLOCKS
from wisp.kv_trace import KvEvent, KvTrace
from wisp.workingset import KvReuse

BLOCK = 16
LONGEST = 40 * BLOCK


class Server:
    """vLLM's KV cache manager with so many blocks, and no model: it answers turns with random tokens."""

    def __init__(self, blocks):
        torch = pytest.importorskip("torch")
        manager = pytest.importorskip("vllm.v1.core.kv_cache_manager")
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        self.manager = manager.KVCacheManager(config, LONGEST, BLOCK, BLOCK)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.turns = 0

    def turn(self, prompt, answer):
        """Tokens found in the prefix cache, and the names of all blocks that are full in the end."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        request = Request(str(self.turns), list(prompt), SamplingParams(), None, block_hasher=self.hasher)
        self.turns += 1
        found, computed, *_ = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, len(prompt) - computed, computed, found) is not None
        request.num_computed_tokens = len(prompt)
        for token in answer[:-1]:  # the last one is never computed
            request.append_output_token_ids(token)
            assert self.manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        names = [int.from_bytes(each[:8], "little") for each in request.block_hashes]
        self.manager.free(request)
        return computed, names[: request.num_computed_tokens // BLOCK]


def asked(seed):
    """Prompts and answers of conversations that go on at random, share instructions, and begin anew when long."""
    draw = random.Random(seed)
    shared = [draw.randrange(1000) for _ in range(40)]
    talks = [list(shared) for _ in range(draw.randrange(2, 6))]
    for _ in range(60):
        place = draw.randrange(len(talks))
        prompt = talks[place] + [draw.randrange(1000) for _ in range(draw.randrange(10, 60))]
        answer = [draw.randrange(1000) for _ in range(draw.randrange(5, 60))]
        yield prompt, answer
        talks[place] = prompt + answer if len(prompt + answer) < LONGEST - 130 else list(shared)


def recorded(turns):
    """The references as `wisp record` notes them in a pool in which nothing is lost."""
    server, known = Server(2000), set()
    blocks, steps, events = [], [], []
    step = 0
    for prompt, answer in turns:
        computed, names = server.turn(prompt, answer)
        hits, filled = computed // BLOCK, len(prompt) // BLOCK
        for place in [*reversed(range(hits)), *reversed(range(hits, filled)), *range(filled, len(names))]:
            event = KvEvent.HIT if place < hits else KvEvent.DUPLICATE if names[place] in known else KvEvent.INSERT
            blocks.append(names[place])
            events.append(event)
            steps.append(step + max(0, (place + 1) * BLOCK - len(prompt)))
        known |= set(names)
        step += len(answer) + 1
    as_arrays = (np.array(blocks, "uint64"), np.array(steps, "int64"), np.array(events, "uint8"))
    return KvTrace(*as_arrays, np.zeros(0, dtype=np.int64), BLOCK, 2000)


@pytest.mark.parametrize("seed", range(4))
def test_the_pool_finds_what_is_predicted(seed):
    turns = list(asked(seed))
    reuse = KvReuse.of(recorded(turns))
    assert reuse.returns > 300
    for blocks in range(45, 3 + int(reuse.depths.max()) + NULL_BLOCKS, 7):
        server = Server(blocks)
        hits = sum(server.turn(*turn)[0] for turn in turns) // BLOCK
        usable = blocks - NULL_BLOCKS  # of which the turn that runs may hold one that never becomes full
        assert reuse.kept(usable - 1) <= hits <= reuse.kept(usable)
