"""The benchmark of tables runs the commands on each, and scores simpler methods on the same rows."""

import pytest

from benchmarks.tables import PUBLIC, TABLES, AbsentError, Table, measure, school, visits

SMALL = [
    Table("visits", visits("came", 6, 8, 12), "person", "came"),
    Table("spending", visits("spent", 6, 8, 12), "person", "spent"),
]


@pytest.mark.parametrize("table", SMALL, ids=lambda table: table.name)
def test_a_table_goes_through_all_commands_with_defaults(table, tmp_path):
    frame = table.make()
    frame.write_csv(tmp_path / "table.csv")
    found = measure(tmp_path / "table.csv", table.user, table.label, tmp_path, "--updates", 20, "--graph", "none")
    assert (found["rows"], found["users"]) == (frame.height, 6)
    # Row numbers, the constant and the notes are left out.
    assert found["columns"] == 4
    assert found["label"] == ("2 classes" if table.label == "came" else "numbers")
    assert all(found[name] <= 1.0 for name in ("ours", "alone", "one for all", "commonest"))


def test_the_names_of_tables_differ():
    names = [table.name for table in TABLES]
    assert len(set(names)) == len(names) >= 12


def test_a_public_table_goes_through_all_commands_with_defaults(tmp_path):
    table = next(table for table in PUBLIC if table.name == "bacteria")
    try:
        table.make().write_csv(tmp_path / "table.csv")
    except AbsentError as absent:
        pytest.skip(str(absent))
    found = measure(tmp_path / "table.csv", table.user, table.label, tmp_path)
    assert (found["rows"], found["users"], found["label"]) == (220, 50, "2 classes")


def test_groups_of_columns_become_text_again():
    try:
        frame = school("score")
    except AbsentError as absent:
        pytest.skip(str(absent))
    assert frame["year"].unique().sort().to_list() == ["1985", "1986", "1987"]
    assert frame["band"].null_count() < frame.height / 10
