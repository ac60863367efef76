"""How far the engine keeps values real, and where it starts to answer for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest tensors, in elements, that the engine holds or computes for real.

    Integers and booleans stay real far longer than floats, because they steer control flow. Above a limit a tensor is a
    ghost, and asking it for values is an oracle answer.
    """

    real_float: int = 1 << 20
    real_integer: int = 1 << 23
    eager_mask: int = 1 << 16  # a larger comparison of activations stays a ghost: usually only `where` reads it
    stand_in: int = 1 << 24  # total input of an op that runs its CPU kernel on invented values
    routing: int = 1 << 20  # above it `topk` indices stay a ghost (sparse-attention indexers)
    same_site_answers: int = 1000  # a comparison asked this often at one line is a loop: it gets the other answer
