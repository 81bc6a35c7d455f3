"""With a slot for every expert the engine gets what it would have had without wisp."""

import torch

from wisp.engines.vllm.kernels.all_resident import AllResidentKernel, resident_tensors
from wisp.pager.store import HostStore


def test_every_tensor_is_whole_and_contiguous():
    store = HostStore({"w13": torch.empty(6, 4, 3), "w2": torch.empty(6, 3, 2), "scale": torch.empty(6)})
    store.rows.random_(0, 256)
    tensors = resident_tensors(store, torch.device("cpu"))
    assert list(tensors) == ["w13", "w2", "scale"]
    for name, tensor in tensors.items():
        assert tensor.is_contiguous()
        assert tensor.view(torch.uint8).tolist() == store.tensors[name].contiguous().view(torch.uint8).tolist()


def test_the_engine_s_kernel_is_called_as_it_is():
    class Experts:
        def apply(self, **arguments: object) -> None:
            self.seen = arguments

    experts = Experts()
    AllResidentKernel(experts).run(w1=1, topk_ids=2)
    assert experts.seen == {"w1": 1, "topk_ids": 2}
