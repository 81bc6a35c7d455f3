"""A command that keeps the options it declares and hands everything else to the engine, word for word."""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperOption

FORWARDING = {"allow_extra_args": True}
"""The context settings of such a command."""


class ForwardingCommand(TyperCommand):
    """Its own options may stand anywhere; what follows the declared arguments is in `context.args`, in order.

    A parser that merely ignores unknown options cannot tell their values from its own arguments, and takes the
    8000 of `--port 8000 MODEL` for the model.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Sort the words first; then parse as usual."""
        own, engine = split(args, self.get_params(ctx))
        return super().parse_args(ctx, [*own, "--", *engine] if engine else own)


def split(args: Sequence[str], parameters: Sequence[object]) -> tuple[list[str], list[str]]:
    """Words of the declared options (and of `--help`), and all others: (own, engine), each in its order.

    An option at the very end whose value is missing is all there is to tell, so no others are given then.
    """
    options = [option for option in parameters if isinstance(option, TyperOption)]
    takes_value = {name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}
    own, engine = [], []
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")  # as vLLM's own parser has it
        if name not in takes_value or (equals and not takes_value[name]):
            engine.append(word)
            continue
        own.append(name + word[len(name) :])
        if takes_value[name] and not equals:
            value = next(words, None)
            if value is None:
                return own, []
            own.append(value)
    return own, engine


def flag_value(args: Sequence[str], flag: str) -> str | None:
    """The value that an engine's flag has, `--flag value` or `--flag=value`; the last one counts, None without."""
    found = None
    for place, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else "".join(args[place + 1 : place + 2])
    return found
