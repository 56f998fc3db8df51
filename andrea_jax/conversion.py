"""The same model with its projections stored the other way."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from andrea_jax.config import FORMS, Model
from andrea_jax.errors import UserError, did_you_mean
from andrea_jax.model import Params
from andrea_jax.projections import fuse_heads, split_heads

type ProjectionName = Literal["per_head", "fused"]
type Form = Literal["einsum", "loop", "one", "three"]


def convert(
    config: Model, params: Params, projection: ProjectionName, form: Form | None = None
) -> tuple[Model, Params]:
    """(config, params) with every layer's attention weights in another projection: copied, never computed.

    Works on anything shaped like the parameters, so gradients convert as well. Converting back gives the same bits.
    UserError for a projection, or a form of it, that there is not.
    """
    _refuse_unknown("projection", projection, [*FORMS])
    if form is not None:
        _refuse_unknown("form", form, FORMS[projection])
    target = dataclasses.replace(config, projection=projection, projection_form=form)
    layers = {}
    for name, layer in params["layers"].items():
        weights, n_head = layer["attention"]["projection"], config.layer_heads[int(name)]
        if config.projection == "fused":
            weights = split_heads(weights, n_head, n_head // config.group)
        if projection == "fused":
            weights = fuse_heads(weights, target.form)
        layers[name] = {**layer, "attention": {"projection": weights}}
    return target, {**params, "layers": layers}


def _refuse_unknown(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise UserError(f'convert: {name} = "{value}": must be one of {", ".join(choices)}{hint}')
