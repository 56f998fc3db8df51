"""What attention gives, kept for the backward pass where the rest of a block is computed again (compute.remat).

z and lse are all that a fused backward needs besides q, k and v, and the dearest to compute again. A backend marks them
inside its forward rule: marked further out, they would be other arrays than those that its backward reads.
"""

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive

NAME = "attention"
# jax's own rule calls cuDNN's kernel, where nothing can be marked: its outputs are kept as a whole
CUDNN = ("dot_product_attention_fwd", "dot_product_attention_fwd_wrapper")


def kept[T](outputs: T) -> T:
    """`outputs` (z, lse, ...) as they are, marked."""
    return jax.tree.map(lambda x: checkpoint_name(x, NAME), outputs)


def policy(primitive: Primitive, *_: object, **params: object) -> bool:
    """For `jax.checkpoint`: True for what is kept, False for what is computed again."""
    return primitive.name in CUDNN or (primitive.name == "name" and params["name"] == NAME)
