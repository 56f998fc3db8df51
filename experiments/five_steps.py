"""Are the five steps of attention in the compiled program, by name and once a layer (C14)?

    python experiments/five_steps.py configs/andrea-120m.toml

Counts the matrix products under each name in the forward pass as XLA gets it, and looks for the names in what it makes
of that: those are what a profile shows. Their shares of a step's time are in `andrea bench train`. Writes C14.json to
--out.
"""

import argparse
import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from andrea_jax import claims, config_files, model
from andrea_jax.config import Model

STEPS = ("W_Q", "W_K", "W_V", "W_QKV", "attention", "W_O")
SEQ = 64  # of the program: the number of products does not depend on it
_PRODUCT = re.compile(r'= \S+ dot\(.*op_name="([^"]*)"')
_NAME = re.compile(r'op_name="([^"]*)"')


def products(config: Model, form: str) -> dict[str, int]:
    """Step -> matrix products in the forward pass, of steps whose name the compiled program still has; attention has
    two a layer, q·kᵀ and pattern·v."""
    config = dataclasses.replace(config, projection="fused", projection_form=form)
    tokens = jax.ShapeDtypeStruct((1, min(SEQ, config.seq_len)), jnp.int32)

    def forward(params: model.Params, tokens: jax.Array) -> jax.Array:
        return model.bind(config, params, backend="reference")(tokens)

    lowered = jax.jit(forward).lower(model.abstract(config), tokens)
    compiled = lowered.compile().as_text()
    assert compiled is not None
    found = Counter(_steps(_PRODUCT, lowered.as_text("hlo", debug_info=True)))
    kept = set(_steps(_NAME, compiled))
    return {step: found[step] for step in STEPS if step in kept}


def _steps(pattern: re.Pattern, text: str) -> list[str]:
    return [step for name in pattern.findall(text) for step in STEPS if step in name.split("/")]


def finding(config: Model) -> claims.Finding:
    three, one = products(config, "three"), products(config, "one")
    n = config.n_layer
    five = three == {"W_Q": n, "W_K": n, "W_V": n, "attention": 2 * n, "W_O": n}
    fewer = one == {"W_QKV": n, "attention": 2 * n, "W_O": n}
    shown = ", ".join(f"{step} {count}" for step, count in three.items())
    fused = ", ".join(f"{step} {count}" for step, count in one.items())
    sentence = f"products in {n} layers, W_Q, W_K and W_V apart: {shown}; side by side: {fused}"
    if five and fewer:
        verdict = "holds if W_Q, W_K and W_V are multiplied apart; side by side they are one step, and three are left"
    else:
        verdict = claims.HOLDS if five else claims.DOES_NOT
    return claims.Finding("C14", verdict, sentence, {"n_layer": n, "three": three, "one": one})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("results", "claims"))
    args = parser.parse_args(argv)
    return claims.report([finding(config_files.load(args.config, args.overrides).model)], args.out)


if __name__ == "__main__":
    raise SystemExit(main())
