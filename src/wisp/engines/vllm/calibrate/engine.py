"""The process that calibrates: an engine with fixed routing, timed step by step.

    python -m wisp.engines.vllm.calibrate.engine REQUEST.json REPORT.json

No fault happens where none is to be counted: routing stays with experts that have slots, and the engine's own counters
say whether it did.
"""

import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wisp.allocator.measurement import DecodePoint, Measurements, PrefillPoint
from wisp.engines.vllm.calibrate.request import PROGRESS, CalibrationReport, CalibrationRequest
from wisp.engines.vllm.local_engine import counters_of, engine_args, paged_layers, start
from wisp.errors import ConfigError, UnsupportedError, WispError

WARM_STEPS, MEASURED_STEPS = 8, 40
SHORT_CONTEXT = 32
PREFILL_REPEATS = 3
_LONGEST_CONTEXT = 4096
_ROOM_TOKENS = WARM_STEPS + MEASURED_STEPS + 8


class Bench:
    """A running engine, and the routing that it follows."""

    def __init__(self, request: CalibrationRequest) -> None:
        import torch
        from vllm.platforms import current_platform

        from wisp.engines.vllm.calibrate import fixed_routing

        os.environ[fixed_routing.VARIABLE] = fixed_routing.NAME
        self.request = request
        self.device = torch.device(current_platform.device_type)
        self.routing = fixed_routing.FixedRouting(
            request.moe_layers, request.num_experts, request.top_k, current_platform.device_type
        ).register()
        settings = {**request.settings, "recordable": True}  # so that steps are counted with a slot for each expert too
        args = engine_args(request.model, request.engine_flags, settings)
        if current_platform.is_cpu() and not args.enforce_eager:
            raise UnsupportedError(
                "on a CPU vLLM compiles the routing into the model, so that it cannot be fixed; add --enforce-eager, "
                "and take the rates for an upper bound of a compiled engine's"
            )
        args.skip_tokenizer_init = True
        args.enable_prefix_caching = False
        self.engine: Any = start(args)
        config = self.engine.vllm_config
        if config.parallel_config.world_size > 1:
            raise UnsupportedError("an engine of several ranks cannot be calibrated yet; leave out the parallel sizes")
        self.layers = paged_layers(self.engine)
        if len(self.layers) != request.moe_layers:
            raise ConfigError(f"{len(self.layers)} layers are paged, not the {request.moe_layers} of the configuration")
        self.slots = int(self.layers[0].expert_slots)
        self.longest = int(config.model_config.max_model_len)
        self.chunk = int(config.scheduler_config.max_num_batched_tokens)
        self.sampling = config.model_config.get_diff_sampling_param()  # what a server uses where a client says nothing
        graphs = "eager" if config.model_config.enforce_eager else str(config.compilation_config.cudagraph_mode.name)
        where = "device" if self.layers[0].in_graph_pager is not None else "host"
        self.how = f"{self.device.type}, cudagraph_mode {graphs}, decided on the {where}, {config.model_config.dtype}"

    def counted(self) -> dict[str, float]:
        """What paging has counted so far, waiting for the device."""
        counters = counters_of(self.engine)
        assert counters is not None, "its layers are paged"
        return counters

    def decode(self, streams: int, context: int, width: int, shift: int) -> DecodePoint:
        """Steps of so many streams, from `context` tokens on, with `width` experts a layer, `shift` of them new."""
        self.routing.use(width, 0)
        names = [f"d{place}" for place in range(streams)]
        for name in names:
            self._add(name, context, _ROOM_TOKENS + 8)
        produced = dict.fromkeys(names, 0)
        while min(produced.values()) < 1:
            self._step(produced)
        self.routing.use(width, shift)
        seconds: list[float] = []
        before: dict[str, float] = {}
        last, first = time.perf_counter(), produced[names[0]]
        while produced[names[0]] < first + WARM_STEPS + MEASURED_STEPS:
            seen = produced[names[0]]
            self._step(produced)
            if produced[names[0]] == seen:  # an asynchronous step that has handed out nothing yet
                continue
            if produced[names[0]] == first + WARM_STEPS:
                before = self.counted()
                last = time.perf_counter()
            elif before:
                now = time.perf_counter()
                seconds.append(now - last)
                last = now
            else:
                last = time.perf_counter()
        after = self.counted()
        self.engine.abort_request(names)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        steps = (after["steps"] - before["steps"]) / len(self.layers)
        return DecodePoint(
            streams=streams,
            context=context + WARM_STEPS + MEASURED_STEPS // 2,
            experts=(after["references"] - before["references"]) / steps,
            faults=(after["faults"] - before["faults"]) / steps,
            seconds=statistics.median(seconds),
            steps=len(seconds),
            is_pinned=shift == 0,
        )

    def prefill(self, tokens: int) -> PrefillPoint:
        """One prompt that is one step; the least of some."""
        self.routing.use(min(self.slots, self.request.num_experts), 0)
        found = []
        for repeat in range(PREFILL_REPEATS):
            before = self.counted()["bytes_moved"]
            start = time.perf_counter()
            self._add(f"p{tokens}-{repeat}", tokens, 1)
            while self.engine.has_unfinished_requests():
                self.engine.step()
            seconds = time.perf_counter() - start
            found.append(PrefillPoint(tokens, seconds, self.counted()["bytes_moved"] - before))
        return min(found, key=lambda point: point.seconds)

    def _add(self, name: str, tokens: int, answers: int) -> None:
        from vllm import SamplingParams

        params = SamplingParams(**{**self.sampling, "max_tokens": answers}, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": [7] * tokens}, params)

    def _step(self, produced: dict[str, int]) -> None:
        for output in self.engine.step():
            produced[output.request_id] = len(output.outputs[0].token_ids)


def measure(bench: Bench) -> Measurements:
    """Everything, with a line of progress before each part."""
    from wisp.engines.vllm.calibrate.copies import copy_points, device_bytes_per_second
    from wisp.engines.vllm.calibrate.decide import decide_seconds

    request, top_k = bench.request, bench.request.top_k
    _tell("copies out of host memory")
    copies = tuple(copy_points(request.expert_bytes, bench.device))
    device_rate = device_bytes_per_second(bench.device)
    wide = min(bench.slots, 2 * top_k)
    long_context = min(bench.longest - _ROOM_TOKENS - 16, bench.chunk, _LONGEST_CONTEXT)
    plans = [(streams, SHORT_CONTEXT, top_k, 0) for streams in request.streams]
    plans += [(request.streams[-1], SHORT_CONTEXT, wide, 0)] if wide > top_k and request.streams[-1] > 1 else []
    if long_context > 2 * SHORT_CONTEXT:
        plans += [(streams, long_context, top_k, 0) for streams in (1, request.streams[-1])]
    if bench.slots + top_k <= request.num_experts:  # the oldest has left its slot when its turn comes again
        plans += [(1, SHORT_CONTEXT, top_k, shift) for shift in sorted({max(1, top_k // 2), top_k})]
        plans += [(request.streams[-1], SHORT_CONTEXT, wide, top_k)]
    decode = []
    for number, (streams, context, width, shift) in enumerate(plans, 1):
        _tell(f"decoding, {number} of {len(plans)}: {streams} streams, {context} tokens, {shift} new experts a layer")
        decode.append(bench.decode(streams, context, width, shift))
    chunks = sorted({min(chunk, bench.chunk, bench.longest - 1) for chunk in request.chunks})
    prefill = []
    for chunk in chunks:
        _tell(f"prefill of {chunk} tokens")
        prefill.append(bench.prefill(chunk))
    _tell("paging without misses")
    decide = decide_seconds(bench.layers[0], list(range(top_k)))
    return Measurements(tuple(decode), tuple(prefill), copies, device_rate, decide, bench.slots)


def _tell(what: str) -> None:
    print(f"{PROGRESS}{what}", flush=True)


def main() -> None:
    """Read the request, measure, write the report."""
    raw = json.loads(Path(sys.argv[1]).read_text())
    lists = {name: tuple(raw[name]) for name in ("engine_flags", "streams", "chunks")}
    try:
        bench = Bench(CalibrationRequest(**{**raw, **lists}))
        measured = measure(bench)
        import torch

        on_gpu = bench.device.type == "cuda"
        name = torch.cuda.get_device_name() if on_gpu else None
        device_bytes = int(torch.cuda.get_device_properties(0).total_memory) if on_gpu else None
        report: dict[str, Any] = {"report": asdict(CalibrationReport(measured, bench.how, name, device_bytes))}
    except WispError as error:
        report = {"error": str(error)}
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
