"""`wisp curve`, `wisp simulate` and `wisp import-trace`: what they say, draw and refuse."""

import json
import os
import re
import sys

import numpy as np
import pytest

from wisp.errors import ConfigError, UnknownPolicyError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.simulate import simulate
from wisp.trace import RoutingTrace
from wisp.workingset import MissCurve, miss_curves

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def trace():
    """Two layers, 60 steps of four of 16 experts, of which half repeat; prefills, of eight, come first."""
    rng = np.random.default_rng(1)
    layers = [[sorted(rng.choice(16, 8 if step < 5 else 4, replace=False)) for step in range(60)] for _ in range(2)]
    return RoutingTrace.from_steps(16, layers, [8] * 5 + [1] * 55)


@pytest.fixture
def file(trace, tmp_path):
    path = tmp_path / "run.npz"
    prefill = np.array([8] * 5 + [0] * 55, dtype=np.int64)
    Recording(trace, prefill_tokens=prefill, expert_bytes=1 << 20).save(path)
    return path


def row(text, first):
    """The cells of the row that begins with this."""
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [first]][:1]
    return line.split()


def test_curve_shows_the_misses_of_a_replay(wisp, file, trace):
    decode = trace.select(trace.tokens == 1)
    total = MissCurve.total(miss_curves(decode))
    ended = wisp("curve", file, "--slots", 7)
    assert ended.code == 0
    assert "run.npz: 55 decode steps (55 tokens) of 2 layers of 16 experts" in ended.out
    cells = row(ended.out, "7")
    assert cells[1] == f"{total.miss_ratio(7):.1%}"
    assert cells[2] == f"{simulate(decode, 7).total_faults / 55:.2f}"
    assert "layers, at 7 slots" in ended.out
    assert row(ended.out, "total")[3] == f"{total.miss_ratio(7):.1%}"


def test_every_phase_can_be_looked_at(wisp, file):
    assert "60 steps (95 tokens)" in wisp("curve", file, "--phase", "all").out
    assert "5 prefill steps (40 tokens)" in wisp("curve", file, "--phase", "prefill").out
    assert "at 8 slots (the widest step)" in wisp("curve", file, "--phase", "all").out


def test_simulate_shows_the_faults_of_a_replay(wisp, file, trace):
    decode = trace.select(trace.tokens == 1)
    ended = wisp("simulate", file, "--policies", "lru, fifo,belady", "--slots", "6,12")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    for slots, at in ((6, 0), (12, 1)):
        for policy in ("lru", "fifo", "belady"):
            replay = simulate(decode, slots, policy)
            cells = [line for line in lines if policy in line][at]
            cells = cells[cells.index(policy) :]
            assert cells[1] == f"{replay.total_faults:,}"
            assert cells[3] == f"{1 - replay.fault_ratio:.1%}"
            assert cells[4] == f"{replay.total_faults}MiB"


def test_bytes_come_from_the_trace_or_the_option_or_are_left_out(wisp, file, trace, tmp_path):
    faults = simulate(trace.select(trace.tokens == 1), 8).total_faults
    replay = ("simulate", file, "--policies", "lru", "--slots", 8)
    assert f"{faults}MiB" in wisp(*replay).out
    assert f"{faults}KiB" in wisp(*replay, "--expert-bytes", "1KiB").out
    ended = wisp(*replay, "--expert-bytes", "0B")
    assert (ended.code, ended.out) == (2, "")
    assert "--expert-bytes is 0B" in ended.err
    trace.save(tmp_path / "bare.npz")
    ended = wisp("simulate", tmp_path / "bare.npz", "--policies", "lru", "--slots", 8)
    assert ended.code == 0
    assert "iB" not in ended.out


@pytest.mark.parametrize(("suffix", "start"), [("png", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_are_drawn(wisp, file, tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    for words in (("curve", file, "--slots", 9), ("simulate", file, "--slots", "8,12")):
        figure = tmp_path / f"{words[0]}.{suffix}"
        assert wisp(*words, "-o", figure).code == 0
        assert figure.read_bytes().startswith(start)


def test_an_svg_says_what_it_shows(wisp, file, tmp_path):
    pytest.importorskip("matplotlib")
    wisp("curve", file, "--slots", 9, "-o", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in ("slots of each layer (experts)", "miss ratio (misses per reference)", "chosen: 9 slots", "(steps)"):
        assert words in text
    wisp("simulate", file, "--slots", "8,12", "-o", tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    for words in ("belady (bound)", "hit ratio (% of references)", "faults per step"):
        assert words in text


@pytest.fixture
def kv_file(trace, tmp_path):
    """Three conversations of five blocks, four turns each: 15 blocks keep all, 10 none, in between their beginnings."""
    names = np.concatenate([10 * (turn % 3) + np.arange(5)[::-1] for turn in range(12)]).astype(np.uint64)
    events = np.repeat(np.where(np.arange(12) < 3, KvEvent.INSERT, KvEvent.HIT), 5).astype(np.uint8)
    kv = KvTrace(names, np.repeat(np.arange(12) * 5, 5), events, np.zeros(0, dtype=np.int64), 16, 40)
    path = tmp_path / "kv.npz"
    prefill = np.array([8] * 5 + [0] * 55, dtype=np.int64)
    Recording(trace, prefill, np.ones(60, dtype=np.int64), 1 << 20, kv).save(path)
    return path


def test_a_figure_counts_slots_in_whole_numbers(wisp, file, tmp_path):
    pytest.importorskip("matplotlib")
    wisp("simulate", file, "--policies", "lru", "--slots", "8:12", "-o", tmp_path / "a.svg")
    ticks = re.findall(r'id="xtick_.*?<text[^>]*>([^<]*)</text>', (tmp_path / "a.svg").read_text(), re.S)
    assert "10" in ticks
    assert not [tick for tick in ticks if "." in tick]


@pytest.mark.parametrize("words", [("curve", "--kv-blocks", 12), ("simulate", "--slots", 8, "--kv-blocks", "12,14,15")])
def test_kv_blocks_are_shown_by_the_size_of_the_pool(wisp, kv_file, words):
    ended = wisp(words[0], kv_file, *words[1:])
    assert ended.code == 0
    _, table = ended.out.split("KV blocks of 16 tokens")
    assert row(table, "12")[1:] == ["192", "18", "27", "60.0%"]  # the first two blocks of each five
    assert row(table, "15")[1:] == ["240", "45", "0", "0.0%"]
    assert "60 references: 45 come back" in ended.out


def test_curve_and_replay_of_kv_agree(wisp, kv_file):
    tables = [json.loads(wisp(*words, kv_file, "--json").out)["kv"]["table"] for words in (("curve",), ("simulate",))]
    assert tables[0] == tables[1]
    assert tables[0][-1]["capacity_misses"] == 0


def test_json_says_what_the_tables_say(wisp, file, trace):
    decode = trace.select(trace.tokens == 1)
    total = MissCurve.total(miss_curves(decode))
    ended = wisp("curve", file, "--json")
    found = json.loads(ended.out)
    assert [each["slots"] for each in found["slots"]] == list(range(4, 17))
    assert [each["miss_ratio"] for each in found["slots"]] == [total.miss_ratio(slots) for slots in range(4, 17)]
    assert found["kv"] is None
    assert [each["steps"] for each in found["windows"]] == [1, 4, 16]
    (replay,) = json.loads(wisp("simulate", file, "--policies", "fifo", "--slots", 6, "--json").out)["replays"]
    assert (replay["slots"], replay["policy"]) == (6, "fifo")
    assert replay["faults"] == simulate(decode, 6, "fifo").total_faults
    assert replay["copied_bytes"] == replay["faults"] << 20


@pytest.mark.parametrize("command", ["curve", "simulate"])
def test_kv_pools_that_make_no_sense_are_refused(wisp, file, kv_file, command):
    for path, size, told in ((kv_file, 0, "0 blocks holds nothing"), (file, 4, "no KV references")):
        ended = wisp(command, path, "--kv-blocks", size)
        assert (ended.code, ended.out) == (2, "")
        assert told in ended.err


def test_the_figure_shows_kv_where_it_was_recorded(wisp, kv_file, file, tmp_path):
    pytest.importorskip("matplotlib")
    wisp("curve", kv_file, "--kv-blocks", 10, "-o", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in ("KV pool (tokens)", "45 references that come back", "chosen: 160 tokens, 100.0%"):
        assert words in text
    wisp("curve", file, "-o", tmp_path / "b.svg")
    assert "KV pool" not in (tmp_path / "b.svg").read_text()


def test_slots_are_lists_and_ranges():
    from wisp.cli.sizes import parse_sizes

    assert parse_sizes("16,8,8", "--slots") == [8, 16]
    assert parse_sizes("8:32", "--slots") == [8, 11, 14, 17, 20, 23, 26, 29, 32]
    assert parse_sizes("8:10", "--slots") == [8, 9, 10]
    assert parse_sizes("8:32:12", "--slots") == [8, 20, 32]
    for wrong in ("", "many", "8:", "32:8", "8:32:0", "8:9:1:1", "8;9"):
        with pytest.raises(ConfigError, match="--slots takes"):
            parse_sizes(wrong, "--slots")


def test_policies_are_known_ones():
    from wisp.cli.simulate import parse_policies

    assert parse_policies("lru,belady,lru") == ["lru", "belady"]
    with pytest.raises(UnknownPolicyError, match=r"'mru'; known are lru, .*belady"):
        parse_policies("lru,mru")


@pytest.mark.parametrize("command", ["curve", "simulate"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--slots", 3), "its widest step requires 4 experts of a layer, and a layer has 16; give 4 to 16"),
        (("--slots", 17), "give 4 to 16"),
        (("--slots", 7, "--phase", "all"), "give 8 to 16"),
        (("-o", "figure.jpg"), ".png, .svg, .pdf"),
        (("-o", "no/such/folder/figure.png"), "make it first"),
    ],
)
def test_what_a_trace_cannot_answer_is_refused(wisp, file, command, options, told):
    ended = wisp(command, file, *options)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("command", ["curve", "simulate"])
def test_files_that_are_no_trace_are_refused(wisp, file, trace, tmp_path, command):
    bad = tmp_path / "bad.npz"
    for content, told in (
        (b"", "cut short at 0 bytes"),
        (file.read_bytes()[:-50], "damaged or cut short"),
        (b"step,layer,experts\n", "is not a routing trace"),
    ):
        bad.write_bytes(content)
        ended = wisp(command, bad)
        assert ended.code == 2
        assert told in ended.err
    np.savez(bad, weights=np.zeros(3))
    assert "not a routing trace" in wisp(command, bad).err
    trace.select(np.zeros(60, dtype=bool)).save(bad)
    assert "the trace is empty" in wisp(command, bad).err
    trace.save(bad)
    assert "does not tell prefill from decode" in wisp(command, bad, "--phase", "decode").err
    assert "cannot be read" in wisp(command, tmp_path / "none.npz").err


def test_a_policy_that_does_not_exist_is_told(wisp, file):
    ended = wisp("simulate", file, "--policies", "lru,mru")
    assert ended.code == 2
    assert "unknown replacement policy 'mru'" in ended.err


@pytest.mark.parametrize("command", ["curve", "simulate"])
def test_a_figure_that_cannot_be_written_is_told_before_anything_is_drawn(wisp, file, tmp_path, monkeypatch, command):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("wisp.cli.trace_file.os.access", lambda _, mode: mode != os.W_OK)  # root may write anywhere
    ended = wisp(command, file, "-o", tmp_path / "figure.svg")
    assert (ended.code, ended.out) == (2, "")
    assert "figure.svg cannot be written" in ended.err


def test_a_figure_without_matplotlib_is_told_with_the_remedy(wisp, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = wisp("curve", file, "-o", "figure.png")
    assert ended.code == 2
    assert "pip install 'wisp-moe[plots]'" in ended.err
    assert wisp("curve", file).code == 0


def test_a_trace_is_imported(wisp, tmp_path):
    (tmp_path / "a.csv").write_text("step,layer,experts\n0,0,1 2\n0,1,3\n1,0,2 3\n1,1,0\n")
    ended = wisp("import-trace", tmp_path / "a.csv", "-o", tmp_path / "a.npz", "--experts", 8)
    assert ended.code == 0
    assert re.search(r"2 steps of 2 layers of 8 experts", ended.out)
    assert RoutingTrace.load(tmp_path / "a.npz").layer(0) == [(1, 2), (2, 3)]
    assert wisp("curve", tmp_path / "a.npz", "--slots", 2).code == 0
    ended = wisp("import-trace", tmp_path / "a.csv", "-o", tmp_path / "no" / "a.npz")
    assert ended.code == 2
    assert "name a file" in ended.err
