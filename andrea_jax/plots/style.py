"""One look for every figure: light ground, Okabe–Ito colours for kinds, one blue for attention, viridis for layers.

Figures are made without pyplot: nothing global is touched, they work headless, and notebooks show them.
"""

import functools
import io
import textwrap
from collections.abc import Callable
from typing import Literal

import matplotlib as mpl
import matplotlib.figure
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

# Okabe and Ito 2008, "Color Universal Design": distinct under every common colour blindness
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
KINDS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
BLACK, GREY, FAINT, NULL = "#1A1A1A", "#6B6B6B", "#D9D9D9", "#EBEBEB"

DPI = 160  # of PNG files: sharp where a screen has two dots a pixel
_ABOVE = ["#FFFFFF", "#A6D0EA", BLUE, "#012A4A"]
ATTENTION = LinearSegmentedColormap.from_list("attention", _ABOVE)
EXCESS = LinearSegmentedColormap.from_list("excess", ["#5E2700", VERMILION, "#F6C9A8", *_ABOVE])  # neutral at 0

_RC = mpl.RcParams({
    "font.family": "DejaVu Sans", "font.size": 9.5, "axes.titlesize": 10.5, "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 8.5, "figure.titlesize": 11.5,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK, "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK, "grid.color": FAINT, "grid.linewidth": 0.6, "lines.linewidth": 1.6,
    "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
    "text.parse_math": False,  # tokens contain dollar signs
    "svg.fonttype": "path", "svg.hashsalt": "andrea_jax",  # the same data gives the same bytes on every machine
})  # fmt: skip


class Figure(matplotlib.figure.Figure):
    """A matplotlib figure that notebooks show without pyplot and that writes itself as PNG and SVG."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.encode("png"), {"width": round(96 * self.get_figwidth())}

    def encode(self, kind: str) -> bytes:
        """The bytes of a "png" or an "svg" file, without date or program."""
        out = io.BytesIO()
        nothing = {"Software": None} if kind == "png" else dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with mpl.rc_context(_RC):
            self.draw_without_rendering()
            self.set_layout_engine("none")  # laid out once: the second format costs no second search
            self.savefig(out, format=kind, dpi=DPI, metadata=nothing)
        return out.getvalue()

    def small(self) -> bytes:
        """A PNG of 128 colours, for pages that a repository keeps: a third of the bytes."""
        out = io.BytesIO()
        Image.open(io.BytesIO(self.encode("png"))).convert("RGB").quantize(128).save(out, "png", optimize=True)
        return out.getvalue()


def styled[**P](draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Runs a figure function under the house style and leaves matplotlib's settings as they were."""

    @functools.wraps(draw)
    def with_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(_RC):
            return draw(*args, **kwargs)

    return with_style


def figure(width: float, height: float, title: str) -> Figure:
    """An empty figure, inches, with a left-aligned title wrapped to its width."""
    made = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    made.suptitle(textwrap.fill(printable(title), int(width * 9.6)), x=0.01, ha="left", weight="bold")
    return made


def grid(ax: Axes, axis: str = "y") -> None:
    ax.set_axisbelow(True)
    ax.grid(True, axis="x" if axis == "x" else "y")


def log_axis(ax: Axes, which: Literal["x", "y"]) -> None:
    """Log scale with plain numbers, at 1, 2 and 5 where the range is short (matplotlib's labels need mathtext)."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    ax.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 200 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def ink(background: np.ndarray) -> str:
    """Black or white, whichever reads better on the colour [3], red, green, blue (relative luminance, WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < 0.179 else "black"  # either way a contrast of 4.5 or more


def layer_colour(layer: int, n_layer: int) -> tuple[float, float, float, float]:
    """Viridis from the first layer (dark) to the last, without its palest end."""
    return mpl.colormaps["viridis"](0.85 * layer / max(n_layer - 1, 1))


def printable(text: str) -> str:
    """The text with characters the figure font lacks written as their code point, so that nothing is a hollow box."""
    return "".join(c if c == "\n" or _in_font(c) else f"U+{ord(c):04X}" for c in text)


@functools.cache
def _in_font(character: str) -> bool:
    path = font_manager.findfont("DejaVu Sans")
    return character.isprintable() and font_manager.get_font(path).get_char_index(ord(character)) != 0
