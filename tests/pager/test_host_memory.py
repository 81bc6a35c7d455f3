"""The free host memory is the least of what the machine has and what its control group allows."""

import pytest

from wisp.errors import HostMemoryError
from wisp.pager.host_memory import HEADROOM_BYTES, HostMemory

GIB = 1 << 30
V1_NO_LIMIT = 9223372036854771712


@pytest.fixture
def machine(tmp_path):
    """A faked /proc and /sys/fs/cgroup; `read()` is what wisp makes of them."""

    class Machine:
        proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"

        def __init__(self):
            self.proc.mkdir()
            self.cgroup.mkdir()
            self.meminfo(f"MemTotal: {64 << 20} kB\nMemFree: 1000 kB\nMemAvailable:  {40 << 20} kB\n")

        def meminfo(self, text):
            (self.proc / "meminfo").write_text(text)

        def own_group(self, lines):
            (self.proc / "self").mkdir()
            (self.proc / "self" / "cgroup").write_text(lines)

        def v2(self, limit, usage, inactive_file=0, active_file=0, group="", high="max"):
            folder = self.cgroup / group
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.max").write_text(f"{limit}\n")
            (folder / "memory.high").write_text(f"{high}\n")
            (folder / "memory.current").write_text(f"{usage}\n")
            (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\nactive_file {active_file}\n")

        def v1(self, limit, usage, inactive_file=0, active_file=0, group=""):
            folder = self.cgroup / "memory" / group
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
            (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
            stat = f"inactive_file 1\ntotal_inactive_file {inactive_file}\ntotal_active_file {active_file}\n"
            (folder / "memory.stat").write_text(stat)

        def read(self):
            return HostMemory.read(self.proc, self.cgroup)

    return Machine()


def test_without_a_control_group_the_machine_counts(machine):
    assert machine.read() == HostMemory(40 * GIB, "the machine's available memory")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_smaller_limit_counts(machine, version):
    getattr(machine, version)(limit=8 * GIB, usage=3 * GIB)
    assert machine.read() == HostMemory(5 * GIB, "the control group's memory limit")


@pytest.mark.parametrize("limit", ["max", 8 * GIB])
def test_a_limit_beyond_which_a_group_is_slowed_down_counts(machine, limit):
    machine.v2(limit=limit, usage=3 * GIB, high=7 * GIB)
    assert machine.read() == HostMemory(4 * GIB, "the control group's memory limit")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("active_file", [0, GIB, 4 * GIB])
def test_page_cache_is_given_back_once_or_often_read(machine, version, active_file):
    cache = {"inactive_file": 4 * GIB - active_file, "active_file": active_file}
    getattr(machine, version)(limit=8 * GIB, usage=7 * GIB, **cache)
    assert machine.read().available_bytes == 5 * GIB


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_limit_above_the_machine_changes_nothing(machine, version):
    getattr(machine, version)(limit=256 * GIB, usage=GIB)
    assert machine.read() == HostMemory(40 * GIB, "the machine's available memory")


@pytest.mark.parametrize(("version", "limit"), [("v2", "max"), ("v1", V1_NO_LIMIT)])
def test_no_limit_is_no_limit(machine, version, limit):
    getattr(machine, version)(limit=limit, usage=3 * GIB)
    assert machine.read().limited_by == "the machine's available memory"


@pytest.mark.parametrize("tightest", ["", "job", "job/step"])
def test_the_tightest_of_nested_groups_counts_v2(machine, tightest):
    machine.own_group("0::/job/step\n")
    for group in ("", "job", "job/step"):
        machine.v2(limit=8 * GIB if group == tightest else "max", usage=GIB, group=group)
    assert machine.read() == HostMemory(7 * GIB, "the control group's memory limit")


@pytest.mark.parametrize("tightest", ["", "job", "job/step"])
def test_the_tightest_of_nested_groups_counts_v1(machine, tightest):
    machine.own_group("9:name=systemd:/\n5:cpu,memory:/job/step\n0::/elsewhere\n")
    for group in ("", "job", "job/step"):
        machine.v1(limit=8 * GIB if group == tightest else V1_NO_LIMIT, usage=GIB, group=group)
    assert machine.read() == HostMemory(7 * GIB, "the control group's memory limit")


def test_a_group_named_from_outside_a_container_is_the_root(machine):
    machine.own_group("5:memory:/docker/0123\n0::/docker/0123\n")
    machine.v1(limit=8 * GIB, usage=GIB)
    assert machine.read().available_bytes == 7 * GIB


def test_another_groups_limit_does_not_count(machine):
    machine.own_group("0::/job\n")
    machine.v2(limit=GIB, usage=0, group="other")
    machine.v2(limit=8 * GIB, usage=GIB, group="job")
    assert machine.read().available_bytes == 7 * GIB


def test_a_group_over_its_limit_has_nothing_left(machine):
    machine.v2(limit=GIB, usage=2 * GIB)
    with pytest.raises(HostMemoryError, match="control group's memory limit leaves 0B"):
        machine.read().check(1, "the store")


def test_a_damaged_control_group_is_passed_over(machine):
    machine.v2(limit="lots", usage=0)
    assert machine.read().limited_by == "the machine's available memory"


def test_a_machine_that_does_not_say_is_an_error(machine):
    machine.meminfo("MemTotal: 5 kB\n")
    with pytest.raises(HostMemoryError, match=r"no MemAvailable line.*; set host_memory to what may be used"):
        machine.read()


def test_a_store_that_does_not_fit_says_what_is_missing():
    memory = HostMemory(8 * GIB, "the control group's memory limit")
    memory.check(8 * GIB - HEADROOM_BYTES, "the store")
    with pytest.raises(HostMemoryError) as error:
        memory.check(20 * GIB, "the backing store of m")
    assert str(error.value) == (
        "the backing store of m needs 20GiB of host memory, but the control group's memory limit leaves 7GiB "
        "(after 1GiB of headroom); give the process 13GiB more, leave unquantised experts in the checkpoint's files "
        "(backing_store), or serve a smaller or more strongly quantised model"
    )


def test_what_is_no_store_says_what_else_to_lower():
    with pytest.raises(HostMemoryError, match=r"give the process 13GiB more, or lower gpu_memory$"):
        HostMemory(8 * GIB, "the machine's available memory").check(20 * GIB, "KV", remedy="or lower gpu_memory")


def test_this_machine_says():
    assert HostMemory.read().available_bytes > 0
