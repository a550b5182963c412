"""Figures as text."""

from eval_dagster.texts.figures import counted, dollars, file_size, interval, number, p_equals, p_value


def test_scores_and_intervals_have_three_decimals_and_a_dash_if_unknown() -> None:
    assert [number(0.28333), number(-0.1, "+"), number(0.1, "+"), number(None)] == ["0.283", "-0.100", "+0.100", "–"]
    assert [interval(0.185, 0.4082), interval(-0.1, 0.2, "+")] == ["0.185 to 0.408", "-0.100 to +0.200"]
    assert interval(None, None) == interval(0.1, None) == "–"


def test_small_p_values_are_bounded() -> None:
    assert [p_value(0.03), p_value(0.00005), p_value(None)] == ["0.03", "< 0.0001", "–"]
    assert [p_equals(0.03), p_equals(0.00005)] == ["= 0.03", "< 0.0001"]


def test_counts_costs_and_sizes_have_their_unit() -> None:
    assert [counted(1, "row"), counted(1200, "row")] == ["1 row", "1,200 rows"]
    assert [dollars(123.456), dollars(0.5), dollars(0.000012), dollars(0)] == ["$123.46", "$0.5000", "$0.000012", "$0.0000"]
    assert [file_size(1), file_size(999), file_size(1500), file_size(2.5e6)] == ["1 byte", "999 bytes", "1.5 kB", "2.5 MB"]
