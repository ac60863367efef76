"""Tensor metas out of a document, each distinct one made once."""

from __future__ import annotations

from llm_perf_opt.core.callgraph.json_fields import integers, record, text
from llm_perf_opt.core.callgraph.records import Json, TensorMeta

_KEYS = ("shape", "dtype", "device")


class MetaReader:
    """Reads `{"shape", "dtype", "device"}` objects; the explicit observations repeat a few metas many times."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], str, str], TensorMeta] = {}

    def __call__(self, value: Json, where: str) -> TensorMeta:
        """The one meta of this content."""
        fields = record(value, where, _KEYS)
        # Checked before it is looked up: (True,) would find the meta of (1,).
        key = (
            integers(fields["shape"], f"{where}.shape"),
            text(fields["dtype"], f"{where}.dtype"),
            text(fields["device"], f"{where}.device"),
        )
        meta = self._known.get(key)
        if meta is None:
            meta = self._known[key] = TensorMeta(*key)
        return meta
