"""Where the host decides for the engine's CPU kernels: ids of experts become ids of slots."""

from typing import Any

import torch

from wisp.engines.vllm.kernels.base import Apply
from wisp.pager.pager import ExpertPager
from wisp.pager.waves import group_tokens


class SlotIdKernel:
    """Kernels that ignore `expert_map` and reduce over choices themselves (vLLM's CPU kernels).

    The ids of experts are replaced by the ids of their slots. A step that is wider than the slots runs in
    groups of whole tokens; the kernel treats rows independently, so that the bits stay the same.
    """

    def __init__(self, experts: Any, pager: ExpertPager) -> None:
        self._pager = pager
        self._apply: Apply = experts.apply

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`."""
        topk_ids: torch.Tensor = arguments["topk_ids"]
        resident = self._pager.resident
        groups = group_tokens(topk_ids.tolist(), resident.slots, resident.resident)
        for group in groups:
            for wave in self._pager.step(group.experts, single_wave=True):
                slots_of = self._pager.slots_of(wave)
                if len(groups) == 1:
                    self._apply(**{**arguments, "topk_ids": slots_of[topk_ids.long()].to(topk_ids.dtype)})
                else:
                    self._run_rows(torch.tensor(group.rows), slots_of, arguments)

    def _run_rows(self, rows: torch.Tensor, slots_of: torch.Tensor, arguments: dict[str, Any]) -> None:
        """Compute some tokens and write them to their places in the output."""
        topk_ids, output = arguments["topk_ids"], arguments["output"]
        part = torch.empty((len(rows), *output.shape[1:]), dtype=output.dtype, device=output.device)
        self._apply(
            **{
                **arguments,
                "output": part,
                "hidden_states": arguments["hidden_states"][rows],
                "topk_weights": arguments["topk_weights"][rows],
                "topk_ids": slots_of[topk_ids[rows].long()].to(topk_ids.dtype),
            }
        )
        output[rows] = part
