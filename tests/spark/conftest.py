"""One cluster for all tests of a process, with one session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cluster
from waiting import LONG_S


@pytest.fixture(scope="session")
def machines(tmp_path_factory) -> Iterator[cluster.Cluster]:
    cluster.require_spark()
    with cluster.Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def session(machines):
    from pyspark import SparkContext

    from talerec import spark

    events = machines.folder / "events"
    events.mkdir()
    conf = {**cluster.CONF, "spark.eventLog.dir": f"file://{events}"}
    with spark.connected(machines.url, conf) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(LONG_S)
    SparkContext._gateway = SparkContext._jvm = None
