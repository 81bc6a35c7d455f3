"""Lets vLLM run its kernels in Triton's interpreter; to be imported before vLLM, which looks for Triton at once."""

import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

from triton.backends import backends
from triton.runtime import interpreter

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)  # vLLM asks for one

_patch_lang = interpreter._patch_lang
_patched: set[int] = set()


def _patch_lang_once(fn):
    """As Triton's, which looks through the whole language at every call of a function by a kernel: a sixth of its time.

    Here once a kernel for each module that functions are in.
    """
    module = id(fn.__globals__)
    if module in _patched:
        return None  # the caller is a function, and only kernels look at it
    is_kernel = not _patched
    scope = _patch_lang(fn)
    _patched.add(module)
    if is_kernel:
        restore = scope.restore
        scope.restore = lambda: (_patched.clear(), restore())
    return scope


interpreter._patch_lang = _patch_lang_once
