"""Sessions that are shared, stopped and interrupted."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from talerec.errors import TalerecError
from waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


def test_a_session_that_another_thread_has_opened_is_used_and_left_running(session):
    from talerec import spark

    counts = []

    def count() -> None:
        with spark.connected() as other:
            counts.append(other.range(3).count())

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert counts == [3]
    assert session.range(2).count() == 2


def test_a_session_that_was_stopped_is_refused(tmp_path):
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark import ClusterRun

    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(TalerecError, match="the session was stopped: open another one"):
        ClusterRun(stopped, tmp_path)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_jobs_end_when_they_are_interrupted_and_the_session_goes_on(
    session, tmp_path, number, raised
):
    """The task, which would take a minute, creates a file when it starts."""
    from talerec.spark import ClusterRun, run_tasks

    run, started = ClusterRun(session, tmp_path), tmp_path / "started"
    handler = signal.getsignal(number)

    def work(_: int, __: object) -> None:
        import time

        started.touch()
        time.sleep(60)

    def interrupt() -> None:
        while not started.exists():
            threading.Event().wait(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(raised), run.stage("rows"):
        run_tasks(run.task_numbers(1), 1, work)
    assert signal.getsignal(number) is handler
    assert session.range(3).count() == 3
    tracker = session.sparkContext.statusTracker()  # Spark hears of a cancelled job's end later
    until(lambda: not list(tracker.getActiveJobsIds()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_does_not_wait_for_spark_is_interrupted_at_once(session, tmp_path, number):
    from talerec.spark import ClusterRun

    run = ClusterRun(session, tmp_path)
    with pytest.raises((KeyboardInterrupt, SystemExit)), run.stage("learn"):
        _interrupt(number)


def _interrupt(number: int) -> None:
    os.kill(os.getpid(), number)
    raise AssertionError("it went on")


def test_jobs_after_a_stage_have_the_group_that_they_had_before(session, tmp_path):
    from talerec.spark import ClusterRun

    context, name = session.sparkContext, "spark.jobGroup.id"
    for group in ("of the caller", None):
        context.setLocalProperty(name, group)
        with ClusterRun(session, tmp_path).stage("rows"):
            assert context.getLocalProperty(name).startswith("talerec rows ")
        assert context.getLocalProperty(name) == group
