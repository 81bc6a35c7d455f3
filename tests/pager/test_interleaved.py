"""Programs that decide and copy side by side decide as one does, whichever of them is ahead."""

import pytest


@pytest.fixture(scope="module")
def reports(run_script):
    return run_script("run_interleaved.py")


@pytest.mark.parametrize("copied", ["rows", "pieces"])
def test_page_tables_bytes_and_counts_are_the_host_s(reports, copied):
    for report in reports[copied]:
        assert report["wrong"] == []
        assert report["routing"]
        assert report["faults"][0] == report["faults"][1]
        assert report["evictions"][0] == report["evictions"][1]
        assert report["steps"] == [4, 4]
        assert report["direct"] > 0
        assert sum(report["evictions"][0]) > 0


def test_state_that_is_written_before_all_have_read_it_is_found(reports):
    (report,) = reports["too early"]
    assert report["wrong"]
