"""Drivers of one pipeline as the tests see them: started, heard, told, paused, killed, counted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from tests.support import sessions
from tests.support.jvm import quick_jvm
from tests.support.pausing import no_transaction
from tests.support.spark_cluster import CLOCK, environment

from leasehold.log import Log, LogOptions, ProducerOptions

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("pipeline_process.py")
PATIENCE_S = 180.0
LOOK_S = 0.2
STREAM = "flights"
GROUP = "delays"
QUICK = ProducerOptions(linger=timedelta(milliseconds=1), durable=False)


class Driver:
    """See ``pipeline_process``. Its process id is the id of its session."""

    def __init__(
        self, crew: Crew, settings: dict[str, Any], env: dict[str, str], submit: Sequence[str]
    ) -> None:
        self.name: str = settings["name"]
        self.paused = False
        self._by_event: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._held: dict[str, int] = {}
        self._crew = crew
        self._errors = crew.root / f"{self.name}.stderr"
        command = [*(submit or [sys.executable]), str(PROGRAM), json.dumps(settings)]
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=env,
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, name=f"reads {self.name}")
        self._reading.start()

    @property
    def session(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def app(self) -> str:
        """The application's id, as the cluster knows it."""
        found: str = self.says("up")["app"]
        return found

    def of(self, event: str, **like: object) -> list[dict[str, Any]]:
        """All that it said of this kind."""
        notes = list(self._by_event[event])
        return [each for each in notes if all(each.get(k) == v for k, v in like.items())]

    def held(self) -> dict[str, int]:
        """The partitions that it has opened and not closed, with their epochs."""
        return dict(self._held)

    def says(self, event: str, *, times: int = 1, **like: object) -> dict[str, Any]:
        """Wait until it has said this so many times; the last of them."""
        what = f"{self.name} says {event} {like or ''} ({times} times)"
        self._crew.until(lambda: len(self.of(event, **like)) >= times, what)
        return self.of(event, **like)[times - 1]

    def tell(self, do: str, **what: object) -> None:
        """Give an order; one that has ended hears nothing."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._popen.stdin.write((json.dumps({"do": do, **what}) + "\n").encode())
            self._popen.stdin.flush()

    def kill(self) -> None:
        """As a power cut does it: Python, JVM and workers. All it said before is heard then."""
        sessions.kill(self.session)
        self._popen.wait()
        self._reading.join(PATIENCE_S)
        self._held.clear()

    def pause(self) -> None:
        """SIGSTOP to all of it."""
        self.paused = True
        with no_transaction(self._crew.url):
            sessions.stop(self.session)

    def go_on(self) -> None:
        """SIGCONT to all of it."""
        sessions.go_on(self.session)
        self.paused = False

    def leave(self) -> int:
        """In good order; its exit code."""
        self.tell("stop")
        try:
            code = self._popen.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end: {self.trouble()}") from None
        self._reading.join(PATIENCE_S)
        return code

    def end(self) -> None:
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def trouble(self) -> str:
        """The last it has said, for people."""
        lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        notes = [note for notes in list(self._by_event.values()) for note in notes]
        notes.sort(key=lambda note: note["when_s"])
        shown = "\n".join(map(str, notes[-12:]))
        return f"\n{self.name} ({self._popen.poll()}):\n{shown}\n" + "\n".join(lines)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with suppress(json.JSONDecodeError):  # a JVM may have something to say too
                self._crew.heard(self, json.loads(line))
        self._crew.heard(self, None)

    def hears(self, note: dict[str, Any]) -> None:
        self._by_event[note["event"]].append(note)
        if note["event"] == "opened":
            self._held[note["partition"]] = note["epoch"]
        elif note["event"] == "closed" and self._held.get(note["partition"]) == note["epoch"]:
            del self._held[note["partition"]]


class Crew:
    """All drivers of one group, those that were killed too, with their log and their table."""

    def __init__(self, log: Log, root: Path, url: str) -> None:
        self.log = log
        self.root = root
        self.url = url
        self.table = root / "table"
        self.drivers: list[Driver] = []
        self._rung = threading.Condition()

    def begin(
        self,
        name: str,
        *,
        master: str = "local[1]",
        env: dict[str, str] | None = None,
        submit: Sequence[str] = (),
        **settings: Any,
    ) -> Driver:
        """Start a driver: see ``pipeline_process.Settings``.

        ``submit``: the words of ``spark-submit``; a driver that it starts hears no orders.
        """
        given = {
            "master": master,
            "store": self.url,
            "stream": STREAM,
            "group": GROUP,
            "name": name,
            "table": str(self.table),
            "conf": {"spark.driver.extraJavaOptions": quick_jvm(), "spark.driver.memory": "512m"},
            **settings,
        }
        driver = Driver(self, given, environment(env), submit)
        self.drivers.append(driver)
        return driver

    def heard(self, driver: Driver, note: dict[str, Any] | None) -> None:
        """A driver has said something, or ended: whoever waits for it looks."""
        with self._rung:
            if note is not None:
                driver.hears(note)
            self._rung.notify_all()

    def until(self, true: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
        """Return when it is so; fail with all that is known if it does not come to pass.

        It is looked at when a driver says something, and now and then: files say nothing.
        """
        end_s = CLOCK.boottime_s() + patience_s
        with self._rung:
            while not self._rung.wait_for(true, LOOK_S):
                if CLOCK.boottime_s() >= end_s:
                    known = "\n".join(each.trouble() for each in self.drivers)
                    raise AssertionError(f"not within {patience_s:g} s: {what}\n{known}")

    def said(self, event: str, **like: object) -> list[dict[str, Any]]:
        return [each for driver in self.drivers for each in driver.of(event, **like)]

    def end(self) -> None:
        for each in self.drivers:
            each.end()

    # ------------------------------------------------- the log and the table

    def fill(self, rows: int, *, partitions: int) -> None:
        """So many events to each partition, safe in the log when this returns."""
        keys = [f"carrier-{number % 16}" for number in range(rows)]
        sent = pa.table({"key": keys, "body": [b"%d" % number for number in range(rows)]})
        with self.log.producer(STREAM, QUICK) as producer:
            for each in [producer.send(sent, partition=number) for number in range(partitions)]:
                each.result(PATIENCE_S)

    def ends(self) -> dict[str, int]:
        """How many events each partition has."""
        return {str(part.number): part.next_sequence for part in self.log.info(STREAM).parts}

    def committed(self) -> dict[str, int]:
        """Up to where the drivers said they have committed, by partition."""
        found: dict[str, int] = dict.fromkeys(self.ends(), 0)
        notes = [*self.said("committed"), *self.said("opened")]
        for note in notes:
            for partition, _, end in note.get("ranges", ()):
                found[partition] = max(found[partition], end)
            if note["event"] == "opened":  # who follows one that was killed knows what it did
                found[note["partition"]] = max(found[note["partition"]], note["position"])
        return found

    def all_committed(self) -> None:
        """Wait until all that is in the log is in the table, for as long as it gets on."""
        ends = self.ends()
        while (known := self.committed()) != ends:
            self.until(partial(self._is_beyond, known), f"more than {known} of {ends} is committed")

    def _is_beyond(self, known: dict[str, int]) -> bool:
        return self.committed() != known

    def faults(self) -> Counter[str]:
        """How many rows the table has lost, and how many it has twice: nothing, if all is well."""
        if not DeltaTable.is_deltatable(str(self.table)):
            return +Counter(lost=sum(self.ends().values()))
        rows = DeltaTable(str(self.table)).to_pyarrow_table(
            columns=["partition", "sequence_number"]
        )
        counted = Counter[str]()
        for partition, end in self.ends().items():
            numbers = rows.filter(pc.field("partition") == partition)["sequence_number"]
            known = numbers.filter(pc.less(numbers, end))
            counted["unknown"] += len(numbers) - len(known)
            different = pc.count_distinct(known).as_py()
            counted["doubled"] += len(known) - different
            counted["lost"] += end - different
        counted["unknown"] += rows.num_rows - sum(
            pc.sum(pc.equal(rows["partition"], each)).as_py() or 0 for each in self.ends()
        )
        return +counted


@contextmanager
def crew(root: Path, *, partitions: int, store: str | None = None) -> Iterator[Crew]:
    """A stream with so many partitions and no driver yet; all are killed at the end."""
    root.mkdir(parents=True, exist_ok=True)
    url = store or f"sqlite:///{root}/leases.db"
    options = LogOptions(run_monitor=False)
    with Log.open(url, volumes=[root / "volume"], name="tests", options=options) as log:
        log.create(STREAM, partitions=partitions)
        made = Crew(log, root, url)
        try:
            yield made
        finally:
            made.end()
