"""Another node of an engine: its worker, which the engine of the first node leads. It ends with that.

    python node.py REQUEST.json

The request is the first node's, with flags of its own (`--node-rank`). It is what `vllm serve --headless` runs.
"""

import sys
from pathlib import Path

from wisp.engines.vllm.verify.arm import ArmRequest, engine_args_of


def main(request_file: str) -> None:
    """Serve until the engine ends."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    request = ArmRequest.load(Path(request_file))
    config = engine_args_of(request).create_engine_config(headless=True)
    MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)


if __name__ == "__main__":
    main(sys.argv[1])
