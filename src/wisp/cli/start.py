"""The `wisp` script: the command line, or what to install where a package that it needs is missing."""

import sys

NEEDED = ("typer", "rich", "httpx", "prometheus_client", "openai")
"""The extra `cli`. `import wisp` alone needs none of them."""


def main() -> None:
    """As `wisp.cli.main` does."""
    try:
        from wisp.cli.main import main as run

        run()
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
