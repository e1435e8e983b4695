"""When a port takes no more connections."""

import resource

import pytest

from nsqpy.net.limits import ConnectionLimit


def test_as_many_as_the_port_may_have(caplog: pytest.LogCaptureFixture) -> None:
    limit = ConnectionLimit("TCP", 2)
    assert [limit.refuses(10, open_count) for open_count in (0, 1, 2, 3)] == [
        *(False, False, True, True),
    ]
    assert limit.refused == {"max_connections": 2}
    assert len(caplog.records) == 1
    assert caplog.messages[0].startswith("TCP: 1 connections refused, there are 2;")


def test_zero_is_no_limit() -> None:
    assert not ConnectionLimit("TCP", 0).refuses(10, 1_000_000)


def test_the_last_eighth_of_the_descriptors_is_for_files() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = ConnectionLimit("TCP", 0)
    assert not limit.refuses(soft - soft // 8 - 1, 0)
    assert limit.refuses(soft - soft // 8, 0)
    assert limit.refused == {"open_files": 1}
