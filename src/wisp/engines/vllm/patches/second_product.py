"""`triton_moe.invoke_fused_moe_triton_kernel`, and `..._wna16_...` for int4: wait before an expert's second product.

Why: the weights of the second product are still on their way while the first is computed (`pager/tails.py`), and
nothing between the two calls is ours in every format: FP8 fuses the activation with the quantisation.
What: calls the original; before the second call of a layer's step it calls `wait` first. In force only inside
`before_second_product`, for one call of the kernel.
Versions: 0.32. Ends when: the kernel's experts class offers a hook between its products.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wisp.errors import WispError

PRODUCTS = 2
INVOCATIONS = ("invoke_fused_moe_triton_kernel", "invoke_fused_moe_wna16_triton_kernel")


@contextmanager
def before_second_product(wait: Callable[[], None]) -> Iterator[None]:
    """Within, `wait` is called before the second product.

    Raises:
        WispError: the kernel did not compute two products, so that it may have read what had not arrived.
    """
    from vllm.model_executor.layers.fused_moe.experts import triton_moe

    originals = {name: getattr(triton_moe, name) for name in INVOCATIONS}
    products = 0

    def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
        def invoke(*args: Any, **kwargs: Any) -> Any:
            nonlocal products
            products += 1
            if products == PRODUCTS:
                wait()
            return original(*args, **kwargs)

        return invoke

    for name, original in originals.items():
        setattr(triton_moe, name, waiting(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(triton_moe, name, original)
    if products != PRODUCTS:
        raise WispError(
            f"vLLM's MoE kernel computed {products} products where wisp knows {PRODUCTS}, so it may have read weights "
            f"before they arrived; set decide to host and add --enforce-eager, and report this version of vLLM"
        )
