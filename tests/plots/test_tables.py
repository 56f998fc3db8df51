import io

import plot_data
from rich.console import Console

from andrea_jax import plots, runs
from andrea_jax.config import Experiment, Model


def printed(table, width: int = 80) -> str:
    out = io.StringIO()
    Console(width=width, file=out).print(table)
    return out.getvalue()


def line(text: str, start: str) -> list[str]:
    return next(row for row in text.splitlines() if row.startswith(start)).split()


def test_the_heads_table_says_everything_about_the_best_head_in_80_columns():
    text = printed(plots.heads_table(plot_data.profile().best))
    assert "…" not in text.replace("a head that …", "")
    assert line(text, "induction ") == ["induction", "1.1", "0.81", "[0.78,", "0.84]", "0.03", "0.04", "20.5k"]
    assert "looks just after its copy" in text


def test_an_undefined_probe_has_its_reason_and_no_head():
    text = printed(plots.heads_table(plot_data.profile(undefined=("bracket",)).best))
    assert line(text, "bracket ") == ["bracket", "–", "–", "–", "–", "–", "0"]
    assert "no query has a target" in text
    assert "nan" not in text


def test_the_table_of_all_heads_fits_80_columns_and_starts_with_the_baselines():
    profile = plot_data.profile(undefined=("bracket",))
    text = printed(plots.all_heads_table(profile.table))
    assert "…" not in text and "nan" not in text
    assert line(text, "uniform")[1:10] == ["0.12", "0.11", "0.12", "0.07", "0.05", "0.04", "0.03", "0.06", "–"]
    assert line(text, "0.3")[1] == "0.93" and line(text, "0.3")[-2] == "0.93@4"
    assert len([row for row in text.splitlines() if row[:2] in ("0.", "1.")]) == 8


def test_parameter_shares_add_up_to_the_total():
    text = printed(plots.params_table({"embeddings": 1_000, "W_Q [all]": 3_000}))
    assert line(text, "embeddings") == ["embeddings", "1,000", "25.0%"]
    assert line(text, "W_Q [all]")[2:] == ["3,000", "75.0%"]
    assert line(text, "total") == ["total", "4,000", "100.0%"]


def test_the_table_of_runs_shows_how_far_each_came(tmp_path):
    experiment = Experiment(model=Model(vocab_size=257, seq_len=1024, d_model=64, n_layer=3, n_head=2))
    run = runs.create(tmp_path, experiment, "first")
    assert line(printed(plots.runs_table([run])), "first")[-4:] == ["0", "of", "1000", "–"]
    for row in plot_data.metrics(steps=50):
        run.append_metrics(row)
    assert line(printed(plots.runs_table([run])), "first")[-4:] == ["50", "of", "1000", "5.336"]
