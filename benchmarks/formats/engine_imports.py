"""What an engine imports before it touches CUDA, which no process may have done that others are forked from.

No more than vLLM itself imports before it forks: models and kernels may do it.
"""

import vllm.v1.engine.llm_engine  # noqa: F401

import wisp.engines.vllm.verify.arm  # noqa: F401
