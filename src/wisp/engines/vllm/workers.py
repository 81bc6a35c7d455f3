"""The workers' paging in this process, by engine: where layers, meters and whoever asks find it.

vLLM builds layers one by one and hands them nothing of ours, so they meet here, by what vLLM registers an engine's
layers in. Not by the engine's instance id: a server's process gives its configuration another one after loading, and
copies of a configuration have their own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from wisp.engines.vllm import failure
from wisp.engines.vllm.budget.start_plan import kv_bytes_at_start
from wisp.engines.vllm.budget.start_room import requested_bytes
from wisp.engines.vllm.host_memory.host_room import HostRoom
from wisp.engines.vllm.loading.model_loading import ModelLoading
from wisp.engines.vllm.paging import WorkerPaging
from wisp.engines.vllm.patches import available_memory, loaded_model, requested_memory, warm_up, whole_weights
from wisp.engines.vllm.ranks import any_rank
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_workers: WeakValueDictionary[int, WorkerPaging] = WeakValueDictionary()
"""By the identity of the registry, which a worker's configuration keeps. The layers own their worker, so that a dropped
engine takes its backing stores along."""


def count() -> int:
    """Engines whose workers are in this process and not dropped yet."""
    return len(_workers)


def of_engine(vllm_config: "VllmConfig") -> WorkerPaging | None:
    """The one of this engine's target model; None if nothing of it is paged in this process."""
    return _workers.get(_key(vllm_config))


def for_new_layer(vllm_config: "VllmConfig", settings: WispSettings, num_experts: int) -> WorkerPaging:
    """The one that a layer of so many experts, which is being made, belongs to.

    vLLM loads the draft model once the target is loaded, under a changed copy of the target's configuration at times.
    """
    target = of_engine(vllm_config) or _add(vllm_config, settings)
    if target.counting.counters is None:  # nothing is loaded yet
        return target
    if target.draft is None:
        settings = settings.for_draft(num_experts)
        loading = ModelLoading(HostRoom(target.vllm_config, settings, is_draft=True))
        target.draft = WorkerPaging(settings, target.vllm_config, loading, is_draft=True)
    return target.draft


def _add(vllm_config: "VllmConfig", settings: WispSettings) -> WorkerPaging:
    loading = ModelLoading(HostRoom(vllm_config, settings, is_draft=False))
    worker = _workers[_key(vllm_config)] = WorkerPaging(settings, vllm_config, loading)
    warm_up.install(_forget_warm_up)
    available_memory.install(_available_memory)
    whole_weights.install(lambda vllm_worker: of_engine(vllm_worker.vllm_config) is not None)
    return worker


def _key(vllm_config: "VllmConfig") -> int:
    return id(vllm_config.compilation_config.static_forward_context)


def prepare(vllm_config: "VllmConfig") -> None:
    """Get a worker's process ready for its device and its model, if its engine is to be paged."""
    if WispSettings.of(vllm_config) is not None:
        requested_memory.install(requested_bytes)
        loaded_model.install(_check_loaded)


@failure.handed_over()
def _check_loaded(vllm_worker: Any) -> None:
    """Raise `UnsupportedError` if paging was asked for and no layer of the model, which is loaded, is paged."""
    config = vllm_worker.vllm_config
    if WispSettings.of(config) is None:
        return
    is_paged = of_engine(config) is not None
    if config.parallel_config.pipeline_parallel_size > 1:  # a stage may have no experts
        is_paged = any_rank(is_paged)
    if not is_paged:
        model = config.model_config
        raise UnsupportedError(
            f"{model.model} has {model.get_num_experts()} experts a layer, but vLLM's {model.architecture} computes "
            f"them past its layer of routed experts, so that nothing was paged; serve it without wisp"
        )


def publish_all(_worker: object = None) -> None:
    """Bring the counters of all engines whose workers are in this process up to date, waiting for their devices.

    `engine.collective_rpc(publish_all)` does so in the process of each rank.
    """
    for worker in list(_workers.values()):
        worker.publish(exactly=True)


def _available_memory(vllm_worker: Any, measure: Callable[[], int]) -> int:
    paging = of_engine(vllm_worker.vllm_config)
    if paging is None or paging.settings.gpu_memory is None:
        return measure()
    return kv_bytes_at_start(vllm_worker, paging, measure)


@failure.handed_over()
def _forget_warm_up(vllm_config: "VllmConfig") -> None:
    if (worker := of_engine(vllm_config)) is not None:
        worker.forget_warm_up()
