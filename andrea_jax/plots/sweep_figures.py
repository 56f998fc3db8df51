"""What a swept key changes, beside what another seed changes."""

import statistics
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from andrea_jax.plots.style import BLACK, FAINT, GREY, KINDS, Figure, figure, grid, styled
from andrea_jax.seeds import mean

THOUSANDS = 10_000  # from here on numbers of an axis are grouped


def effects(table: pd.DataFrame) -> pd.DataFrame:
    """How far a measure moves over the settings, and over the seeds; a row a measure, in the table's order.

    table: columns setting, seed, measure, value; every setting with the same seeds. Columns measure · lowest, highest:
    the settings with the lowest and the highest mean over seeds · low, high: these means · difference: high − low ·
    seeds: the largest difference between two seeds of one setting · beyond: every seed of `highest` lies above every
    seed of `lowest`; with one seed there is nothing to compare with, and it is null.
    """
    rows = []
    for measure, by_setting in _values(table).items():
        means = {setting: statistics.fmean(seeds.values()) for setting, seeds in by_setting.items()}
        lowest, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        spread = max(max(seeds.values()) - min(seeds.values()) for seeds in by_setting.values())
        above = min(by_setting[highest].values()) > max(by_setting[lowest].values())
        several = len(by_setting[lowest]) > 1
        rows.append({"measure": measure, "lowest": lowest, "low": means[lowest], "highest": highest,
                     "high": means[highest], "difference": means[highest] - means[lowest],
                     "seeds": spread if several else None, "beyond": above if several else None})  # fmt: skip
    return pd.DataFrame(rows)


def _values(table: pd.DataFrame) -> dict[str, dict[object, dict[object, float]]]:
    """measure -> setting -> seed -> value, in the table's order."""
    found: dict[str, dict[object, dict[object, float]]] = {}
    for row in table.to_dict("records"):
        found.setdefault(row["measure"], {}).setdefault(row["setting"], {})[row["seed"]] = row["value"]
    return found


def finding(table: pd.DataFrame, key: str) -> str:
    """Whether the first measure moves with the key by more than with the seed."""
    return effect(effects(table).to_dict("records")[0], key)


def effect(row: Mapping, key: str) -> str:
    """One row of `effects` in words."""
    moves = f"from {row['low']:.2f} ({key} = {row['lowest']}) to {row['high']:.2f} ({key} = {row['highest']})"
    if row["beyond"] is None:
        return f"{row['measure']}: {moves}; one seed, so nothing says whether that is more than chance"
    verdict = "every seed agrees" if row["beyond"] else "but the seeds overlap"
    return f"{row['measure']}: {moves}; {verdict} (seeds differ by up to {row['seeds']:.2f})"


@styled
def sweep(table: pd.DataFrame, key: str, title: str | None = None) -> Figure:
    """A panel a measure: every seed a point, the mean over seeds a line with its 95% t-interval, against the values of
    the swept key.

    table: columns setting (the key's value), seed, measure (with its unit, as the axis shall say it), value, baseline
    (drawn dashed; null for none). Settings stand in the table's order, evenly spaced; a seed may lack some. title: in
    place of what `effects` finds in the first measure.
    """
    values = _values(table)
    title = finding(table, key) if title is None else title
    made = figure(9.4, 0.9 + 2.5 * -(-len(values) // 2), title[0].upper() + title[1:])
    axes = made.subplots(-(-len(values) // 2), 2, squeeze=False).ravel()
    for ax, (measure, by_setting) in zip(axes, values.items(), strict=False):
        baselines = table.loc[table["measure"] == measure].drop_duplicates("setting")["baseline"].to_numpy(float)
        _panel(ax, by_setting, baselines)
        ax.set(xlabel=key, ylabel=measure)
    for ax in axes[len(values) :]:
        ax.set_axis_off()
    names = {name: drawn for ax in axes for drawn, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    axes[-1].legend(names.values(), names, loc="upper left" if len(axes) > len(values) else "best", fontsize=7.5)
    return made


def _panel(ax: Axes, by_setting: dict[object, dict[object, float]], baselines: np.ndarray) -> None:
    x, means = range(len(by_setting)), [mean(list(of_seeds.values())) for of_seeds in by_setting.values()]
    ax.plot(x, [m.value for m in means], "-", color=GREY, linewidth=1, label="mean over seeds")
    wide = {"fmt": "none", "ecolor": FAINT, "elinewidth": 6, "label": "95% interval of the mean (may leave the panel)"}
    ax.errorbar(x, [m.value for m in means], [m.high - m.value for m in means], **wide)
    names = list(dict.fromkeys(seed for of_seeds in by_setting.values() for seed in of_seeds))
    for i, seed in enumerate(names):
        at = np.array(x) + 0.06 * (i - (len(names) - 1) / 2)  # side by side, so that equal values are seen
        of_seed = [of_seeds.get(seed, np.nan) for of_seeds in by_setting.values()]
        ax.plot(at, of_seed, "osD^v"[i % 5], color=KINDS[i % len(KINDS)], markersize=5, label=f"seed {seed}")
    if np.isfinite(baselines).all():
        ax.plot(x, baselines, "--", color=BLACK, linewidth=1, label="uniform attention")
    _limit(ax, np.array([value for of_seeds in by_setting.values() for value in of_seeds.values()], float))
    ax.set_xticks(x, [str(setting) for setting in by_setting])
    ax.set_xlim(-0.4, len(by_setting) - 0.6)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    if max(ax.get_ylim()) >= THOUSANDS:
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    grid(ax)


def _limit(ax: Axes, values: np.ndarray) -> None:
    """Lets the interval of two or three seeds run out of a panel rather than squeeze its points into a line."""
    span = max(np.nanmax(values) - np.nanmin(values), 1e-6)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, np.nanmin(values) - span), min(high, np.nanmax(values) + span))
