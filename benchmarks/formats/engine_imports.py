"""What an engine imports, but for what initialises CUDA, which no process may have done that others are forked from."""

import vllm.model_executor.models.gpt_oss
import vllm.model_executor.models.qwen3_moe
import vllm.v1.engine.llm_engine  # noqa: F401

import wisp.engines.vllm.verify.arm  # noqa: F401
