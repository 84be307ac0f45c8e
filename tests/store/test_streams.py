"""Streams of lines: acknowledged once they are on disk, resumed where they ended."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from command import PYTHONPATH, RUN, refusal
from talerec.errors import TalerecError
from talerec.store import Event, FollowOptions, LineNames, Store, StreamStore, follow_lines
from talerec.store import follow as follow_module


def line(user: Any, item: Any, time: Any = None, **more: Any) -> bytes:
    values = {"user_id": user, "item_id": item, **more}
    return json.dumps(values | ({} if time is None else {"timestamp": time})).encode() + b"\n"


def pieces(data: bytes, size: int) -> Any:
    """Return a function that reads `data` as a pipe does, at most `size` bytes at a time."""
    parts: Iterator[bytes] = (data[n : n + size] for n in range(0, len(data), size))
    return lambda _: next(parts, b"")


def follow(address: str, data: bytes, size: int = 2**16, **options: Any) -> list[Any]:
    with StreamStore.open(address) as store:
        return list(follow_lines(store, pieces(data, size), FollowOptions(**options)))


def stored(address: str) -> list[tuple[Any, ...]]:
    with Store.open(address) as store:
        return [tuple(row[1:]) for row in store.read_after(0, 10**6)]


LINES = [line(f"user{n % 7}", f"item{n % 5}", 1_700_000_000 + n) for n in range(40)]


@pytest.mark.parametrize("size", [1, 7, 100, 2**16])
def test_lines_become_events_however_the_pipe_cuts_them(address: str, size: int) -> None:
    progress = follow(address, b"".join(LINES), size)
    assert [row[:3] for row in stored(address)] == [
        (f"user{n % 7}", f"item{n % 5}", (1_700_000_000 + n) * 10**6) for n in range(40)
    ]
    assert progress[0].line == 0
    assert [each.line for each in progress] == sorted({each.line for each in progress})
    assert progress[-1].line == sum(each.added for each in progress) == 40


def test_a_stream_resumes_where_it_ended(address: str) -> None:
    follow(address, b"".join(LINES[:25]))
    again = follow(address, b"".join(LINES), 50)
    assert (again[0].line, sum(each.added for each in again)) == (25, 15)
    assert len(stored(address)) == 40
    more = [*LINES, *(line("new", "item1", 1_750_000_000 - n) for n in range(3))]
    for first in (41, 30):  # a pipe that begins later
        ended = follow(address, b"".join(more[first - 1 :]), first_line=first)
        assert ended[-1].line == 43
    assert len(stored(address)) == 43


def test_streams_of_other_names_count_their_own_lines(address: str) -> None:
    follow(address, b"".join(LINES[:3]), stream="a")
    assert follow(address, b"".join(LINES[3:5]), stream="b")[-1].line == 2
    assert follow(address, b"".join(LINES[:4]), stream="a")[-1].line == 4
    assert len(stored(address)) == 6


def test_another_stream_of_the_same_name_is_refused(address: str) -> None:
    follow(address, b"".join(LINES[:3]))
    with pytest.raises(TalerecError, match="line 1 is not line 1 of the stream 'stdin'"):
        follow(address, line("somebody", "else", 5) + b"".join(LINES))
    with pytest.raises(TalerecError, match="line 3 is not line 3"):
        follow(address, b"".join(LINES[5:]), first_line=3)
    with pytest.raises(TalerecError, match="stored up to line 3: with `from_line` 9, lines would"):
        follow(address, b"".join(LINES), first_line=9)
    with pytest.raises(TalerecError, match="from_line"):
        follow(address, b"".join(LINES), first_line=0)
    assert len(stored(address)) == 3


BAD = {
    b"nonsense\n": "the line is not JSON",
    b"[1, 2]\n": "the line is not a JSON object",
    b'{"user_id": "ann"}\n': "item_id is missing",
    b'{"item_id": "tea"}\n': "user_id is missing",
    b'{"user_id": null, "item_id": "tea"}\n': "user_id is missing",
    b'{"user_id": true, "item_id": "tea"}\n': "user_id is neither text nor a whole number",
    b'{"user_id": 1.5, "item_id": "tea"}\n': "user_id is neither text nor a whole number",
    b'{"user_id": " ", "item_id": "tea"}\n': "user_id is empty",
    b'{"user_id": "\\ud800", "item_id": "tea"}\n': "not valid Unicode",
    b'{"user_id": "a\\u0000", "item_id": "tea"}\n': "null character",
    b'{"user_id": "ann", "item_id": "tea", "timestamp": "soon"}\n': "soon",
    b'{"user_id": "ann", "item_id": "tea", "timestamp": -5}\n': "before 1970",
    b'{"user_id": "ann", "item_id": "tea", "timestamp": 99999999999}\n': "in the future",
    b'{"user_id": "ann", "item_id": "tea", "event": 5}\n': "event is no text",
    b'{"user_id": "ann", "item_id": "tea", "event_id": []}\n': "event_id is neither",
    b'{"user_id": "ann", "item_id": "tea", "recommendation_id": 5}\n': "recommendation_id 5 is not",
    b"\xff\xfe\n": "the line is not JSON",
    b"[" * 100_000 + b"\n": "the JSON is nested too deeply",
    b'{"user_id": ' + b"9" * 5000 + b"}\n": "",
    b'{"user_id": "' + b"x" * 2**21 + b'"}\n': "the line has more than 1,048,576 bytes",
}


def test_a_bad_line_stops_the_import_after_the_lines_before_it(tmp_path: Path) -> None:
    for n, (bad, message) in enumerate(BAD.items()):
        address = f"sqlite:///{tmp_path}/{n}.db"
        with pytest.raises(TalerecError, match=r"line 4: .*; all lines before it are stored") as e:
            follow(address, b"".join([*LINES[:3], bad, *LINES[3:]]))
        assert message in str(e.value)
        assert len(stored(address)) == 3
        fixed = follow(address, b"".join([*LINES[:3], LINES[9], *LINES[3:]]))
        assert (fixed[0].line, fixed[-1].line) == (3, 41)


@pytest.mark.parametrize("size", [997, 2**20])
def test_bad_lines_are_skipped_and_reported(address: str, size: int) -> None:
    mixed = [part for pair in zip(LINES, BAD, strict=False) for part in pair]
    progress = follow(address, b"".join(mixed), size, skips_errors=True)
    messages = [message for each in progress for message in each.skipped]
    assert len(messages) == len(BAD)
    for n, (told, message) in enumerate(zip(messages, BAD.values(), strict=True)):
        assert told.startswith(f"line {2 * n + 2}: ")
        assert message in told
    assert len(stored(address)) == len(BAD)
    assert progress[-1].line == len(mixed)


def test_blank_lines_are_counted_and_nothing_else(address: str) -> None:
    progress = follow(address, b"\n \r\n" + LINES[0].replace(b"\n", b"\r\n") + b"\n")
    assert (progress[-1].line, len(stored(address))) == (4, 1)


def test_a_pipe_that_breaks_within_a_line_stores_the_lines_before_it(address: str) -> None:
    data = b"".join(LINES[:6])
    for cut in range(len(data) - 30, len(data) - 2):
        with pytest.raises(TalerecError, match="the stream ends within line 6, which is not"):
            follow(address, data[:cut])
        assert len(stored(address)) == 5
    assert follow(address, data)[-1].line == 6
    assert len(stored(address)) == 6


def test_a_file_that_was_cut_off_or_rotated_is_never_passed_over_in_silence(address: str) -> None:
    follow(address, b"".join(LINES[:20]))
    for shorter in (LINES[:5], [LINES[0], *LINES[30:35]]):  # cut off; cut off and written anew
        with pytest.raises(TalerecError, match=r"ended after line [56], but the stream 'stdin'"):
            follow(address, b"".join(shorter))
    with pytest.raises(TalerecError, match="ended after line 12, but"):
        follow(address, b"".join(LINES[10:12]), first_line=11)
    with pytest.raises(TalerecError, match="line 1 is not line 1"):  # the file after a rotation
        follow(address, b"".join(LINES[30:]))
    longer = [*LINES[:5], *LINES[25:], *LINES[25:]]  # cut off, and longer than before by now
    with pytest.raises(TalerecError, match="line 20 is not line 20"):
        follow(address, b"".join(longer))
    assert len(stored(address)) == 20
    assert follow(address, b"")[-1].line == 20  # nothing has come yet
    follow(address, b"".join(LINES[30:]), stream="stdin, 2nd file")
    assert len(stored(address)) == 30


def test_a_last_line_without_a_line_break_is_an_event_if_it_is_whole(address: str) -> None:
    assert follow(address, b"".join(LINES[:2])[:-1])[-1].line == 2
    assert follow(address, b"".join(LINES[:3]))[-1].line == 3
    assert len(stored(address)) == 3


def test_known_event_ids_are_duplicates_and_others_conflicts(address: str) -> None:
    rows = [line("ann", f"i{n}", 1_700_000_000 + n, event_id=f"e{n % 3}") for n in range(3)]
    assert follow(address, b"".join([*rows, *rows]))[-1].there == 3
    conflict = line("ann", "i9", 1_700_000_000, event_id="e1")
    with pytest.raises(TalerecError, match="line 2: event_id 'e1' exists with other contents"):
        follow(address, LINES[0] + conflict + LINES[1], stream="b")
    assert len(stored(address)) == 4
    skipped = follow(address, LINES[0] + conflict + LINES[1], stream="b", skips_errors=True)
    assert skipped[-1].skipped == ("line 2: event_id 'e1' exists with other contents",)
    assert len(stored(address)) == 5


def test_events_of_deleted_users_stay_away(address: str) -> None:
    with Store.open(address) as store:
        store.append([[Event("user1", "tea", 1_700_000_000_000_000)]])
        store.delete_user("user1", 1_700_000_010_000_000)
    progress = follow(address, b"".join(LINES))
    users = [row[0] for row in stored(address) if row[1] is not None]
    late = sum(n % 7 == 1 and n > 10 for n in range(40))
    assert (users.count("user1"), progress[-1].deleted) == (late, 2)


def test_ids_keep_their_kind(address: str) -> None:
    follow(address, line(5, 7.0, 1_700_000_000))
    with pytest.raises(TalerecError, match="line 2: user_id 'ann' is not an integer"):
        follow(address, line(5, 7.0, 1_700_000_000) + line("ann", 7))
    told = follow(address, line(5, 7.0, 1_700_000_000) + line("ann", 7), ids="text")
    assert told[-1].line == 2
    assert [row[:2] for row in stored(address)] == [("5", "7"), ("ann", "7")]


def test_fields_have_the_names_that_the_sender_uses(address: str) -> None:
    data = b'{"who": "ann", "what": "tea", "at": "2024-05-01", "kind": "buy", "more": {}}\n'
    names = LineNames("who", "what", "at", "kind")
    follow(address, data, names=names)
    assert stored(address) == [("ann", "tea", 1_714_521_600_000_000, "buy", None)]


def test_two_processes_do_not_follow_one_stream(address: str) -> None:
    with StreamStore.open(address) as one, StreamStore.open(address) as other:
        first = follow_lines(one, pieces(b"".join(LINES), 100), FollowOptions())
        second = follow_lines(other, pieces(b"".join(LINES), 100), FollowOptions())
        next(first), next(second), next(first)
        with pytest.raises(TalerecError, match="another process follows the stream 'stdin'"):
            next(second)
        list(first)
    assert len(stored(address)) == 40


def test_commits_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "_COMMIT_LINES", 3)
    progress = follow(f"sqlite:///{tmp_path}/shop.db", b"".join(LINES))
    assert [each.line for each in progress] == [0, *range(3, 40, 3), 40]


def start(address: str, *more: str) -> subprocess.Popen[bytes]:
    command = [*RUN, "events", "import", "-", "--follow", "--json", "--store", address, *more]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def close(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):
        process.communicate()


def test_a_killed_import_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path) -> None:
    """kill -9 at random moments of commits, then again from line 1: each line is there once."""
    address, generator = f"sqlite:///{tmp_path}/shop.db", random.Random(0)
    lines = [line(n, n % 50, 1_700_000_000 + n) for n in range(6000)]
    acknowledged = 0
    for attempt in range(4):
        process = start(address)
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["line"] >= acknowledged
        sent, target = 0, acknowledged + generator.randrange(200, 1500)
        while acknowledged < target:
            process.stdin.write(b"".join(lines[sent : sent + 300]))
            process.stdin.flush()
            sent += 300
            if sent > acknowledged:
                acknowledged = json.loads(process.stdout.readline())["line"]
        process.send_signal(signal.SIGKILL)
        for told in process.stdout.readlines():
            if told.endswith(b"\n"):
                acknowledged = json.loads(told)["line"]
        close(process)
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            users = [
                int(row[0]) for row in connection.execute("select user_id from talerec_events")
            ]
        assert sorted(users) == list(range(len(users))), attempt
        assert len(users) >= acknowledged
    process = start(address)
    output, errors = process.communicate(b"".join(lines))
    assert (process.returncode, errors) == (0, b"")
    assert json.loads(output.splitlines()[-1])["line"] == 6000
    assert sorted(int(row[0]) for row in stored(address)) == list(range(6000))


def test_the_command_reports_bad_lines_and_ends_with_2(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    process = start(address)
    output, errors = process.communicate(LINES[0] + b"oops\n" + LINES[1])
    assert process.returncode == 2
    assert b"error: line 2: the line is not JSON" in errors
    assert json.loads(output.splitlines()[-1])["line"] == 1
    process = start(address, "--on-error", "skip")
    output, errors = process.communicate(LINES[0] + b"oops\n" + LINES[1])
    assert process.returncode == 0
    assert errors.startswith(b"skipped line 2: the line is not JSON")
    assert json.loads(output.splitlines()[-1]) == {
        "stream": "stdin", "line": 3, "added": 1, "there": 0, "deleted": 0, "skipped": 1,
    }  # fmt: skip


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/shop.db")
    import_ = ("events", "import")
    for options, message in {
        ("log.csv", "--follow"): "--follow reads standard input",
        ("-", "--stream", "web"): "--stream needs --follow",
        ("-", "--on-error", "skip"): "--on-error needs --follow",
        ("-", "--follow", "--core", "5"): "--follow takes no --core",
        ("-", "--follow", "--on-error", "pray"): "--on-error is 'pray'; it takes stop or skip",
        ("-", "--follow", "--time-unit", "%m/%d/%Y"): "--follow takes a --time-unit of s, ms",
        ("-", "--follow", "--from-line", "0"): "--from-line counts lines from 1",
    }.items():
        assert message in refusal(*import_, *options, *store), options
