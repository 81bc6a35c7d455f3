"""Has vLLM look at a model's class in this process, which is to import it anyway; to be imported after vLLM.

vLLM starts a process for it, so that what asks need not load CUDA; that takes ten seconds for each kind of model that
the user's cache does not know, and on a new machine it knows none.
"""

from vllm.model_executor.models import registry

registry._run_in_subprocess = lambda look: look()
