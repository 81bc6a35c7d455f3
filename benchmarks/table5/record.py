"""Record the demo model's routing and KV references for this benchmark: conversations that take turns, a file a run.

    python benchmarks/table5/record.py [NAME ...]

On a CPU a run takes one to three minutes. Answers are greedy, so a run on the same machine gives the same trace.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TRACES = HERE / "traces"

OPENINGS = {
    "python": (
        "Write Python code: Send a message to the server",
        "Write a Python class Counter.",
        "Write a Python function parse.",
        "Write a Python class Session.",
        "Write Python code: Return the shortest path between two nodes",
        "Write a Python function render.",
        "Write a Python class Query.",
        "Write Python code: Read the configuration from a file",
    ),
    "prose": (
        "Tell a story about Captain Ahab.",
        "Tell a story about Emma.",
        "Tell a story about the whale.",
        "Tell a story about Mr. Darcy.",
        "Tell a story about the president.",
        "Tell a story about the king.",
        "Tell a story about a letter.",
        "Tell a story about the ship.",
    ),
    "shell": (
        "Show the manual page of sleep.",
        "Show the manual page of tar.",
        "Show the manual page of git.",
        "Write a shell script that removes old files.",
        "Show the manual page of mount.",
        "Show the manual page of find.",
        "Show the manual page of sort.",
        "Show the manual page of ssh.",
    ),
}
GO_ON = "Continue."


@dataclass(frozen=True)
class Run:
    """One recording: how many conversations of each domain take turns, and how many run at once."""

    conversations: dict[str, int]
    turns: int
    output: int
    """Tokens of an answer, at most."""
    sequences: int = 1

    @property
    def longest(self) -> int:
        """Tokens of a conversation at most: an opening has fewer than 64, what asks for more fewer than 16."""
        return -(-(64 + self.turns * (self.output + 16)) // 64) * 64


RUNS = {
    "python-few-long": Run({"python": 2}, 10, 120),
    "python-many": Run({"python": 8}, 4, 80),
    "python-pair": Run({"python": 4}, 5, 100, sequences=2),
    "prose-few-long": Run({"prose": 2}, 10, 120),
    "prose-many": Run({"prose": 8}, 4, 80),
    "prose-pair": Run({"prose": 4}, 5, 100, sequences=2),
    "shell-few-long": Run({"shell": 2}, 10, 120),
    "shell-many": Run({"shell": 8}, 4, 80),
    "shell-pair": Run({"shell": 4}, 5, 100, sequences=2),
    "mixed-few-long": Run({"python": 1, "prose": 1, "shell": 1}, 8, 120),
    "mixed-many": Run({"python": 3, "prose": 3, "shell": 3}, 4, 80),
    "mixed-pair": Run({"python": 2, "prose": 2, "shell": 2}, 4, 100, sequences=2),
}


def script(run: Run) -> dict[str, object]:
    """What `wisp record` is asked to hold; the domains alternate."""
    asked = [
        {"domain": domain, "turns": [OPENINGS[domain][place], *[GO_ON] * (run.turns - 1)]}
        for place in range(max(run.conversations.values()))
        for domain, count in run.conversations.items()
        if place < count
    ]
    return {"temperature": 0, "repetition_penalty": 1.2, "max_tokens": run.output, "conversations": asked}


def record(name: str, run: Run) -> None:
    """Write `traces/NAME.npz`."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.json"
        prompts.write_text(json.dumps(script(run)))
        command = [sys.executable, "-m", "wisp.cli.main", "record", HERE.parents[1] / "demo" / "model"]
        command += ["--prompts", prompts, "-o", TRACES / f"{name}.npz", "--enforce-eager", "--block-size", "32"]
        command += ["--max-num-seqs", run.sequences, "--max-model-len", "2048"]
        subprocess.run([str(word) for word in command], check=True)


def main() -> None:
    """Record the runs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RUNS)}")
    TRACES.mkdir(exist_ok=True)
    for name in parser.parse_args().names or RUNS:
        record(name, RUNS[name])


if __name__ == "__main__":
    main()
