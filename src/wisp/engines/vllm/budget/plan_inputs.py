"""What the plan of a start goes by that is known before anything is loaded: read then, and once more for the plan."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wisp.allocator import ModelShape, Workload, model_shape, read_model_shape
from wisp.allocator.calibration import STATED, Calibration
from wisp.allocator.calibration_files import find, installed_versions
from wisp.allocator.demand import check_trace
from wisp.allocator.machine import cpu_name
from wisp.recording import Recording

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from wisp.engines.vllm.settings import WispSettings


class PlanInputs(NamedTuple):
    """Of one engine."""

    shape: ModelShape
    workload: Workload
    rates: Calibration
    """Those that the settings name, or that are kept of this machine and model, or the stated ones."""
    doubts: list[str]
    """About rates that the settings name."""
    recording: Recording | None

    @classmethod
    def read(cls, config: "VllmConfig", settings: "WispSettings") -> "PlanInputs":
        """Read what the settings name.

        Raises:
            ConfigError: fewer conversations than sequences, or a calibration that is damaged or of another kind of
                device. TraceError: a trace of another model.
        """
        shape, scheduler = _shape(config), config.scheduler_config
        workload = Workload.typical(
            config.model_config.max_model_len,
            scheduler.max_num_seqs,
            conversations=settings.conversations,
            chunk=scheduler.max_num_batched_tokens,
        )
        recording = None if settings.trace is None else Recording.load(settings.trace)
        if recording is not None:
            check_trace(recording.phase("auto"), shape)
        return cls(shape, workload, *_rates(settings, str(shape)), recording)


def _rates(settings: "WispSettings", model: str) -> tuple[Calibration, list[str]]:
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    machine = cpu_name() if on_cpu else str(current_platform.get_device_name())
    if settings.calibration is None:
        return find(machine, model) or STATED, []
    rates = Calibration.load(settings.calibration)
    rates.check_device("cpu" if on_cpu else "cuda")
    return rates, rates.warnings(machine, model, installed_versions())


def _shape(config: "VllmConfig") -> ModelShape:
    """By the checkpoint's own configuration where it lies here, else by what vLLM made of it."""
    model = config.model_config.model
    return read_model_shape(model) if Path(model).is_dir() else model_shape(config.model_config.hf_config.to_dict())
