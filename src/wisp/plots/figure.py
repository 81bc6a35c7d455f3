"""What all figures share: their look, their file, and what happens where matplotlib is missing."""

from pathlib import Path
from typing import Any

from wisp.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")

_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def check_figure(path: Path) -> None:
    """Before anything is computed: is this a figure's name, in a folder that exists, and is matplotlib there?

    Raises:
        ConfigError: it is not.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"a figure is one of {', '.join(SUFFIXES)}, which {path.name!r} does not say; name it so")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for the figure; make it first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("a figure needs matplotlib; pip install 'wisp-moe[plots]', or leave out -o") from None


def panels(title: str, count: int = 2) -> tuple[Any, Any]:
    """A figure with so many panels side by side: (figure, axes)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * count, 4.2), layout=ConstrainedLayoutEngine(w_pad=0.12))
        axes = figure.subplots(1, count)
        figure.suptitle(title, fontsize=11)
    return figure, axes


def count_slots(axes: Any) -> None:
    """Label the x axis with slots, which are whole numbers."""
    axes.set_xlabel("slots of each layer (experts)")
    axes.xaxis.get_major_locator().set_params(integer=True)


def save(figure: Any, path: Path) -> None:
    """Write it in the format that the name says."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        figure.savefig(path, dpi=150)
