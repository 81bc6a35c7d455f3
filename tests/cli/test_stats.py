"""`wisp stats` against a real server that answers as vLLM's does."""

import json
from dataclasses import replace

import pytest
import small_server
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from wisp.engines.vllm.counters.collector import CountersCollector
from wisp.pager.counters import Counters, PoolFacts

FACTS = PoolFacts(num_experts=16, expert_slots=8, expert_bytes=3 << 20, kernel="TritonExperts", device="cuda")
LAYERS = ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")


def write_counters(path, *, layers=LAYERS, page_locked=True, facts=FACTS):
    """What a worker writes: numbers that differ by layer."""
    counters = Counters(facts, capacity=len(layers), path=path)
    for index, name in enumerate(layers):
        counters.add_layer(name, page_locked=page_locked)
        counters.add(
            index,
            steps=10,
            references=40 * (index + 1),
            faults=10,
            bytes_moved=10 * FACTS.expert_bytes,
            evictions=2,
            waves=12,
            copy_seconds=0.5 + index,
        )
    return counters


def metrics_text(*paths):
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "As any vLLM server has it.", registry=registry)
    registry.register(CountersCollector(lambda: list(paths)))
    return generate_latest(registry).decode()


def serving(text, *, status=200):
    """A server whose /metrics answers with `text`; every other path is unknown."""
    return small_server.serving({"/metrics": small_server.Answer(text, status)})


@pytest.fixture
def counters_file(tmp_path):
    path = tmp_path / "1-engine-rank0.counters"
    write_counters(path)
    return path


def test_totals_are_the_sums_over_the_layers(wisp, counters_file):
    with serving(metrics_text(counters_file)) as url:
        ended = wisp("stats", url, "--json")
    told = json.loads(ended.out)
    assert told["total"] == {
        "steps": 20.0,
        "references": 120.0,
        "faults": 20.0,
        "bytes_moved": 20.0 * FACTS.expert_bytes,
        "evictions": 4.0,
        "waves": 24.0,
        "copy_seconds": 2.0,
    }
    assert told["hit_ratio"] == pytest.approx(1 - 20 / 120)
    assert told["layers"][LAYERS[1]]["references"] == 80.0
    assert told["pool"] == {
        "layers": 2.0,
        "experts": 16.0,
        "expert_slots": 8.0,
        "expert_bytes": 3.0 * (1 << 20),
        "page_locked": 1.0,
        "expert_ranks": 1.0,
        "engine_ranks": 1.0,
        "ranks": 1,
        "kernel": "TritonExperts",
        "device": "cuda",
    }


def test_ranks_add_bytes_and_share_faults(wisp, tmp_path):
    paths = [tmp_path / f"1-engine-rank{rank}.counters" for rank in (0, 1)]
    for path in paths:
        write_counters(path)
    with serving(metrics_text(*paths)) as url:
        told = json.loads(wisp("stats", url, "--json").out)
    assert told["total"]["faults"] == 20.0
    assert told["total"]["bytes_moved"] == 40.0 * FACTS.expert_bytes
    assert told["pool"]["ranks"] == 2


def test_ranks_that_divide_the_experts_add_their_faults(wisp, tmp_path):
    paths = [tmp_path / f"1-engine-rank{rank}.counters" for rank in (0, 1)]
    for path in paths:
        write_counters(path, facts=replace(FACTS, expert_ranks=2, engine_ranks=2))
    with serving(metrics_text(*paths)) as url:
        told = json.loads(wisp("stats", url, "--json").out)
        text = wisp("stats", url).out
    assert (told["total"]["references"], told["total"]["faults"]) == (240.0, 40.0)
    assert told["total"]["steps"] == 20.0
    assert "8 of 16 experts resident on each of 2 ranks in each of 2 layers" in text


def test_stages_add_their_layers(wisp, tmp_path):
    paths = [tmp_path / f"1-engine-rank{rank}.counters" for rank in (0, 1)]
    facts = replace(FACTS, engine_ranks=2)
    write_counters(paths[0], facts=facts)
    write_counters(paths[1], facts=facts, layers=[name.replace("layers.", "layers.1") for name in LAYERS])
    with serving(metrics_text(*paths)) as url:
        told = json.loads(wisp("stats", url, "--json").out)
    assert (told["total"]["references"], told["total"]["steps"]) == (240.0, 40.0)
    assert told["pool"]["layers"] == len(told["layers"]) == 4.0


def test_ranks_whose_counters_are_elsewhere_are_told_of(wisp, tmp_path):
    path = tmp_path / "1-engine-rank0.counters"
    write_counters(path, facts=replace(FACTS, engine_ranks=2))
    with serving(metrics_text(path)) as url:
        text = " ".join(wisp("stats", url).out.split())
    assert "1 ranks of 2; the counters of the others are not on the server's machine" in text


def test_the_table_shows_totals_and_on_request_layers(wisp, counters_file):
    with serving(metrics_text(counters_file)) as url:
        without, with_layers = wisp("stats", url).out, wisp("stats", url, "--layers").out
    for text in (without, with_layers):
        assert "8 of 16 experts resident in each of 2 layers, 3MiB an expert" in text
        assert "83.3%" in text
        assert "60MiB" in text
    assert "layer 1" not in without
    assert "layer 1" in with_layers


def test_memory_that_is_not_page_locked_is_shown(wisp, tmp_path):
    path = tmp_path / "1-engine-rank0.counters"
    write_counters(path, page_locked=False)
    with serving(metrics_text(path)) as url:
        assert "NOT page-locked" in wisp("stats", url).out


def test_counters_that_are_still_zero_are_fine(wisp, tmp_path):
    path = tmp_path / "1-engine-rank0.counters"
    Counters(FACTS, capacity=1, path=path).add_layer(LAYERS[0], page_locked=True)
    with serving(metrics_text(path)) as url:
        told = json.loads(wisp("stats", url, "--json").out)
        assert wisp("stats", url).code == 0
    assert told["hit_ratio"] == 1.0
    assert told["total"]["steps"] == 0.0


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/metrics"])
def test_every_usual_form_of_the_url_is_understood(wisp, counters_file, suffix):
    with serving(metrics_text(counters_file)) as url:
        assert wisp("stats", url + suffix, "--json").code == 0
        assert wisp("stats", url.removeprefix("http://") + suffix, "--json").code == 0


def test_watching_shows_what_came_since(wisp, counters_file, monkeypatch):
    looks = []

    def look(_):
        looks.append(None)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("wisp.cli.stats.time.sleep", look)
    with serving(metrics_text(counters_file)) as url:
        ended = wisp("stats", url, "--watch")
    assert ended.code == 130
    assert "last 2 s" in ended.out


def test_watching_into_a_pipe_shows_every_look(wisp, counters_file, monkeypatch):
    looks = iter([None, None])

    def look(_):
        if next(looks, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr("wisp.cli.stats.time.sleep", look)
    with serving(metrics_text(counters_file)) as url:
        out = wisp("stats", url, "--watch").out
    assert (out.count("total"), out.count("last 2 s")) == (3, 2)


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("vllm:num_requests_running 0.0\n", 200, "does not page experts; start it with `wisp serve"),
        ("up 1.0\n", 200, "has no wisp_* metrics"),
        ("", 200, "has no wisp_* metrics"),
        ("<!doctype html><html>{</html>\n", 200, "is not Prometheus text"),
        ("gone", 404, "answers 404; name the root of a vLLM server"),
        ("broken", 500, "answers 500"),
    ],
)
def test_a_server_without_counters_is_told_with_the_remedy(wisp, text, status, told):
    with serving(text, status=status) as url:
        ended = wisp("stats", url)
    assert ended.code == 2
    assert ended.err.startswith("wisp: ")
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:9", "check host and port"),
        ("http://no-such-host.invalid:8000", "check host and port"),
        ("http://", "write it as in http://localhost:8000"),
        ("ftp://localhost", "write it as in http://localhost:8000"),
        ("http://localhost:port", "write it as in http://localhost:8000"),
    ],
)
def test_a_url_without_a_server_is_told_with_the_remedy(wisp, url, told):
    ended = wisp("stats", url)
    assert ended.code == 2
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_watching_and_json_do_not_go_together(wisp):
    assert wisp("stats", "localhost:8000", "--watch", "--json").code == 2
