"""How many parameters has attention, a layer and in all, and what share of the model is that (C5)?

    python experiments/parameters.py

Counts the parameter trees of the family, of which only the shapes are made. Writes C5.json to --out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from andrea_jax import claims, config_files
from andrea_jax.counting import parameters_by_part

FAMILY = ("andrea-12m", "andrea-120m", "andrea-480m")
LESSON = "andrea-120m"
QUARTER = (0.225, 0.275)  # "about a quarter"; the lesson does not say how near
IN_ALL = 28.3  # millions, and 28.3M is all digits it gives


def count(config: Path) -> dict:
    """attention_a_layer, attention, total, share."""
    model = config_files.load(config).model
    parts = parameters_by_part(model)
    attention = sum(parts[name] for name in ("W_Q", "W_K", "W_V", "W_O"))
    total = sum(parts.values())
    return {"attention_a_layer": attention // model.n_layer, "formula": 4 * model.d_model**2, "attention": attention,
            "total": total, "share": attention / total}  # fmt: skip


def finding(found: dict[str, dict]) -> claims.Finding:
    lesson = found[LESSON]
    counted = all(row["attention_a_layer"] == row["formula"] for row in found.values())
    in_all = round(lesson["attention"] / 1e6, 1) == IN_ALL
    quarter = QUARTER[0] <= lesson["share"] <= QUARTER[1]
    shares = ", ".join(f"{row['share']:.1%} of {name}" for name, row in found.items() if name != LESSON)
    sentence = (f"{lesson['attention_a_layer']:,} a layer, {lesson['attention']:,} in all, {lesson['share']:.1%} of "
                f"{lesson['total']:,}; {shares}")  # fmt: skip
    if counted and in_all and not quarter:
        verdict = f"holds if {lesson['share']:.1%} is about a quarter"
    else:
        verdict = claims.HOLDS if counted and in_all else claims.DOES_NOT
    return claims.Finding("C5", verdict, sentence, found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, default=Path("configs"))
    parser.add_argument("--out", type=Path, default=Path("results", "claims"))
    args = parser.parse_args(argv)
    return claims.report([finding({name: count(args.configs / f"{name}.toml") for name in FAMILY})], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
