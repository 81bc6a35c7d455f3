"""The `wisp` script: the command line, what to install where a package of it is missing, and Ctrl-C meanwhile."""

import signal
import sys

NEEDED = ("typer", "rich", "httpx", "prometheus_client", "openai")
"""The extra `cli`. `import wisp` alone needs none of them."""


def main() -> None:
    """As `wisp.cli.main` does."""
    try:
        from wisp.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while the command line is still being loaded
        sys.exit(128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        print(
            f"wisp: the command line needs {missing}, which is not installed in this environment; "
            f"pip install 'wisp-moe[cli]', or '.[cli]' in a checkout",
            file=sys.stderr,
        )
        sys.exit(2)
