"""How a figure of a plan looks: sizes, colours, grid, a legend that stands beside the data."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0b6e99", "#d1495b", "#2f9e44", "#8f5bb5", "#e08e0b", "#5c677d", "#7b3f00", "#00897b")
PLAIN = "#777777"


def figure(width: float = 7.5, height: float = 5.0) -> Figure:
    made = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(made)
    return made


def axes(made: Figure, title: str, x: str, y: str) -> Axes:
    own = made.add_subplot()
    label(own, title, x, y)
    return own


def label(own: Axes, title: str, x: str, y: str) -> None:
    own.set_title(title, fontsize=11, pad=10)
    own.set_xlabel(x)
    own.set_ylabel(y)
    own.grid(visible=True, color="#dddddd", linewidth=0.7)
    own.set_axisbelow(True)
    for side in ("top", "right"):
        own.spines[side].set_visible(False)


def legend(made: Figure, own: Axes, columns: int = 2) -> None:
    """Below the axes."""
    handles, labels = own.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def shorten(text: str, most: int = 48) -> str:
    """The end of a long name, which tells more than its beginning."""
    return text if len(text) <= most else "…" + text[-most + 1 :]
