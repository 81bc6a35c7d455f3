"""Loading a checkpoint under paging, from both backing stores, beside stock vLLM and beside reading the files alone.

python benchmarks/load_time/run.py [--layers 24] [--folder /tmp/checkpoint]

Writes a checkpoint of random bf16 weights (about 1.2 GiB a layer of Qwen3-30B-A3B), reads it once so that it is in the
page cache, and then measures each arm in a process of its own: the load, host memory, and with both stores decoding.
The run is added to those that the output has.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import torch
from checkpoint import write
from together import REPORT
from versions import versions

HERE = Path(__file__).parent
GIB = 2**30
CHUNK_BYTES = 16 << 20
TIMEOUT_SECONDS = 240
READERS = 16
ARMS = ("stock", "memory", "checkpoint")


def read_seconds(folder: Path, readers: int) -> float:
    """Read every file into memory that is thrown away, so many at a time."""
    start = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(_read, sorted(folder.glob("*.safetensors"))))
    return time.perf_counter() - start


def _read(path: Path) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def measured(arm: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What one arm reports, or why there is no report."""
    command = [sys.executable, str(HERE / "arm.py"), "--arm", arm, "--folder", str(folder)]
    command += ["--slots", str(options.slots), "--prompt", str(options.prompt), "--steps", str(options.steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        until_then = (late.stderr or b"").decode(errors="replace")[-500:]
        return {"failed": f"not done in {TIMEOUT_SECONDS} s; until then: {until_then}"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(REPORT)]
    if done.returncode != 0 or not lines:
        print(f"{arm} ended with {done.returncode}:\n{done.stderr[-3000:]}", file=sys.stderr)
        return {"failed": done.stderr[-500:]}
    return dict(json.loads(lines[-1].removeprefix(REPORT)))


def main() -> None:
    """Write, read, load, decode, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--folder", type=Path, help="for the checkpoint; the default is removed at the end")
    parser.add_argument("--tiny", action="store_true", help="small layers, to try the script out")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    if not (options.tiny or torch.cuda.is_available()):
        parser.error("this writes up to 30 GiB and loads it for a GPU, and there is none here; --tiny tries it out")
    earlier = json.loads(options.output.read_text())["runs"] if options.output.exists() else []
    folder = options.folder or Path(tempfile.mkdtemp(prefix="checkpoint-"))
    try:
        start = time.perf_counter()
        write(folder, options.layers, tiny=options.tiny)
        print(f"written in {time.perf_counter() - start:.0f} s", flush=True)
        gib = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / GIB
        read_seconds(folder, READERS)
        result: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python benchmarks/load_time/run.py", *sys.argv[1:]]),
            "machine": f"{_device()}, {platform.machine()}",
            "versions": versions(),
            "checkpoint_gib": round(gib, 2),
            "expert_slots": options.slots,
            "read_s": {
                "one file at a time": read_seconds(folder, 1),
                f"{READERS} at a time": read_seconds(folder, READERS),
            },
            "arms": {},
        }
        for arm in options.arms.split(","):
            result["arms"][arm] = measured(arm, folder, options)
            print(json.dumps({arm: result["arms"][arm]}), flush=True)
            options.output.write_text(json.dumps({"runs": [*earlier, result]}, indent=2) + "\n")
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    failed = [arm for arm, found in result["arms"].items() if "failed" in found]
    paged = [found for arm, found in result["arms"].items() if arm != "stock" and arm not in failed]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if any(found["integrity"]["wrong"] for found in paged):
        sys.exit("some slots do not hold what the store has")
    if len({tuple(found["tokens"]) for found in paged}) > 1:
        sys.exit("the two stores give different tokens")


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


if __name__ == "__main__":
    main()
