"""How many experts a batch of tokens touches when nothing is known of the router but its sizes."""

from __future__ import annotations


def expected_distinct(experts: int, chosen: int, tokens: int) -> float:
    """Expected number of experts with at least one token, each of `tokens` drawing `chosen` of `experts` uniformly.

    `experts * (1 - (1 - chosen / experts) ** tokens)`: 8 of 128 and 8 tokens touch 51.6.
    """
    if experts <= 0 or chosen >= experts:
        return float(max(experts, 0)) if tokens else 0.0
    return experts * (1 - (1 - chosen / experts) ** tokens)
