"""Tasks are done in turn by a few threads, and those that have not begun are left out when a program ends."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from wisp.pager.background_tasks import BackgroundTasks


def test_every_task_is_done_once_and_its_outcome_kept():
    tasks, done = BackgroundTasks(), []
    results = [tasks.submit(lambda number=number: done.append(number) or number * number) for number in range(9)]
    failed = tasks.submit(divmod, 1, 0)
    cancelled = tasks.submit(done.append, "cancelled")
    cancelled.cancel()
    assert not done, "nothing is begun before the start"
    tasks.start(3, "some")
    assert [result.result(30) for result in results] == [number * number for number in range(9)]
    with pytest.raises(ZeroDivisionError):
        failed.result(30)
    with pytest.raises(CancelledError):
        cancelled.result(30)
    assert sorted(done) == list(range(9))


def test_tasks_are_begun_in_order_and_by_no_more_threads_than_asked_for():
    tasks, begun, may_end = BackgroundTasks(), [], threading.Event()
    both, lock = threading.Semaphore(0), threading.Lock()

    def task(number):
        with lock:
            begun.append(number)
        both.release()
        assert may_end.wait(30)

    results = [tasks.submit(task, number) for number in range(5)]
    tasks.start(2, "some")
    assert both.acquire(timeout=30)
    assert both.acquire(timeout=30)
    assert sorted(begun) == [0, 1]
    may_end.set()
    for result in results:
        result.result(30)
    assert sorted(begun) == list(range(5))


ENDING = """
import threading, time
from wisp.pager.background_tasks import BackgroundTasks

def task(number):
    begun.set()
    time.sleep(0.3)
    print("done", number, flush=True)

def wait_for_the_last():
    try:
        results[-1].result(30)
    except BaseException as error:
        print(type(error).__name__, flush=True)

tasks, begun = BackgroundTasks(), threading.Event()
results = [tasks.submit(task, number) for number in range(100)]
tasks.start(1, "some")
threading.Thread(target=wait_for_the_last).start()
begun.wait(30)
raise ValueError("loading has failed")
"""


def test_a_program_that_fails_ends_with_the_task_that_has_begun():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=25, check=False)
    assert done.returncode == 1
    assert "loading has failed" in done.stderr
    assert done.stdout.split("\n") == ["done 0", "CancelledError", ""], "who waits for the others is told"
