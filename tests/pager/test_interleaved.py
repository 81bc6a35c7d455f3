"""Programs that decide and copy side by side decide as one does, whichever of them is ahead."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    results = tmp_path_factory.mktemp("interleaved") / "results.json"
    script = Path(__file__).with_name("run_interleaved.py")
    done = subprocess.run([sys.executable, script, results], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(results.read_text())


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
