"""``leasehold process``: the handler it finds, what it says, and how it ends."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import CommandLine

from leasehold.cli.process import ProcessOutput, _checkpoint, _poison, log_to, status
from leasehold.cli.process_handler import load_handler
from leasehold.clock import SystemClock
from leasehold.core.poison_policy import PoisonAction
from leasehold.errors import LeaseholdError, PositionLost, StoreUnavailable, UsageError
from leasehold.events import Event
from leasehold.log import Log, LogOptions
from leasehold.processor import CheckpointPolicy, CloseReason, HookEvent, ProcessorCounts
from leasehold.processor.events import (
    CheckpointRefused,
    CheckpointWritten,
    CycleDone,
    HandlerAbandoned,
    HandlerFailed,
    Overtaken,
    PartitionClosed,
    PartitionDraining,
    PartitionOpened,
    Poisoned,
    PositionMoved,
    PossibleRepeats,
    PumpRestarted,
    ReceiverDisplaced,
)

HANDLERS = """
import functools

def handle(context, event): ...

async def handle_async(context, event): ...

def three(context, event, more): ...

def any_number(*args): ...

def with_default(context, event, more=1): ...

def generator(context, event):
    yield event

class Kind:
    def __call__(self, context, event): ...

    def method(self, context, event): ...

instance = Kind()
partial = functools.partial(three, more=1)
number = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Modules in the current directory, gone from this process afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("my_handlers.py", HANDLERS)
    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Two partitions with 3 events in each."""
    url = f"sqlite:///{tmp_path}/store.db"
    options = LogOptions(run_monitor=False)
    with Log.open(url, volumes=[tmp_path / "disk"], options=options) as log:
        log.create("orders", partitions=2)
        log.create("dead", partitions=1)
        with log.producer("orders") as producer:
            for partition in range(2):
                producer.send([Event(body=b"x")] * 3, partition=partition).result()
    return url


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], store: str
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, store)


# ---------------------------------------------------------------------- the handler


@pytest.mark.parametrize(
    "name",
    [
        "handle",
        "handle_async",
        "any_number",
        "with_default",
        "instance",
        "instance.method",
        "partial",
    ],
)
def test_a_handler_is_found_in_the_current_directory(
    here: Callable[[str, str], None], name: str
) -> None:
    assert callable(load_handler(f"my_handlers:{name}", batch=False))


def test_a_handler_may_lie_in_a_package(here: Callable[[str, str], None]) -> None:
    here("my_package/__init__.py", "")
    here("my_package/inner.py", "def handle(context, batch): ...")
    assert load_handler("my_package.inner:handle", batch=True).__name__ == "handle"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("my_handlers", "names no handler: write MODULE:HANDLER"),
        ("my_handlers:", "names no handler"),
        (":handle", "names no handler"),
        ("my_handlers.py:handle", "is a file, and a module is wanted"),
        ("./my_handlers:handle", "is a file, and a module is wanted"),
        ("my handlers:handle", "can not be the name of a handler"),
        (".my_handlers:handle", "can not be the name of a handler"),
        ("my_handlers:handle()", "can not be the name of a handler"),
        ("not_there:handle", "there is no module 'not_there' here"),
        ("not_there.at.all:handle", "there is no module 'not_there' here"),
        ("my_handlers.inner:handle", "there is no module 'my_handlers.inner' here"),
        ("my_handlers:handel", "has no 'handel': did you mean handle?"),
        ("my_handlers:zzz", "has no 'zzz': did you mean handle or handle_async or"),
        ("my_handlers:instance.zzz", "has no 'zzz'"),
        ("my_handlers:number", "is int, and no function"),
        ("my_handlers:Kind", "is a class"),
        ("my_handlers:generator", "is a generator"),
        (
            "my_handlers:three",
            "three(context, event, more) can not be called with (context, event)",
        ),
    ],
)
def test_each_way_to_name_no_handler_has_its_own_words(
    here: Callable[[str, str], None], text: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_handler(text, batch=False)
    assert hint in str(refused.value)


def test_the_words_for_batches_say_batch(here: Callable[[str, str], None]) -> None:
    with pytest.raises(UsageError, match=r"with --batch a handler is `def handle\(context, batch"):
        load_handler("my_handlers:three", batch=True)


@pytest.mark.parametrize(
    ("text", "shown", "said"),
    [
        ("import not_there_either", "import not_there_either", "ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\nf()", "in f", "ZeroDivisionError"),
        ("def f(:", "def f(:", "SyntaxError"),
    ],
)
def test_a_module_that_fails_is_shown_with_its_own_traceback(
    here: Callable[[str, str], None],
    capfd: pytest.CaptureFixture[str],
    text: str,
    shown: str,
    said: str,
) -> None:
    here("my_broken.py", text)
    with pytest.raises(LeaseholdError, match=said) as refused:
        load_handler("my_broken:handle", batch=False)
    assert not isinstance(refused.value, UsageError)
    words = capfd.readouterr().err
    assert "my_broken.py" in words
    assert shown in words
    assert "importlib" not in words
    assert "process_handler" not in words


def test_a_program_that_ends_on_import_is_told_so(here: Callable[[str, str], None]) -> None:
    here("my_program.py", "import sys\nsys.exit(0)")
    with pytest.raises(LeaseholdError, match='if __name__ == "__main__"'):
        load_handler("my_program:handle", batch=False)


# ------------------------------------------------------------------------- options


@pytest.mark.spec("C4")
def test_checkpoints_are_written_when_it_says() -> None:
    assert _checkpoint("batch") == CheckpointPolicy.after_each_batch()
    assert _checkpoint("manual") == CheckpointPolicy.manual()
    assert _checkpoint("1000") == CheckpointPolicy.every(events=1000)
    assert _checkpoint("5s") == CheckpointPolicy.every(interval=timedelta(seconds=5))


@pytest.mark.spec("B6")
def test_poison_is_treated_as_it_says() -> None:
    assert _poison("retry", None)[0].retries is None
    for text, then, stream in (
        ("skip", PoisonAction.SKIP, ""),
        ("stop", PoisonAction.STOP, ""),
        ("dead_letter=dead", PoisonAction.DEAD_LETTER, "dead"),
    ):
        policy, found = _poison(text, 5)
        assert (policy.then, policy.retries, found) == (then, 5, stream)
        assert _poison(text, None)[0].retries == 3


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("--checkpoint", "often"), 2, "--checkpoint 'often' says no time"),
        (("--checkpoint", "0"), 2, "--checkpoint 0 is never: write 1 or more events"),
        (("--checkpoint", "2d"), 2, "--checkpoint 2d is too long: it may be 1d at most"),
        (("--checkpoint", "5 years"), 2, "--checkpoint"),
        (("--poison", "ignore"), 2, "dead_letter=STREAM"),
        (("--poison", "dead_letter="), 2, "dead_letter=STREAM"),
        (("--poison", "dead_letter=orders"), 2, "they would come again"),
        (("--poison", "dead_letter=nowhere"), 3, "'dead'"),
        (("--poison", "retry", "--retries", "3"), 2, "goes on for ever"),
        (("--lease", "1ms"), 2, "--lease 1ms is too short: it must be 50ms at least"),
        (("--lease", "100d"), 2, "--lease 100d is too long: it may be 7d at most"),
        (("--drain-timeout", "100d"), 2, "--drain-timeout 100d is too long"),
        (("--weight", "0"), 2, "--weight"),
        (("--weight", "nan"), 2, "weight"),
        (("--start", "yesterday"), 2, "earliest"),
        (("--strategy", "best"), 2, "even"),
        (("--handler-timeout", "0s"), 2, "--handler-timeout 0s is too short: it must be 10ms"),
        (("--source", "log:nowhere"), 3, "'orders'"),
        (("--group", ""), 2, "group is empty"),
        (("--holder-name", ""), 2, "name is empty"),
        (("--store", "memory://"), 2, "memory"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_begins(
    leasehold: CommandLine,
    here: Callable[[str, str], None],
    words: tuple[str, ...],
    code: int,
    hint: str,
) -> None:
    given = ("--source", "orders", "--group", "billing")
    done = leasehold("process", "my_handlers:handle", *given, *words)
    assert (done.code, done.out) == (code, "")
    assert hint in done.err
    assert "Traceback" not in done.err
    assert "joined" not in done.err


def test_a_port_that_is_taken_is_refused(
    leasehold: CommandLine, here: Callable[[str, str], None]
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--source", "orders", "--group", "billing", "--metrics-port", port)
        done = leasehold("process", "my_handlers:handle", *words)
    assert done.code == 2
    assert f"--metrics-port {port} can not be had at 127.0.0.1" in done.err


# --------------------------------------------------------------------------- words

ABOUT: dict[str, Any] = {"holder": "host-a-1", "partition": "3", "epoch": 7}
ERROR = ValueError("no ones")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (PartitionOpened(**ABOUT, position=120), "opened partition 3 (epoch 7) at 120"),
        (
            PartitionClosed(**ABOUT, position=140, reason=CloseReason.HANDED_OVER),
            "closed partition 3 (epoch 7) at 140 (handed_over)",
        ),
        (
            PartitionClosed(**ABOUT, position=None, reason=CloseReason.LOST),
            "closed partition 3 (epoch 7) (lost)",
        ),
        (PartitionDraining(**ABOUT), "draining partition 3 (epoch 7)"),
        (
            PossibleRepeats(**ABOUT, events=5),
            "up to 5 events of partition 3 (epoch 7) may come again",
        ),
        (
            Overtaken(**ABOUT),
            "overtaken in partition 3 (epoch 7): taken by force while it was given up",
        ),
        (ReceiverDisplaced(**ABOUT, by="b"), "displaced in partition 3 (epoch 7) by b"),
        (CheckpointRefused(**ABOUT, sequence_number=9, why="fenced"), "at 9: fenced"),
        (
            HandlerFailed(**ABOUT, sequence_number=9, attempt=2, error=ERROR),
            "failed in partition 3 (epoch 7) at 9, attempt 2: ValueError: no ones",
        ),
        (Poisoned(**ABOUT, sequence_number=9, action="skip", error=ERROR), "at 9: skipped"),
        (HandlerAbandoned(**ABOUT), "nobody waits for it"),
        (PumpRestarted(**ABOUT, error=ERROR, pause_s=0.5), "after 0.5s: no ones"),
        (PositionMoved(**ABOUT, wanted=1, found=5), "from 1 to 5"),
    ],
)
def test_what_happens_is_said_in_a_line(
    event: HookEvent, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ProcessOutput(SystemClock(), name="host").hook(event)
    said = capfd.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert said[8] == "Z"


def test_joining_is_said_once_for_each_id_and_the_rest_is_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ProcessOutput(SystemClock(), name="host")
    for holder in ("", "host-a-1", "host-a-1", "host-a-2", "host"):
        words.hook(CycleDone(holder=holder, elapsed_s=0.1, held=0, calls={}))
    words.hook(CheckpointWritten(**ABOUT, sequence_number=1))
    said = [line.partition(" ")[2] for line in capfd.readouterr().err.splitlines()]
    assert said == ["joined as host-a-1", "joined again as host-a-2"]


def test_the_traceback_of_a_handler_is_shown_once_and_without_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words, logger = (
        ProcessOutput(SystemClock(), name="host"),
        logging.getLogger("leasehold.processor"),
    )
    with pytest.raises(ValueError, match="no") as raised:
        exec(compile("def handle():\n    raise ValueError('no')\nhandle()", "their.py", "exec"))
    error = raised.value
    with log_to(words):
        for attempt in (1, 2):
            words.hook(HandlerFailed(**ABOUT, sequence_number=9, attempt=attempt, error=error))
            logger.error("context: no", exc_info=error)
        logger.warning("something else")
        logger.info("not said")
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1
    assert "their.py" in said
    assert said.count("attempt") == 2
    assert "context" not in said
    assert said.endswith("something else\n")
    assert "not said" not in said


def test_a_source_that_is_not_there_is_told_with_what_a_source_is(
    leasehold: CommandLine, here: Callable[[str, str], None]
) -> None:
    words = ("my_handlers:handle", "--source", "foo:nope", "--group", "billing")
    done = leasehold("process", *words)
    assert done.code == 3
    assert "there is no stream 'foo:nope'" in done.err
    assert "a source is log:STREAM or eventhubs://" in done.err


def test_trouble_with_reading_is_said_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    words, logger = (
        ProcessOutput(SystemClock(), name="host"),
        logging.getLogger("leasehold.processor"),
    )
    away, lost = StoreUnavailable("the hub is away"), PositionLost("no such place")
    with log_to(words):
        words.hook(PumpRestarted(**ABOUT, error=away, pause_s=0.5))
        logger.error("partition 3 (epoch 7): the hub is away", extra={"error": away})
        logger.error("partition 3 (epoch 7): no such place", extra={"error": lost})
    assert [line[10:] for line in capfd.readouterr().err.splitlines()] == [
        "reading again in partition 3 (epoch 7) after 0.5s: the hub is away",
        "partition 3 (epoch 7): no such place",
    ]


def test_the_status_tells_what_was_done_since_the_last_one() -> None:
    now = ProcessorCounts(events_handled=1150, checkpoints_written=12)
    assert status(4, ProcessorCounts(events_handled=1000), now, every_s=15.0) == (
        "4 partitions, 1,150 events handled (10/s), 12 checkpoints"
    )
    bad = ProcessorCounts(events_skipped=1, by_event={"HandlerFailed": 4})
    assert status(0, ProcessorCounts(), bad, every_s=15.0).endswith(
        ", 4 failed attempts, 1 event given up"
    )
