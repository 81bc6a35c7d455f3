"""What `wisp serve` adds to vLLM's own server: the configuration, reasons that reach the user, a clean end."""

import asyncio
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from wisp.engines.vllm import failure
from wisp.engines.vllm import serve as serving
from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import ConfigError, HostMemoryError, UnsupportedError, WispError

SETTINGS = WispSettings(expert_slots=8)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Shared files go to a directory of this test; the signal handlers of a run do not stay."""
    monkeypatch.setattr(counter_files.tempfile, "gettempdir", lambda: str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield counter_files.directory()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def vllm_does(monkeypatch):
    """Puts a function in the place of vLLM's server."""

    def put(action):
        monkeypatch.setattr(serving, "_run", lambda *_: action())

    return put


def run():
    serving.serve(["model"], SETTINGS)


def test_the_settings_join_a_users_own_configuration():
    settings = WispSettings(expert_slots=8, policy="fifo")
    merged = serving.merged_config({"other": 1, "wisp": {"expert_slots": 4, "page_lock": "off"}}, settings)
    assert merged == {"other": 1, "wisp": {"expert_slots": 8, "policy": "fifo", "page_lock": "off"}}


@pytest.mark.parametrize("additional", ["text", 3, ["wisp"]])
def test_a_configuration_that_is_no_object_is_refused(additional):
    with pytest.raises(ConfigError, match="must be a JSON object"):
        serving.merged_config(additional, SETTINGS)


@pytest.mark.parametrize(
    ("own", "told"), [(3, "must be a JSON object"), ({"slots": 4}, "unknown wisp setting"), ({"policy": "x"}, "'x'")]
)
def test_a_users_own_wisp_settings_are_checked(own, told):
    with pytest.raises(ConfigError, match=told):
        serving.merged_config({"wisp": own}, SETTINGS)


FAILING_ENGINE = """
from wisp.engines.vllm import failure
from wisp.errors import HostMemoryError
with failure.handed_over():
    raise HostMemoryError("give the process 3GiB more")
"""


def engine_that_fails():
    ended = subprocess.run([sys.executable, "-c", FAILING_ENGINE], stderr=subprocess.DEVNULL)
    assert ended.returncode == 1
    raise RuntimeError("Engine core initialization failed.")


def test_the_reason_of_an_engine_process_reaches_the_front_end(vllm_does):
    vllm_does(engine_that_fails)
    with pytest.raises(WispError, match="give the process 3GiB more"):
        run()


def test_a_failure_of_vllms_own_stays_its_own(vllm_does):
    for error in (RuntimeError("not ours"), PermissionError(errno.EACCES, "not ours")):

        def fail(error=error):
            raise error

        vllm_does(fail)
        with pytest.raises(type(error), match="not ours"):
            run()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "give another --port"),
        (
            OSError("We couldn't connect to a hub\nto load the files."),
            "^We couldn't connect to a hub to load the files.$",
        ),
    ],
)
def test_what_is_wrong_outside_of_vllm_is_told_in_a_paragraph(vllm_does, error, told):
    def fail():
        raise error

    vllm_does(fail)
    with pytest.raises(WispError, match=told):
        run()


def test_nothing_is_handed_over_where_nobody_asked(monkeypatch):
    monkeypatch.delenv(failure.FILE_VARIABLE, raising=False)
    with pytest.raises(HostMemoryError), failure.handed_over():
        raise HostMemoryError("no file is named")


def test_a_run_leaves_neither_files_nor_processes_nor_variables(vllm_does, directory):
    seen = []

    def leave_things():
        counter_files.path_for("engine", 0).touch()
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        process.start()
        seen.append(process)

    vllm_does(leave_things)
    run()
    assert list(directory.iterdir()) == []
    assert not seen[0].is_alive()
    assert {failure.FILE_VARIABLE, counter_files.OWNER_VARIABLE}.isdisjoint(os.environ)


def test_sigterm_before_vllm_has_a_handler_ends_the_run_cleanly(vllm_does, directory):
    vllm_does(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert list(directory.iterdir()) == []


def test_ctrl_c_does_not_wait_for_what_blocks_the_event_loop(vllm_does, directory):
    async def start():
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("Engine core initialization failed.")  # for the engines were interrupted, too

    signal.signal(signal.SIGINT, signal.default_int_handler)
    vllm_does(lambda: asyncio.run(start()))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert list(directory.iterdir()) == []


def test_an_interrupt_that_vllm_swallows_is_raised_again(monkeypatch):
    utils = pytest.importorskip("vllm.v1.engine.utils")
    from wisp.engines.vllm.patches import interrupted_start

    closed = []

    @contextmanager
    def swallowing(*_):
        try:
            yield SimpleNamespace()
        except KeyboardInterrupt:
            pass
        finally:
            closed.append(True)

    monkeypatch.setattr(utils, "zmq_socket_ctx", swallowing)
    interrupted_start.install()
    with pytest.raises(KeyboardInterrupt), utils.zmq_socket_ctx("address"):
        raise KeyboardInterrupt
    with utils.zmq_socket_ctx("address"):
        pass
    assert closed == [True, True]


@pytest.fixture
def parsed(monkeypatch):
    """Runs up to vLLM's own `serve`, and returns the arguments that it would get."""
    command = pytest.importorskip("vllm.entrypoints.cli.serve").ServeSubcommand
    given = []
    monkeypatch.setattr(command, "cmd", staticmethod(given.append))

    def parse(*words, settings=SETTINGS, device="auto"):
        serving._run(["some/model", *words], settings, device)
        return given[-1]

    return parse


def test_vllm_gets_every_flag_and_the_settings(parsed):
    args = parsed("--port=8123", "-tp", "2", "--max-model-len", "1k", "--additional-config", '{"other": {"a": 1}}')
    assert (args.model_tag, args.port, args.tensor_parallel_size, args.max_model_len) == ("some/model", 8123, 2, 1000)
    assert args.additional_config == {"other": {"a": 1}, "wisp": {"expert_slots": 8}}


def test_an_unknown_flag_is_a_usage_error_of_vllm(parsed, capsys):
    with pytest.raises(SystemExit) as end:
        parsed("--no-such-flag")
    assert end.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words", "is_eager", "told"),
    [
        (WispSettings(8, policy="lfru"), [], True, 1),
        (WispSettings(8, decide="host"), [], True, 1),
        (WispSettings(8, decide="host"), ["--enforce-eager"], True, 0),
        (WispSettings(8), [], False, 0),
    ],
)
def test_on_a_gpu_what_the_host_decides_runs_without_graphs(
    parsed, monkeypatch, capsys, settings, words, is_eager, told
):
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    assert parsed(*words, settings=settings).enforce_eager is is_eager
    assert capsys.readouterr().err.count("wisp: adding --enforce-eager") == told


def test_another_device_than_the_one_asked_for_is_refused(parsed):
    from vllm.platforms import current_platform

    other = "cpu" if current_platform.is_cuda() else "cuda"
    with pytest.raises(UnsupportedError, match="leave --device out"):
        parsed(device=other)


def test_a_vllm_that_finds_no_device_is_told(parsed, monkeypatch):
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_unspecified", lambda self: True)
    with pytest.raises(UnsupportedError, match="finds no device"):
        parsed()
