"""One engine in a process of its own, or in one for each of its nodes: starting it, its turn, and its end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from wisp.engines.vllm.engine_process import environment
from wisp.engines.vllm.verify.arm import ArmRequest

HERE = Path(__file__).parent
MODEL = HERE.parent.parent / "demo" / "model"
LOCAL = "127.0.0.1"


@dataclass
class ArmProcess:
    """One engine; `name` is unpaged, again (that once more), paged, host (decided there) or broken (on purpose)."""

    form: str
    mode: str
    name: str
    slots: int | None
    home: Path
    nodes: int = 1
    """With two, each of the two ranks is a node by itself, and both nodes are this machine."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The engine's own, and then those of the other nodes."""
    deadline: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any] | None:
        """The wisp configuration. The free memory of a machine whose memory grows says little, so it is stated."""
        if self.slots is None:
            return None
        more = {"host": {"decide": "host"}, "broken": {"break_expert": True}}.get(self.name, {})
        return {"expert_slots": self.slots, "host_memory": "8GiB", **more}

    def start(self, flags: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> None:
        """Start it, each process in a group of its own."""
        self.home.mkdir()
        request = ArmRequest(
            str(MODEL),
            self.settings,
            str(self.home.parent / "workload.json"),
            str(self.home / "result.json"),
            (*flags,),
        )
        port = _free_port()
        for node in range(self.nodes):
            more, flags_of_node = {}, ()
            if self.nodes > 1:
                more, flags_of_node = _variables_of(f"{self.home.name}-{node}"), self._flags_of(node, port)
            file = self.home / f"request-{node}.json"
            file.write_text(json.dumps(asdict(replace(request, engine_flags=(*flags, *flags_of_node)))))
            script = ("node.py",) if node else ("arm.py", *["--untimed"] * (self.nodes > 1))
            command = [sys.executable, str(HERE / script[0]), *script[1:], str(file)]
            with (self.home / f"log-{node}").open("wb") as log:
                process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(**variables, **more),
                    start_new_session=True,
                )
            self.processes.append(process)
        self.deadline = time.monotonic() + timeout_s

    @property
    def is_waiting(self) -> bool:
        """Whether it neither has answered nor has ended, and still has time to."""
        running = all(process.poll() is None for process in self.processes) and time.monotonic() < self.deadline
        return running and not (self.home / "ready").exists()

    def finish(self, timeout_s: float = 60.0) -> None:
        """Let it decode, take its report, and leave nothing of it behind."""
        (self.home / "go").touch()
        engine = self.processes[0]
        result = self.home / "result.json"
        if (self.home / "ready").exists():
            limit = time.monotonic() + timeout_s
            # what there is to know is known then, and of two nodes on one GPU the first was seen not to end
            while engine.poll() is None and not result.exists() and time.monotonic() < limit:
                time.sleep(0.05)
        late = engine.poll() is None
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers too
            process.wait()
        if result.exists():
            self.report = json.loads(result.read_text())
            return
        why = "did not finish in time" if late else f"ended with code {engine.returncode}"
        self.report = {"error": "\n".join([f"{why}; its last words:", *map(self._last_words, range(self.nodes))])}

    def _flags_of(self, node: int, port: int) -> tuple[str, ...]:
        named = {"nnodes": self.nodes, "node-rank": node, "master-addr": LOCAL, "master-port": port}
        # vLLM's own reduction asks each rank's GPU whether it reaches the other's, by its number on this host
        flags = ("--distributed-executor-backend", "mp", "--disable-custom-all-reduce")
        return (*flags, *(part for name, value in named.items() for part in (f"--{name}", str(value))))

    def _last_words(self, node: int) -> str:
        words = (self.home / f"log-{node}").read_text(errors="replace")
        return "\n".join(words.splitlines()[-60:])


def _variables_of(host: str) -> dict[str, str]:
    """The environment of a node: NCCL refuses two ranks on one GPU of the same host, so each is told of another."""
    loopback = dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "lo")
    return {"NCCL_HOSTID": host, "VLLM_HOST_IP": LOCAL, **loopback}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOCAL, 0))
        return int(found.getsockname()[1])
