"""The workflows of this benchmark: recorded ones, and synthetic ones whose parameters are stated."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.allocator import ModelShape, Question, Workload, model_shape
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.trace import RoutingTrace

BLOCK = 16
_NAMES_A_CONVERSATION = 1 << 32


def _qwen(layers: int, experts: int, top_k: int) -> ModelShape:
    """Layers of the sizes of Qwen3-30B-A3B: 9 MiB an expert, 2 KiB of KV a token."""
    return model_shape(
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "moe_intermediate_size": 768,
            "num_hidden_layers": layers,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "vocab_size": 151936,
            "torch_dtype": "bfloat16",
        }
    )


QWEN = _qwen(12, 128, 8)
"""Of synthetic workflows: a quarter of the layers of Qwen3-30B-A3B, so every byte and second is a quarter of its."""
DEMO_AT_SIZE = _qwen(6, 32, 4)
"""Of recorded workflows: as many layers and experts as the demo model, but of real size, since beside a kernel launch
every fault of 60 KiB would be cheap."""
STRETCH = 8
"""A recorded KV block, and a token of a recorded prompt, stand for so many: the demo model ends at 2,048 tokens."""


@dataclass(frozen=True)
class Locality:
    """How a stream refers to experts; the generator's law is that of `wisp.allocator.prior`."""

    stay: float
    """Probability that an expert of the step before is needed again."""
    zipf: float
    """Exponent of the popularity from which the others come."""
    topic: float
    """From 0, all conversations share a layer's order of popularity, to 1, each has its own."""
    recent_bonus: float = 0.9
    """Added to the logarithm of the popularity of an expert used two to eight steps ago."""


@dataclass(frozen=True)
class Talk:
    """How turns refer to KV; lengths are in tokens."""

    conversations: int
    """Open at a time."""
    first: int
    """A conversation's first prompt: instructions, a document."""
    shared: int
    """The part of it that all conversations have in common."""
    new: int
    """What a later turn adds to the prompt."""
    output: int
    """What a turn generates."""
    limit: int
    """A conversation that would grow beyond it ends, and another takes its place."""
    again: float = 0.0
    """Probability that a turn is of the same conversation as the one before."""
    skew: float = 0.0
    """Otherwise it is one's at random, by a Zipf law with this exponent; or, if negative, the next one's in turn."""


@dataclass(frozen=True)
class Phase:
    """Turns of one kind."""

    locality: Locality
    talk: Talk
    turns: int


@dataclass(frozen=True, eq=False)
class Workflow:
    """What one server is asked, and what it may take."""

    name: str
    family: str
    recording: Recording
    shape: ModelShape
    pageable_share: float
    """B, as a share of the bytes of all experts."""
    context: int
    sequences: int
    chunk: int
    parameters: dict[str, Any]

    @property
    def question(self) -> Question:
        """For the allocator: the budget is B and what is always resident."""
        workload = Workload.typical(self.context, self.sequences, chunk=self.chunk)
        bare = Question(self.shape, 0, workload)
        pageable = int(self.pageable_share * self.shape.num_experts * self.shape.slot_bytes)
        return Question(self.shape, pageable - bare.budget.pageable_bytes, workload)


def recorded(path: Path, share: float, context: int, sequences: int) -> Workflow:
    """A recorded run under one budget; `context` is in recorded tokens, like the trace."""
    bare = Recording.load(path)
    assert bare.kv is not None
    assert bare.prefill_tokens is not None
    recording = replace(
        bare,
        prefill_tokens=bare.prefill_tokens * STRETCH,
        routing=_stretched(bare.routing, bare.prefill_tokens),
        expert_bytes=DEMO_AT_SIZE.expert_bytes,
        kv=replace(bare.kv, block_tokens=bare.kv.block_tokens * STRETCH),
    )
    name, parameters = f"{path.stem} at {share:.0%}", {"trace": path.name, "stretch": STRETCH}
    return Workflow(name, "recorded", recording, DEMO_AT_SIZE, share, context * STRETCH, sequences, 2048, parameters)


def _stretched(routing: RoutingTrace, prefill: NDArray[np.int64]) -> RoutingTrace:
    """The same sets, with the tokens of longer prompts."""
    assert routing.tokens is not None
    fields = routing.fields()
    return RoutingTrace(fields["bits"], routing.num_experts, routing.tokens + prefill * (STRETCH - 1))


def synthetic(name: str, family: str, phases: list[Phase], share: float, chunk: int, seed: int) -> Workflow:
    """The workflow of these phases, one after the other; always the same for a seed."""
    rng = np.random.default_rng(seed)
    turns, kv = _converse(rng, phases)
    prefill = np.concatenate([[computed] + [0] * output for _, _, computed, output in turns]).astype(np.int64)
    tokens = np.where(prefill > 0, prefill, 1)
    routing = RoutingTrace(_route(rng, phases, turns), QWEN.num_experts, tokens)
    recording = Recording(routing, prefill, np.ones(len(tokens), dtype=np.int64), QWEN.expert_bytes, kv)
    context = max(phase.talk.limit for phase in phases)
    parameters = {"seed": seed, "phases": [asdict(phase) for phase in phases]}
    return Workflow(name, family, recording, QWEN, share, context, 1, chunk, parameters)


Turn = tuple[int, int, int, int]
"""Phase, conversation, tokens that its prompt computes with nothing lost, tokens that it generates."""


def _converse(rng: np.random.Generator, phases: list[Phase]) -> tuple[list[Turn], KvTrace]:
    """Turns, and their references as `wisp record` notes them in a pool without end.

    The recording begins in the middle: the first conversations of a phase have any length that they may have.
    """
    turns: list[Turn] = []
    blocks: list[NDArray[np.uint64]] = []
    steps: list[NDArray[np.int64]] = []
    events: list[NDArray[np.uint8]] = []
    step, started, known_prefix = 0, 0, 0

    def refer(talk: Talk, conversation: int, first: int, stop: int, at: int, event: KvEvent) -> None:
        places = np.arange(stop - 1, first - 1, -1)
        own = (conversation + 1) * _NAMES_A_CONVERSATION
        blocks.append(np.where(places < talk.shared // BLOCK, places, own + places).astype(np.uint64))
        steps.append(np.full(len(places), at, dtype=np.int64))
        events.append(np.full(len(places), event, dtype=np.uint8))

    for index, phase in enumerate(phases):
        talk = phase.talk
        names = list(range(started, started + talk.conversations))
        lengths = rng.integers(0, max(1, talk.limit - talk.first), talk.conversations).tolist()
        lengths = [talk.first + more if talk.new + talk.output <= more else 0 for more in lengths]
        started += talk.conversations
        weights = np.arange(1, talk.conversations + 1) ** -max(talk.skew, 0.0)
        place = 0
        for turn in range(phase.turns):
            if talk.skew < 0:
                place = turn % talk.conversations
            elif turn == 0 or rng.random() >= talk.again:
                place = int(rng.choice(talk.conversations, p=weights / weights.sum()))
            if lengths[place] + talk.new + talk.output > talk.limit:
                names[place], lengths[place] = started, 0
                started += 1
            length, conversation = lengths[place], names[place]
            found = length // BLOCK or min(known_prefix, talk.shared // BLOCK)
            prompt = length + talk.new if length else talk.first
            refer(talk, conversation, 0, found, step, KvEvent.HIT)
            refer(talk, conversation, found, prompt // BLOCK, step, KvEvent.INSERT)
            for block in range(prompt // BLOCK, (prompt + talk.output) // BLOCK):
                at = step + (block + 1) * BLOCK - prompt
                refer(talk, conversation, block, block + 1, at, KvEvent.INSERT)
            turns.append((index, place, prompt - found * BLOCK, talk.output))
            lengths[place] = prompt + talk.output
            known_prefix = max(known_prefix, talk.shared // BLOCK)
            step += 1 + talk.output
    every = (np.concatenate(blocks), np.concatenate(steps), np.concatenate(events))
    return turns, KvTrace(*every, np.zeros(0, dtype=np.int64), BLOCK, len(every[0]) + 2)


def _route(rng: np.random.Generator, phases: list[Phase], turns: list[Turn]) -> NDArray[np.uint8]:
    """Packed sets [layers, steps, experts / 8]; a prefill, which streams, gets an empty one."""
    layers, experts = QWEN.moe_layers, QWEN.num_experts
    common = rng.random((layers, experts))
    popularity: dict[tuple[int, int], NDArray[np.float64]] = {}
    last_used = np.full((layers, experts), -100)
    rows = []
    step = 0
    for index, place, _, output in turns:
        locality = phases[index].locality
        if (index, place) not in popularity:
            mixed = (1 - locality.topic) * common + locality.topic * rng.random((layers, experts))
            popularity[index, place] = -locality.zipf * np.log1p(np.argsort(np.argsort(mixed)))
        rows.append(np.zeros((layers, experts // 8), dtype=np.uint8))
        for _ in range(output):
            score = popularity[index, place] + rng.gumbel(size=(layers, experts))
            age = step - last_used
            score += locality.recent_bonus * ((age >= 2) & (age <= 8))
            stays = np.where(rng.random((layers, experts)) < locality.stay, np.inf, -np.inf)
            score = np.where(age == 1, stays, score)
            chosen = np.argpartition(-score, QWEN.top_k - 1)[:, : QWEN.top_k]
            np.put_along_axis(last_used, chosen, step, axis=1)
            rows.append(np.packbits(last_used == step, axis=1))
            step += 1
    return np.stack(rows, axis=1)
