"""No symbol: asks Linux for the use of AMX tiles, once a process.

Why: vLLM's attention for CPUs uses tiles wherever the processor has them, and leaves it to chance whether something
else (a matrix product by oneDNN) has asked for permission before; a worker of a tiny model dies of SIGILL at its first
request (vLLM 0.32, also without wisp).
What: has torch ask, which does nothing on a processor without AMX. On a CPU only.
Versions: 0.32. Ends when: vLLM asks itself.
"""


def install() -> None:
    """Ask; the permission holds for the process and what it forks later."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        import torch

        torch.cpu._init_amx()
