"""The workers' paging in this process, by engine: where layers, meters and whoever asks find it.

vLLM builds layers one by one and hands them nothing of ours, so they meet here, by the engine's instance id.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from wisp.engines.vllm.host_room import HostRoom
from wisp.engines.vllm.paging import WorkerPaging
from wisp.engines.vllm.patches import available_memory, warm_up
from wisp.engines.vllm.settings import WispSettings
from wisp.engines.vllm.start_plan import kv_bytes_at_start

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_workers: WeakValueDictionary[str, WorkerPaging] = WeakValueDictionary()
"""By instance id. The layers own theirs, so that a dropped engine takes its backing stores along."""


def count() -> int:
    """Engines whose workers are in this process and not dropped yet."""
    return len(_workers)


def of_engine(vllm_config: "VllmConfig", settings: WispSettings) -> WorkerPaging:
    """The one of this engine's target model, made at the first call."""
    worker = _workers.get(vllm_config.instance_id)
    if worker is None:
        room = HostRoom(vllm_config, settings, is_draft=False)
        worker = _workers[vllm_config.instance_id] = WorkerPaging(settings, vllm_config, room)
        warm_up.install(_forget_warm_up)
        available_memory.install(_available_memory)
    return worker


def of_instance(instance_id: str) -> WorkerPaging:
    """The one of the engine with this instance id; KeyError if it has none in this process."""
    return _workers[instance_id]


def for_new_layer(vllm_config: "VllmConfig", settings: WispSettings, num_experts: int) -> WorkerPaging:
    """The one that a layer of so many experts, which is being made, belongs to.

    vLLM loads the draft model once the target is loaded, under a changed copy of the target's configuration at times;
    the two copies share what layers are registered in.
    """
    registry = vllm_config.compilation_config.static_forward_context
    sharing = [w for w in _workers.values() if w.vllm_config.compilation_config.static_forward_context is registry]
    target = sharing[0] if sharing else of_engine(vllm_config, settings)
    if target.counters is None:  # nothing is loaded yet
        return target
    if target.draft is None:
        settings = settings.for_draft(num_experts)
        room = HostRoom(target.vllm_config, settings, is_draft=True)
        target.draft = WorkerPaging(settings, target.vllm_config, room, is_draft=True)
    return target.draft


def publish_all(_worker: object = None) -> None:
    """Bring the counters of all engines whose workers are in this process up to date, waiting for their devices.

    `engine.collective_rpc(publish_all)` does so in the process of each rank.
    """
    for worker in list(_workers.values()):
        worker.publish(exactly=True)


def _available_memory(vllm_worker: Any, measure: Callable[[], int]) -> int:
    paging = _workers.get(vllm_worker.vllm_config.instance_id)
    if paging is None or paging.settings.gpu_memory is None:
        return measure()
    return kv_bytes_at_start(vllm_worker, paging, measure)


def _forget_warm_up(instance_id: str) -> None:
    if (worker := _workers.get(instance_id)) is not None:
        worker.forget_warm_up()
