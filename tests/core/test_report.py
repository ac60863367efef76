from __future__ import annotations

import pytest

from llm_perf_opt.core.report import Cell, Column, Kind, Table

COLUMNS = (Column("stage"), Column("FLOPs", Kind.FLOPS))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (("sam",), "2 columns, a row has 1 cells"),
        (("sam", "12"), "'FLOPs'"),
        ((7, 12), "'stage'"),
    ],
)
def test_a_cell_of_the_wrong_kind_is_refused(row: tuple[Cell, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Table(title="costs", columns=COLUMNS, rows=(row,))
    with pytest.raises(ValueError, match=complaint):
        Table(title="costs", columns=COLUMNS, rows=(), footer=row)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two columns of one name"):
        Table(title="costs", columns=(Column("calls"), Column("calls", Kind.COUNT)), rows=())


def test_an_unknown_cell_is_allowed_in_any_column() -> None:
    assert Table(title="costs", columns=COLUMNS, rows=((None, None),)).rows == ((None, None),)
