"""What is served: how many sequences of which length at once, and what one turn of a conversation looks like."""

from dataclasses import dataclass

from wisp.errors import ConfigError

LARGEST_CHUNK, SMALLEST_CHUNK = 8192, 2048
"""Bounds of the default chunk: vLLM's own default on a large and on a small GPU."""

MOST_SEQUENCES = 1024

USUAL_CONTEXT, USUAL_SEQUENCES = 8192, 4
"""What is served where nobody says."""

_NEW_TOKENS, _OUTPUT_TOKENS = 512, 256


def usual_sequences(conversations: int | None) -> int:
    """How many run at once where nobody says: no more than there are conversations."""
    return USUAL_SEQUENCES if conversations is None else max(1, min(USUAL_SEQUENCES, conversations))


@dataclass(frozen=True)
class Workload:
    """Turns that `sequences` streams take side by side; all lengths are in tokens."""

    context: int
    """The longest sequence: `--max-model-len`, l_ctx of the paper."""
    sequences: int
    """Sequences at once: `--max-num-seqs`, W of the paper."""
    conversations: int
    """Conversations that are open, running or not; the next turn is any one's with equal probability."""
    chunk: int
    """Tokens of a prefill step: `--max-num-batched-tokens`."""
    history: int
    """What a conversation holds before a turn."""
    new: int
    """What a turn adds to the prompt."""
    output: int
    """What a turn generates."""

    @classmethod
    def typical(
        cls, context: int, sequences: int, *, conversations: int | None = None, chunk: int | None = None
    ) -> "Workload":
        """Turns of 512 new and 256 generated tokens (a quarter of the context at most) on a history of half of it.

        Conversations, if not given, are those that run; the chunk is as long as a sequence, from 2048 to 8192.

        Raises:
            ConfigError: a number below 1, more than `MOST_SEQUENCES`, or fewer conversations or tokens of a step than
                sequences.
        """
        conversations = sequences if conversations is None else conversations
        chunk = min(max(context, SMALLEST_CHUNK), LARGEST_CHUNK) if chunk is None else chunk
        numbers = {"max-model-len": context, "max-num-seqs": sequences, "max-num-batched-tokens": chunk}
        for name, number in numbers.items():
            if number < 1:
                raise ConfigError(f"--{name} must be 1 or more, not {number}")
        if sequences > MOST_SEQUENCES:
            raise ConfigError(f"--max-num-seqs is {sequences}; wisp plan reckons with {MOST_SEQUENCES} at most")
        if chunk < sequences:
            raise ConfigError(
                f"--max-num-batched-tokens is {chunk} but {sequences} sequences decode a token each in a step; set it "
                f"to {sequences} or more"
            )
        if conversations < sequences:
            fewer = f", or --max-num-seqs to {conversations}" if conversations > 0 else ""
            raise ConfigError(
                f"--conversations is {conversations} but {sequences} run at once; set it to {sequences} or more{fewer}"
            )
        new, output = max(1, min(_NEW_TOKENS, context // 4)), max(1, min(_OUTPUT_TOKENS, context // 4))
        return cls(context, sequences, conversations, chunk, context // 2, new, output)

    def chunks(self, tokens: int) -> list[int]:
        """The prefill steps of so many tokens."""
        full, rest = divmod(tokens, self.chunk)
        return [self.chunk] * full + [rest] * bool(rest)
