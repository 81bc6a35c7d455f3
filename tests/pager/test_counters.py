"""Counters are readable by any process while they are written; a file that holds none is an error."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from wisp.errors import StatsError
from wisp.pager.counters import FIELDS, Counters, PoolFacts, hit_ratio, merged, merged_layers

FACTS = PoolFacts(num_experts=16, expert_slots=5, expert_bytes=12288, kernel="K", device="cpu")
AMOUNTS = {"steps": 1, "references": 4, "faults": 3, "bytes_moved": 3 * 12288, "evictions": 2, "waves": 1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "rank0.counters"


def make(path=None, layers=("a", "b"), facts=FACTS):
    counters = Counters(facts, capacity=4, path=path)
    for name in layers:
        counters.add_layer(name, page_locked=True)
    return counters


@pytest.mark.parametrize("in_a_file", [True, False])
def test_what_is_added_is_there(path, in_a_file):
    counters = make(path if in_a_file else None)
    counters.add(1, **AMOUNTS, copy_seconds=0.25)
    counters.add(1, faults=1)
    assert counters.layer(0) == dict.fromkeys(FIELDS, 0.0)
    assert counters.layer(1) == {**AMOUNTS, "faults": 4, "copy_seconds": 0.25}
    counters.add(0, faults=2)
    assert counters.total()["faults"] == 6
    assert counters.values.shape == (2, len(FIELDS))
    counters.reset()
    assert not counters.values.any()


def test_a_field_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError):
        make().add(0, fault=1)


def test_a_reader_sees_what_is_written_after_it_has_opened(path):
    writer = make(path)
    reader = Counters.open(path)
    assert (reader.layers, reader.facts, reader.page_locked) == (("a", "b"), FACTS, True)
    writer.add(0, **AMOUNTS)
    assert reader.layer(0) == writer.layer(0)
    writer.reset()
    assert not reader.values.any()


def test_a_reader_cannot_write(path):
    make(path)
    with pytest.raises(ValueError, match="read-only"):
        Counters.open(path).add(0, faults=1)


def test_another_process_reads_while_this_one_writes(path):
    writer = make(path)
    script = (
        "import sys; from pathlib import Path; from wisp.pager.counters import Counters\n"
        "reader = Counters.open(Path(sys.argv[1]))\n"
        "print(reader.layers, reader.layer(1)['faults'], flush=True)\n"
        "input()\n"
        "print(reader.layer(1)['faults'], flush=True)\n"
    )
    writer.add(1, faults=7)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "('a', 'b') 7.0\n"
        writer.add(1, faults=1e9)
        assert other.communicate("\n")[0] == "1000000007.0\n"
    assert other.returncode == 0


def test_one_layer_out_of_page_locked_memory_shows(path):
    counters = make(path)
    counters.add_layer("c", page_locked=False)
    counters.add_layer("d", page_locked=True)
    assert not Counters.open(path).page_locked


def test_a_new_file_replaces_an_old_one_and_leaves_its_readers_alone(path):
    make(path).add(0, faults=5)
    old = Counters.open(path)
    new = make(path, layers=("x",))
    new.add(0, faults=1)
    assert old.layer(0)["faults"] == 5
    assert Counters.open(path).layers == ("x",)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("missing", None),
        ("empty", b""),
        ("foreign", b"PK\x03\x04" + bytes(1 << 17)),
        ("magic only", b"WISPCNT1"),
        ("header cut", lambda whole: whole[:40]),
        ("no rows", lambda whole: whole[: 1 << 16]),
        ("rows cut", lambda whole: whole[:-1]),
        ("a row missing", lambda whole: whole[: (1 << 16) + 8 * len(FIELDS)]),
        ("not json", lambda whole: whole[:8] + b"?" + whole[9:]),
        ("other facts", lambda whole: whole.replace(b"expert_slots", b"expert_slotz")),
        ("no layers", lambda whole: whole.replace(b'"layers"', b'"leyers"')),
        ("a list", lambda whole: whole[:8] + b"[]".ljust((1 << 16) - 8, b"\0") + whole[1 << 16 :]),
        ("later version", lambda whole: b"WISPCNT2" + whole[8:]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_holds_no_counters_is_an_error(path, name, damage):
    make(path)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage if isinstance(damage, bytes) else damage(path.read_bytes()))
    with pytest.raises(StatsError, match=r"rank0\.counters holds no"):
        Counters.open(path)


def test_a_directory_is_an_error(tmp_path):
    with pytest.raises(StatsError):
        Counters.open(tmp_path)


def test_tensor_parallel_ranks_page_together_and_move_their_own_bytes():
    first, second = make(), make()
    first.add(0, **AMOUNTS, copy_seconds=0.5)
    second.add(0, **AMOUNTS, copy_seconds=0.75)
    assert merged([first, second]) == {**AMOUNTS, "bytes_moved": 2 * AMOUNTS["bytes_moved"], "copy_seconds": 0.75}
    assert merged([first]) == first.total()


def test_ranks_that_divide_the_experts_each_tell_of_their_own():
    facts = replace(FACTS, expert_ranks=2)
    first, second = make(facts=facts), make(facts=facts)
    first.add(0, **AMOUNTS)
    second.add(0, **{**AMOUNTS, "steps": AMOUNTS["steps"] + 1, "faults": 0.0})
    total = merged([first, second])
    assert total["references"] == 2 * AMOUNTS["references"]
    assert total["faults"] == AMOUNTS["faults"]
    assert total["steps"] == AMOUNTS["steps"] + 1


def test_stages_of_a_pipeline_have_layers_of_their_own():
    first, second = make(), make()
    second.layers = tuple(f"later.{name}" for name in second.layers)
    for part in (first, second):
        part.add(0, **AMOUNTS)
    assert merged([first, second]) == {field: 2 * amount for field, amount in first.total().items()}
    assert list(merged_layers([first, second])) == [*first.layers, *second.layers]


def test_the_hit_ratio_is_of_references():
    assert hit_ratio(AMOUNTS) == 0.25
    assert hit_ratio(dict.fromkeys(FIELDS, 0.0)) == 1.0


def test_large_counts_stay_whole_numbers():
    counters = make()
    counters.add(0, bytes_moved=float(2**52))
    counters.add(0, bytes_moved=1)
    assert counters.layer(0)["bytes_moved"] == 2**52 + 1
    assert counters.values.dtype == np.float64
