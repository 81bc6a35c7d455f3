"""The workers' counters reach vLLM's /metrics, and their files do not outlive their processes."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess

from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.counters.collector import COUNTERS, GAUGES, INFO, CountersCollector
from wisp.pager.counters import FIELDS, Counters, PoolFacts

FACTS = PoolFacts(num_experts=16, expert_slots=8, expert_bytes=1000, kernel="K", device="cpu")
LAYER = "model.layers.0.mlp.experts"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """The directory of the counters, empty and of this test only."""
    monkeypatch.setattr(counter_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv(counter_files.OWNER_VARIABLE, raising=False)
    return counter_files.directory()


@pytest.fixture
def dead_process():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write_counters(path, **amounts):
    counters = Counters(FACTS, capacity=1, path=path)
    counters.add_layer(LAYER, page_locked=False)
    counters.add(0, **amounts)
    return counters


def engine(instance_id="engine", *, wisp=None):
    return SimpleNamespace(instance_id=instance_id, additional_config={} if wisp is None else {"wisp": wisp})


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


def test_every_field_is_exported_for_each_layer_and_rank(tmp_path):
    paths = [counter_files.path_for("engine", rank) for rank in (0, 1)]
    for place, path in enumerate(paths):
        write_counters(path, **{field: 10.0 * place + number for number, field in enumerate(FIELDS)})
    registry = CollectorRegistry()
    registry.register(CountersCollector(lambda: paths))
    for number, field in enumerate(FIELDS):
        for place in (0, 1):
            name = f"{COUNTERS[field].name}_total"
            assert value(registry, name, layer=LAYER, rank=str(place)) == 10.0 * place + number
    assert value(registry, GAUGES["expert_slots"].name, rank="1") == 8.0
    assert value(registry, GAUGES["page_locked"].name, rank="0") == 0.0
    assert value(registry, INFO.name, rank="0", kernel="K", device="cpu") == 1.0


def test_a_draft_models_counters_have_names_of_their_own():
    paths = [counter_files.path_for("engine", 0, draft=draft) for draft in (False, True)]
    for path, faults in zip(paths, (3, 5), strict=True):
        write_counters(path, faults=faults)
    assert counter_files.of_engine("engine") == paths[:1]
    assert counter_files.of_engine("engine", draft=True) == paths[1:]
    assert [counter_files.rank_of(path) for path in paths] == [0, 0]
    pytest.importorskip("vllm")
    from wisp.engines.vllm.metrics import files_of

    registry = CollectorRegistry()
    registry.register(CountersCollector(lambda: files_of("engine")))
    assert value(registry, "wisp_expert_faults_total", layer=LAYER, rank="0") == 3.0
    assert value(registry, "wisp_draft_expert_faults_total", layer=LAYER, rank="0") == 5.0
    assert value(registry, "wisp_draft_expert_slots", rank="0") == 8.0


def test_a_scrape_reads_what_was_counted_since_the_last_one():
    path = counter_files.path_for("engine", 0)
    counters = write_counters(path, faults=1)
    registry = CollectorRegistry()
    registry.register(CountersCollector(lambda: [path]))
    counters.add(0, faults=4)
    assert value(registry, "wisp_expert_faults_total", layer=LAYER, rank="0") == 5.0


def test_files_that_are_missing_or_half_written_are_left_out(tmp_path):
    half = tmp_path / "1-engine-rank1.counters"
    half.write_bytes(b"WISP")
    registry = CollectorRegistry()
    registry.register(CountersCollector(lambda: [tmp_path / "1-engine-rank0.counters", half]))
    assert generate_latest(registry) == b""


def test_ranks_are_ordered_by_number():
    paths = [counter_files.path_for("engine", rank) for rank in (10, 9, 0)]
    for path in paths:
        path.touch()
    assert [counter_files.rank_of(path) for path in counter_files.of_engine("engine")] == [0, 9, 10]


def test_files_of_dead_processes_are_removed_when_a_worker_starts(directory, dead_process):
    directory.mkdir(mode=0o755)
    stale = [directory / f"{dead_process}-old-rank0.counters", directory / f"{dead_process}-failure"]
    foreign = directory / "99999999999999999999-rank0.counters"
    kept = directory / f"{os.getpid()}-old-rank0.counters"
    for path in (*stale, foreign, kept):
        path.touch()
    counter_files.path_for("engine", 0)
    assert list(directory.iterdir()) == [kept]


def test_the_directory_is_private(directory):
    counter_files.path_for("engine", 0)
    assert directory.stat().st_mode & 0o077 == 0


@pytest.fixture
def stat_logger():
    """Makes vLLM's stat logger of ours; ends it with the test."""
    metrics = pytest.importorskip("wisp.engines.vllm.metrics")
    made = []

    def make(vllm_config):
        made.append(metrics.WispStatLogger(vllm_config=vllm_config, engine_indexes=[0]))

    yield make
    made.clear()  # its finalizers run


def test_the_stat_logger_is_one_for_vllm(stat_logger):
    from importlib.metadata import entry_points

    from vllm.v1.metrics.loggers import AggregateStatLoggerBase

    (entry,) = entry_points(group="vllm.stat_logger_plugins", name="wisp")
    assert issubclass(entry.load(), AggregateStatLoggerBase)


def test_without_a_wisp_configuration_nothing_is_registered(stat_logger):
    before = set(REGISTRY._collector_to_names)
    stat_logger(engine(wisp=None))
    assert set(REGISTRY._collector_to_names) == before


def test_the_engine_s_counters_are_in_the_registry_of_vllm(stat_logger):
    write_counters(counter_files.path_for("engine", 0), faults=3)
    write_counters(counter_files.path_for("other", 0), faults=50)
    stat_logger(engine("engine", wisp={"expert_slots": 8}))
    assert value(REGISTRY, "wisp_expert_faults_total", layer=LAYER, rank="0") == 3.0


def test_the_end_of_the_front_end_removes_collector_and_files(stat_logger, request):
    path = counter_files.path_for("engine", 0)
    write_counters(path, faults=3)
    metrics = sys.modules["wisp.engines.vllm.metrics"]
    logger = metrics.WispStatLogger(vllm_config=engine("engine", wisp={"expert_slots": 8}), engine_indexes=[0])
    del logger
    assert value(REGISTRY, "wisp_expert_faults_total", layer=LAYER, rank="0") is None
    assert not path.exists()


def test_an_api_server_of_several_finds_the_engine_of_its_front_end(stat_logger, monkeypatch, tmp_path):
    monkeypatch.setenv(counter_files.OWNER_VARIABLE, str(os.getpid()))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(multiprocess.MultiProcessCollector, "__init__", multiprocess.MultiProcessCollector.__init__)
    write_counters(counter_files.path_for("engine", 0), faults=7)
    stat_logger(engine("an-id-of-its-own", wisp={"expert_slots": 8}))
    for _ in range(2):  # vLLM makes a fresh registry for each scrape
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        assert value(registry, "wisp_expert_faults_total", layer=LAYER, rank="0") == 7.0


def test_an_api_server_that_cannot_find_its_engine_says_so(stat_logger, monkeypatch, caplog):
    monkeypatch.setattr("wisp.engines.vllm.metrics.multiprocessing.parent_process", lambda: object())
    warnings = []
    monkeypatch.setattr("wisp.engines.vllm.metrics.logger", SimpleNamespace(warning=lambda text: warnings.append(text)))
    stat_logger(engine(wisp={"expert_slots": 8}))
    assert "under `wisp serve` only" in warnings[0]


@pytest.mark.parametrize("planted", ["open to others", "a link"])
def test_a_folder_that_others_can_write_to_is_refused(planted, tmp_path, monkeypatch):
    from wisp.errors import ConfigError

    monkeypatch.setattr(counter_files, "directory", lambda: tmp_path / "counters")
    if planted == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "counters").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "counters").mkdir()
        (tmp_path / "counters").chmod(0o777)
    with pytest.raises(ConfigError, match="TMPDIR"):
        counter_files.prepare_directory()
