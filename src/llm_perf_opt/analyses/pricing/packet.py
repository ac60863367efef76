"""The name under which an op is priced: overloads and in-place forms cost what their plain form costs."""

from __future__ import annotations


def packet_of(name: str) -> str:
    """`aten.add` for `aten.add_.Tensor`; a higher-order op keeps its bare name, a dunder its underscores."""
    namespace, dot, rest = name.removeprefix("higher_order.").partition(".")
    packet = rest.partition(".")[0]
    if packet.endswith("_") and not packet.endswith("__"):
        packet = packet[:-1]
    return f"{namespace}{dot}{packet}"
