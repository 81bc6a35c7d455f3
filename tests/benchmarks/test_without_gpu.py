"""A benchmark that fills a disk or memory for a GPU does not begin without one."""

import sys

import pytest


@pytest.mark.parametrize("path", ["load_time/run.py", "shapes/run.py"])
def test_nothing_is_written_where_there_is_no_gpu(script, monkeypatch, capsys, path):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [path])
    with pytest.raises(SystemExit) as end:
        script(path).main()
    assert end.value.code == 2
    assert "there is none here; --tiny tries it out" in capsys.readouterr().err
