"""For patches that each layer or worker of a process asks for: only the first one installs it."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


def once(install: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """The same function, which does nothing once a call has come to its end, whatever its arguments are then."""
    is_installed = False

    @wraps(install)
    def first_only(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        nonlocal is_installed
        if not is_installed:
            install(*args, **kwargs)
            is_installed = True

    return first_only
