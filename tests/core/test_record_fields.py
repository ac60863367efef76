from __future__ import annotations

from array import array
from dataclasses import dataclass
from types import MappingProxyType

import pytest
from msgspec import Struct

from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.reading import all_filled, filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    name: str
    width: int
    height: int
    colour: str = "red"

    @property
    def area(self) -> int:
        return self.width * self.height


class AreaRow(Struct, frozen=True, kw_only=True):
    name: str
    area: float
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    name: str
    width: int = 7


def test_fields_and_properties_of_the_same_name_are_taken_as_they_are_and_what_is_given_goes_first() -> None:
    row = filled(AreaRow, Rectangle(name="a", width=3, height=4), place="here")
    assert row == AreaRow(name="a", area=12, place="here")
    assert type(row.area) is int, "a value stays what it is, so that a file has the same digits"
    assert filled(Named, Rectangle(name="a", width=3, height=4), name="b") == Named(name="b", width=3)


def test_a_name_that_neither_has_and_one_that_the_record_lacks_are_refused() -> None:
    source = Rectangle(name="a", width=3, height=4)
    with pytest.raises(AttributeError, match="place"):  # also where the record has a default
        filled(AreaRow, source)
    with pytest.raises(TypeError, match="colour"):
        filled(Named, source, colour="blue")


def test_rows_of_several_records_keep_their_order() -> None:
    sources = [Rectangle(name=name, width=1, height=1) for name in "ba"]
    assert [one.name for one in all_filled(Named, sources)] == ["b", "a"]


def test_a_mapping_that_is_no_dict_is_written_as_one_and_nothing_else_is() -> None:
    assert plain_values({"sizes": MappingProxyType({"a": 1})}) == {"sizes": {"a": 1}}
    with pytest.raises(TypeError, match="mapping"):
        plain_values({"sizes": array("q")})
