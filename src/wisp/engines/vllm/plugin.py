"""Entry point of the `vllm.general_plugins` group. It registers, and does nothing else.

vLLM calls it in the front end, the engine core and every worker, some of them more than once.
"""

_registered = False


def register() -> None:
    """Offer the paged layer to vLLM; without a `wisp` configuration stock vLLM is what runs.

    In a vLLM outside the tested range only the check of the configuration is there, which names the range.
    """
    global _registered
    if _registered:
        return
    import vllm

    from wisp.engines.vllm import front_end
    from wisp.engines.vllm.checks import is_tested
    from wisp.engines.vllm.patches import engine_args

    if not is_tested(vllm.__version__):
        engine_args.install(front_end.prepare)
        _registered = True
        return
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    from wisp.engines.vllm import workers
    from wisp.engines.vllm.layer import PagedRoutedExperts
    from wisp.engines.vllm.metering import meter_service
    from wisp.engines.vllm.patches import amx_permission, compile_cache, routed_experts, sleep, worker_start
    from wisp.engines.vllm.recording import recording_service

    engine_args.install(front_end.prepare)
    amx_permission.install()
    compile_cache.install()
    worker_start.install(workers.prepare)
    sleep.install()
    recording_service.install()
    meter_service.install()
    RoutedExperts.register_oot(PagedRoutedExperts)
    routed_experts.install(PagedRoutedExperts)
    _registered = True  # only now: a part that failed to load must not leave the configuration accepted
