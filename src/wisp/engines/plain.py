"""A mixture-of-experts layer in plain PyTorch, paged: the readable caller of everything above.

It computes what a layer with all its experts in memory computes, bit for bit, whatever the number of slots.
"""

import torch
from torch.nn.functional import linear, silu

from wisp.pager.counters import Counters, PoolFacts
from wisp.pager.pager import ExpertPager
from wisp.pager.pool import SlotPool
from wisp.pager.store import HostStore
from wisp.policies import make_policy
from wisp.resident import ResidentSet


class PagedMoE:
    """Gated experts (gate and up in `w13` [experts, 2 * inner, hidden], `w2` [experts, hidden, inner])."""

    def __init__(
        self, w13: torch.Tensor, w2: torch.Tensor, *, slots: int, policy: str = "lru", device: str = "cpu"
    ) -> None:
        """Copy the experts into a backing store and keep `slots` of them on `device`."""
        experts = {"w13": w13, "w2": w2}
        store = HostStore(experts, device=device)
        for name, tensor in experts.items():
            store.tensors[name].copy_(tensor)
        facts = PoolFacts(store.num_experts, slots, store.expert_bytes, kernel="plain", device=device)
        self.counters = Counters(facts, capacity=1)
        self.pager = ExpertPager(
            ResidentSet(store.num_experts, slots, make_policy(policy)),
            store,
            SlotPool(store, slots, device),
            self.counters,
            layer=self.counters.add_layer("moe", page_locked=store.page_locked),
        )

    def forward(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """Route `x` [tokens, hidden] to `topk_ids` [tokens, k], weigh by `topk_weights` [tokens, k] and sum.

        A step with more distinct experts than slots runs in waves. What each choice contributes is kept until all
        are there and summed once, in the order of the choices: the order of the waves leaves no trace in the bits.
        """
        choices = torch.empty((*topk_ids.shape, x.shape[1]), dtype=torch.float32, device=x.device)
        for wave in self.pager.step(topk_ids.flatten().tolist()):
            slots_of = self.pager.slots_of(wave)
            for expert in wave.experts:
                rows, ranks = torch.nonzero(topk_ids == expert, as_tuple=True)
                choices[rows, ranks] = self._expert(x[rows], int(slots_of[expert])).float()
        weighted = choices * topk_weights.unsqueeze(-1)
        total = weighted[:, 0]
        for rank in range(1, topk_ids.shape[1]):
            total = total + weighted[:, rank]
        return total.to(x.dtype)

    def _expert(self, x: torch.Tensor, slot: int) -> torch.Tensor:
        w13, w2 = self.pager.pool.tensors["w13"], self.pager.pool.tensors["w2"]
        gate, up = linear(x, w13[slot]).chunk(2, dim=-1)
        return linear(silu(gate) * up, w2[slot])
