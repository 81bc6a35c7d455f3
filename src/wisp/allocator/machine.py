"""What this machine computes with, by name. Asks no library, which would take seconds to load."""

import os
import subprocess
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")
_CPUS = Path("/proc/cpuinfo")


def gpu_name() -> str | None:
    """The first GPU by its driver's name; None without one."""
    for file in sorted(_GPUS.glob("*/information")):
        for row in file.read_text().splitlines():
            if row.startswith("Model:"):
                return row.removeprefix("Model:").strip()
    return None


def gpu_bytes() -> int | None:
    """The memory of its first GPU by `nvidia-smi`; None without a GPU, or where that does not answer."""
    if gpu_name() is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "--id=0"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(told.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def cpu_name() -> str:
    """The processor, and how many threads the machine has; not how many are this process's, which engines change."""
    threads = os.cpu_count()
    for row in _CPUS.read_text().splitlines() if _CPUS.is_file() else ():
        name, _, rest = row.partition(":")
        if name.strip() in ("model name", "Model") and rest.strip():
            return f"{rest.strip()}, {threads} threads"
    return f"a CPU of {threads} threads"
