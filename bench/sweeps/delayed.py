"""When the server is told of delayed writes: by their age, by how much waits, in how large digests."""

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from phases.base import MIB, Kind, Measured, Sizes, create
from phases.data import write_file
from phases.sharing import Conflict
from sweeps.base import Cell, Extent, MountPolicy, Tally, at_times, expect, fill, timed

Events = Iterator[tuple[float, Callable[[], object]]]


class DirtyAge(MountPolicy):
    """Work that has a pace of its own and is soon thrown away, as that of `configure` is; whole trees that live for a while; and
    another machine that reads half a second later what this one has written. All of it below `digest-size`."""

    name, values, default = "dirty-age", ("100ms", "300ms", "1s", "3s", "10s"), "1s"
    # One that runs configure, and one for each tree that is removed again, so that each has its own counters.
    machines = 4

    MESSAGES = Kind("configure, messages", "", "lower")
    TOLD = Kind("configure, told of 100 changes", "", "lower")
    AT_RISK = Kind("configure, changes untold, mean", "", "lower")
    OLDEST = Kind("configure, the oldest untold at most", "s", "lower")
    READ = Kind("read by another after 0.5 s, median", "ms", "lower")
    SLOWEST = Kind("... the slowest of these", "ms", "lower")

    EVERY_S, LOOK_S = 0.02, 0.25

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        return {**self.thrown_away(cell, extent), **self.read_later(cell, extent)}

    def thrown_away(self, cell: Cell, extent: Extent) -> Measured:
        builder, *keepers = cell.roots
        (builder / "configure").mkdir()
        backlog: list[dict[str, int]] = []
        events = list(self.configure(builder / "configure", extent.paced_seconds))
        looks = int(extent.paced_seconds / self.LOOK_S)
        events += [(number * self.LOOK_S, lambda: backlog.append(cell.counters(builder))) for number in range(1, looks + 1)]
        for keeper, seconds in zip(keepers, extent.lifetimes, strict=True):
            events += self.kept(keeper / f"kept{seconds}", seconds)
        own, kept = Tally(cell, builder), [Tally(cell, keeper) for keeper in keepers]
        for tally in (own, *kept):
            tally.__enter__()
        at_times(events)
        for tally in (own, *kept):
            tally.__exit__()
        figures: Measured = {
            self.MESSAGES: own.messages,
            self.TOLD: own.told,
            self.AT_RISK: statistics.mean(look["backlog_records"] for look in backlog),
            self.OLDEST: max(look["backlog_age_ms"] for look in backlog) / 1000,
        }
        for seconds, tally in zip(extent.lifetimes, kept):
            figures[Kind(f"a tree removed after {seconds:g} s, told of 100 changes", "", "lower")] = tally.told
        return figures

    def configure(self, base: Path, seconds: float) -> Events:
        """A source and its object, written and removed when the next one comes; a line of a log; now and then something
        that stays."""

        def probe(number: int) -> None:
            for name in ("conftest.c", "conftest.o"):
                (base / name).unlink(missing_ok=True)
            (base / "conftest.c").write_bytes(b"c" * 300)
            (base / "conftest.o").write_bytes(b"o" * 1500)
            with open(base / "config.log", "ab") as log:
                log.write(b"checking whether this works... yes\n")
            if number % 10 == 0:
                (base / f"kept{number}.o").write_bytes(b"o" * 4096)

        return ((number * self.EVERY_S, lambda number=number: probe(number)) for number in range(int(seconds / self.EVERY_S)))

    def kept(self, base: Path, seconds: float) -> Events:
        yield 0.0, lambda: fill([base / f"dir{number}" for number in range(5)], 20, b"k" * 1024)
        yield seconds, lambda: shutil.rmtree(base)

    def read_later(self, cell: Cell, extent: Extent) -> Measured:
        """The last one of twenty files in a directory of their own, each time, by a machine that has never been there."""
        here, there = (root / "later" for root in cell.roots[:2])
        here.mkdir()
        reads: list[float] = []

        def write(number: int) -> None:
            fill([here / f"dir{number}"], 20, b"%08d" % number * 512)

        def read(number: int) -> None:
            reads.append(timed(lambda: expect(there / f"dir{number}/file19", b"%08d" % number * 512)))

        writes = [(number * 0.2, lambda number=number: write(number)) for number in range(extent.looks)]
        at_times(writes + [(number * 0.2 + 0.5, lambda number=number: read(number)) for number in range(extent.looks)])
        return {self.READ: statistics.median(reads) * 1e3, self.SLOWEST: max(reads) * 1e3}


class DirtySize(MountPolicy):
    """A stream and its fsync; a burst in small writes, until the program is done and until the server has it; many files of
    32 KiB. How much memory the daemon takes, which keeps no more than 64 MiB for later reads here."""

    name, values, default = "dirty-size", ("4M", "16M", "64M", "256M", "1G"), "64M"

    STREAM = Kind("1 MiB at a time, with fsync", "MB/s")
    BURST, BURST_TOLD = Kind("64 KiB at a time, until close", "MB/s"), Kind("... until it is told", "MB/s")
    FILES, FILES_TOLD = Kind("files of 32 KiB", "/s"), Kind("... until they are told", "/s")
    MEMORY = Kind("memory of the daemon, at most", "MiB", "lower")
    WAITED = Kind("time that writers waited for room", "s", "lower")

    def options(self, value: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), (f"dirty-size={value}", "memory=64M")

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        root, memory = cell.roots[0], []
        stream = timed(lambda: write_file(root / "stream", extent.stream_mib))
        memory.append(cell.counters(root)["memory_bytes"])
        (root / "stream").unlink()
        block = os.urandom(64 << 10)

        def write_burst() -> None:
            with open(root / "burst", "wb", buffering=0) as file:
                for _ in range(extent.burst_mib * MIB // len(block)):
                    file.write(block)

        with Tally(cell, root) as tally:
            burst, burst_told = self.until_told(cell, root, write_burst, memory)
            (root / "burst").unlink()
            (root / "files").mkdir()
            files, files_told = self.until_told(
                cell, root, lambda: create(root / "files", range(extent.files), block[: 32 << 10]), memory
            )
        return {
            self.STREAM: extent.stream_mib * MIB / 1e6 / stream,
            self.BURST: extent.burst_mib * MIB / 1e6 / burst,
            self.BURST_TOLD: extent.burst_mib * MIB / 1e6 / burst_told,
            self.FILES: extent.files / files,
            self.FILES_TOLD: extent.files / files_told,
            self.MEMORY: max(memory) / MIB,
            self.WAITED: tally.counts["log_full_nanos"] / 1e9,
        }

    def until_told(
        self, cell: Cell, root: Path, work: Callable[[], object], memory: list[int]
    ) -> tuple[float, float]:
        """Seconds until the work is done, and until the server has it on its disk."""
        done = timed(work)
        memory.append(cell.counters(root)["memory_bytes"])
        return done, done + timed(lambda: cell.settle([root]))


class DigestSize(MountPolicy):
    """Files that are made and removed at once; files that stay; and one that another machine reads while this one makes more as
    fast as it can (the benchmark's phase `conflict`)."""

    name, values, default = "digest-size", ("256K", "1M", "4M", "16M", "64M"), "4M"

    GONE, GONE_TOLD = Kind("made and removed", "files/s"), Kind("... told of 100 changes", "", "lower")
    GONE_SENT, MESSAGES = Kind("... data told", "MiB", "lower"), Kind("... messages", "", "lower")
    STAY = Kind("made, until they are told", "files/s")
    ROUNDS = 3

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        root, each = cell.roots[0], extent.files // 2
        content = os.urandom(4096)

        def make_and_remove() -> None:
            for _ in range(self.ROUNDS):
                fill([root / "gone"], each, content)
                shutil.rmtree(root / "gone")

        before = cell.told_bytes()
        with Tally(cell, root) as tally:
            gone = timed(make_and_remove)
        sent = cell.told_bytes() - before

        stay = 5 * extent.files

        def make() -> None:
            fill([root / f"stay{number}" for number in range(stay // 100)], 100, content)
            cell.settle([root])

        figures: Measured = {
            self.GONE: self.ROUNDS * each / gone,
            self.GONE_TOLD: tally.told,
            self.GONE_SENT: sent / MIB,
            self.MESSAGES: tally.messages,
            self.STAY: stay / timed(make),
        }
        beside = Conflict().run(cell, replace(Sizes.full(), trips=5 * 2 * extent.looks))
        return {**figures, **{kind: beside[kind] for kind in (Conflict.READ, Conflict.SLOWEST, Conflict.UNTOLD)}}
