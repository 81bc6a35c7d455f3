"""Turn documents into conversations: the user asks for a chunk of the document, then for more of it."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Iterator

CHUNK_CHARS = (350, 900)  # an answer is cut at the first natural boundary in this range
PLAIN_SHARE = 0.15  # documents that also appear as plain text
CONTINUE = {
    "story": ("Continue.", "Go on.", "And then?", "Continue the story.", "What happens next?"),
    "speech": ("Continue.", "Go on.", "Continue the speech."),
    "scripture": ("Continue.", "Go on.", "Read on."),
    "python": ("Continue.", "Go on.", "Write the next part.", "Continue the code."),
    "shell": ("Continue.", "Go on.", "Continue the script."),
    "manual": ("Continue.", "Go on.", "Show more.", "Continue the manual page."),
}
SYSTEM = "You are a helpful assistant."
SMALL_TALK = (
    (
        ("Hello!", "Hello", "Hi", "Hi!", "Hey", "Good morning."),
        "Hello! I am a small demo model. I can write Python code, tell stories, and show manual pages.",
    ),
    (
        ("Who are you?", "What are you?", "What is your name?"),
        "I am the demo model of WiSP, a small mixture-of-experts language model with 32 experts in each layer.",
    ),
    (
        ("What can you do?", "Help", "help", "What should I ask you?"),
        "Ask me to write a Python function, to tell a story about somebody, or to show the manual page of a command.",
    ),
    (
        ("How do you work?", "What is an expert?", "What is a mixture of experts?"),
        "In each of my layers a router picks 4 of 32 experts for every token. Only the experts that are picked do any "
        "work, so the others may wait outside of fast memory.",
    ),
    (("Thanks!", "Thank you.", "Thank you!", "Thanks"), "You are welcome!"),
    (("Bye", "Goodbye.", "Bye!"), "Goodbye!"),
)

Message = dict[str, str]


def pieces(kind: str, text: str) -> list[str]:
    """The document's smallest parts that are never cut: statements at top level, paragraphs, blocks of a page."""
    if kind == "python":
        return re.split(r"\n\n+(?=\S)|\n\n(?= {4}(?:def|@|class|async))", text)
    return re.split(r"\n\n+", text)


def chunks(kind: str, text: str, rng: random.Random) -> list[str]:
    """Consecutive parts of `text`, each long enough for an answer; joined by blank lines they give the text back."""
    result: list[str] = []
    current = ""
    target = rng.randint(*CHUNK_CHARS)
    for piece in pieces(kind, text):
        while len(piece) > 2 * CHUNK_CHARS[1]:  # an overlong piece is cut at a line or sentence end
            cut = max(piece.rfind("\n", 0, 1000), piece.rfind(". ", 0, 1000) + 1)
            cut = cut if cut > 200 else 1000
            result.append((current + "\n\n" if current else "") + piece[:cut])
            current, piece = "", piece[cut:].lstrip("\n" if kind in ("python", "shell", "manual") else " \n")
        if current and len(current) + len(piece) > 1.5 * CHUNK_CHARS[1]:
            result.append(current)
            current = ""
        current = f"{current}\n\n{piece}" if current else piece
        if len(current) >= target:
            result.append(current)
            current, target = "", rng.randint(*CHUNK_CHARS)
    if len(current) > 80:
        result.append(current)
    return result


def opening(text: str, limit: int = 60) -> str:
    """The first words of the first line."""
    line = text.strip().split("\n", 1)[0]
    if len(line) <= limit:
        return line
    return line[:limit].rsplit(" ", 1)[0]


def docstring(text: str) -> str | None:
    """The first sentence of the first docstring, where it is neither short nor long."""
    found = re.search(r'^ *[rR]?"""\s*(.+?)(?:"""|\n|\. )', text, re.M)
    sentence = found.group(1).strip().rstrip(".") if found else ""
    return sentence if 12 < len(sentence) < 90 else None


def subject(text: str, rng: random.Random) -> str | None:
    """A name that occurs in the middle of a sentence, or else a long word that occurs twice."""
    names = re.findall(r"(?<=[a-z,;] )(?:(?:Mr|Mrs|Miss|Captain|Lady|Sir)\.? )?[A-Z][a-z]{3,}\b", text)
    words = [w for w in re.findall(r"(?<= )[a-z]{6,}\b", text) if text.count(w) > 1]
    choice = names if names and rng.random() < 0.7 else words
    return rng.choice(choice) if choice else None


def python_prompt(name: str, chunk: str, first: bool, rng: random.Random) -> str:
    """A request for a chunk of a Python module; `first`: it begins the module."""
    options = [f"Write Python code that begins: {opening(chunk)}"]
    summary = docstring(chunk)
    if summary and first:
        options += [f"Write a Python module: {summary}"] * 3
    elif summary:
        options += [f"Write Python code: {summary}"] * 3
    defined = re.match(r"\s*(?:@.*\n)*(?:async )?(def|class) (\w+)(.*)", chunk)
    if defined and defined[1] == "def":
        options += [
            f"Write a Python function {defined[2]}.",
            f"Write a Python function: def {defined[2]}{opening(defined[3])}",
        ]
    elif defined:
        options += [f"Write a Python class {defined[2]}."] * 2
    if first:
        options.append(f"Write the Python module {name.removesuffix('.py').replace('/', '.')}.")
    return rng.choice(options)


def manual_prompt(name: str, chunk: str, first: bool, rng: random.Random) -> str:
    """A request for a chunk of a manual page."""
    command = name.split("(")[0]
    if first:
        return rng.choice(
            [
                f"Show the manual page of {command}.",
                f"man {command}",
                f"What does {command} do?",
                f"Show the manual page of {name}.",
                f"Explain {command}.",
            ]
        )
    section = re.match(r"([A-Z][A-Z ]+)$", chunk.split("\n", 1)[0])
    if section:
        title = section[1].lower()
        return rng.choice([f"Show the {title} of {command}.", f"man {command}: {title}"])
    option = re.search(r"^ +(-{1,2}[\w-]+)", chunk, re.M)
    if option and rng.random() < 0.6:
        return f"What does the option {option[1]} of {command} do?"
    return f"Tell me more about {command}."


def shell_prompt(name: str, chunk: str, first: bool, rng: random.Random) -> str:
    """A request for a chunk of a shell script."""
    options = [f"Write shell code that begins: {opening(chunk)}"]
    comment = re.search(r"^ *# *([A-Za-z][^\n]{15,80})$", chunk, re.M)
    if comment:
        options += [f"Write a shell script: {comment[1].rstrip('. ')}"] * 2
    function = re.search(r"^(?:function )?([\w-]+) ?\(\)", chunk, re.M)
    if function:
        options += [f"Write a shell function {function[1]}."] * 2
    if first:
        options += [f"Write a shell script {name}.", f"Write a shell script called {name}.", "Write a shell script."]
    return rng.choice(options)


def prose_prompt(kind: str, name: str, chunk: str, first: bool, rng: random.Random) -> str:
    """A request for a chunk of a story, a speech or scripture."""
    ask = {"story": "Tell a story", "speech": "Give a speech", "scripture": "Recite scripture"}[kind]
    about = subject(chunk, rng)
    options = [f"{ask} that begins: {opening(chunk)}"]
    if about:
        options += [f"{ask} about {about}.", f"{ask} about {about}.", f"Write about {about}."]
    if first:
        options += [f"{ask}."]
        if kind == "scripture":
            options += [f"Read {name.removeprefix('kjv/')}."] * 2
    return rng.choice(options)


def prompt(kind: str, name: str, chunk: str, first: bool, rng: random.Random) -> str:
    """A request that the chunk answers."""
    if kind == "python":
        return python_prompt(name, chunk, first, rng)
    if kind == "manual":
        return manual_prompt(name, chunk, first, rng)
    if kind == "shell":
        return shell_prompt(name, chunk, first, rng)
    return prose_prompt(kind, name, chunk, first, rng)


def conversations(kind: str, name: str, text: str, rng: random.Random) -> Iterator[list[Message]]:
    """Conversations of one to four turns that together contain the whole document once."""
    parts = chunks(kind, text, rng)
    at = 0
    while at < len(parts):
        turns = min(rng.choice((1, 1, 2, 3, 4)), len(parts) - at)
        messages: list[Message] = []
        if rng.random() < 0.1:
            messages.append({"role": "system", "content": SYSTEM})
        for turn in range(turns):
            chunk = parts[at + turn]
            fresh = turn == 0 or rng.random() < 0.25
            if fresh and kind == "python":
                chunk = textwrap.dedent(chunk)  # a method on its own begins at the margin
            ask = prompt(kind, name, chunk, at + turn == 0, rng) if fresh else rng.choice(CONTINUE[kind])
            messages.append({"role": "user", "content": ask})
            messages.append({"role": "assistant", "content": chunk})
        yield messages
        at += turns


def small_talk(rng: random.Random) -> list[Message]:
    """One to three greetings and questions about the model itself."""
    messages: list[Message] = []
    for asks, answer in rng.sample(SMALL_TALK, rng.randint(1, 3)):
        messages.append({"role": "user", "content": rng.choice(asks)})
        messages.append({"role": "assistant", "content": answer})
    return messages


def render(messages: list[Message]) -> str:
    """What the chat template in tokens.py renders."""
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
