"""What an engine is asked while it is recorded: prompts, or conversations of several turns."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wisp.errors import ConfigError


@dataclass(frozen=True)
class Conversation:
    """What the user says, turn by turn."""

    domain: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class Script:
    """Conversations to be held side by side, and how answers are sampled."""

    conversations: tuple[Conversation, ...]
    chat: bool = True
    """Through the model's chat template; otherwise each conversation is one plain prompt."""
    max_tokens: int = 32
    temperature: float = 0.0
    repetition_penalty: float = 1.0


def read_script(path: Path, *, domain: str | None = None, max_tokens: int | None = None) -> Script:
    """Read a script: JSON as in demo/prompts.json, or text with one plain prompt a line.

    Args:
        path: JSON is `{"conversations": [{"domain": "python", "turns": ["...", "..."]}, ...]}`, beside which
            `max_tokens`, `temperature` and `repetition_penalty` may stand.
        domain: keep the conversations of this domain only.
        max_tokens: in place of the file's.

    Raises:
        ConfigError: the file is neither, or no conversation remains.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts in {path} cannot be read: {error}") from error
    script = _parse_json(text, path) if path.suffix == ".json" else _parse_lines(text)
    kept = tuple(c for c in script.conversations if domain in (None, c.domain) and c.turns)
    if not kept:
        domains = sorted({c.domain for c in script.conversations if c.domain})
        raise ConfigError(
            f"{path} holds no prompt"
            + (f" of domain {domain!r}; it has {', '.join(domains) or 'none'}" if domain else "")
        )
    return Script(kept, script.chat, max_tokens or script.max_tokens, script.temperature, script.repetition_penalty)


def plain_script(texts: tuple[str, ...], max_tokens: int) -> Script:
    """Plain prompts, all at once."""
    return Script(tuple(Conversation("", (text,)) for text in texts), chat=False, max_tokens=max_tokens)


def _parse_lines(text: str) -> Script:
    return plain_script(tuple(line for line in text.splitlines() if line.strip()), Script.max_tokens)


def _parse_json(text: str, path: Path) -> Script:
    try:
        raw: dict[str, Any] = json.loads(text)
        conversations = tuple(
            Conversation(str(c.get("domain", "")), tuple(str(turn) for turn in c["turns"]))
            for c in raw["conversations"]
        )
        return Script(
            conversations,
            max_tokens=int(raw.get("max_tokens", Script.max_tokens)),
            temperature=float(raw.get("temperature", Script.temperature)),
            repetition_penalty=float(raw.get("repetition_penalty", Script.repetition_penalty)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} holds no conversations ({type(error).__name__}: {error}); give JSON such as "
            f'{{"conversations": [{{"domain": "python", "turns": ["..."]}}]}}, or text with one prompt a line'
        ) from error
