"""What all policies are measured with: a server and mounts of it, as so many machines, with one option at one value."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phases.base import Measured, now
from targets import Failed, Soda, messages, run


@dataclass(frozen=True)
class Extent:
    """How much is done for one value of one policy."""

    paced_seconds: float
    """How long what has a pace of its own goes on."""
    lifetimes: tuple[float, ...]
    """Of trees that are made and removed, seconds."""
    looks: int
    pauses: tuple[float, ...]
    """Between two uses of one working set, seconds."""
    files: int
    """A multiple of 100."""
    directories: int
    stream_mib: int
    burst_mib: int
    turns: int
    """A multiple of 20."""
    units: int
    """That each of two builders compiles."""

    @staticmethod
    def full() -> "Extent":
        return Extent(
            paced_seconds=5,
            lifetimes=(0.5, 2, 5),
            looks=12,
            pauses=(0.7, 1.5, 3),
            files=2000,
            directories=1200,
            stream_mib=1024,
            burst_mib=128,
            turns=200,
            units=60,
        )

    @staticmethod
    def smoke() -> "Extent":
        return Extent(
            paced_seconds=0.5,
            lifetimes=(0.1, 0.3, 0.5),
            looks=3,
            pauses=(0.1, 0.2),
            files=100,
            directories=40,
            stream_mib=32,
            burst_mib=8,
            turns=20,
            units=5,
        )


class Cell(Soda):
    """A server and mounts of it with options of their own."""

    def __init__(self, base: Path, machines: int, serve: Sequence[str], mount: Sequence[str]):
        self.clients, self.serve_options, self.mount_options = machines, tuple(serve), tuple(mount)
        super().__init__(base)

    def sum(self, roots: Sequence[Path]) -> dict[str, int]:
        """The counters of these mounts together, with all messages that they have sent."""
        each = [self.counters(root) for root in roots]
        total = {name: sum(counters[name] for counters in each) for name in each[0]}
        return {**total, "messages": sum(map(messages, each))}

    def told_bytes(self) -> int:
        """File data that the server has had in digests."""
        address = f"127.0.0.1:{self.server.port}"
        counters = json.loads(run(self.program, "stats", "--once", "--json", "--server", address))
        return counters[f"server {address}"]["digest_bytes"]


class Sweep:
    """A policy, and what is measured of each of its values."""

    name: str
    values: Sequence[str]
    default: str
    machines = 2

    def options(self, value: str) -> tuple[Sequence[str], Sequence[str]]:
        """Those of the server and those of each mount."""
        raise NotImplementedError

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        """On a new volume."""
        raise NotImplementedError


class MountPolicy(Sweep):
    """An option of mounts."""

    def options(self, value: str) -> tuple[Sequence[str], Sequence[str]]:
        return (), (f"{self.name}={value}",)


class ServerPolicy(Sweep):
    """An option of the server's, or `no deep leases`."""

    NO_DEEP_LEASES = "no deep leases"

    def options(self, value: str) -> tuple[Sequence[str], Sequence[str]]:
        return ("--deep-leases=off",) if value == self.NO_DEEP_LEASES else (f"--{self.name}={value}",), ()


class Tally:
    """By how much the counters of some mounts of a cell (`soda stats`) grow while something is done, and until the server
    has been told of it."""

    def __init__(self, cell: Cell, *roots: Path):
        self.cell, self.roots = cell, roots
        self.counts: dict[str, int] = {}

    def __enter__(self) -> "Tally":
        self.before = self.look()
        return self

    def __exit__(self, *_) -> None:
        self.counts = {name: count - self.before[name] for name, count in self.look().items()}

    def look(self) -> dict[str, int]:
        self.cell.settle(self.roots)
        return self.cell.sum(self.roots)

    @property
    def messages(self) -> int:
        return self.counts["messages"]

    @property
    def recalls(self) -> int:
        return self.counts["recalls"]

    @property
    def told(self) -> float:
        """Of 100 changes, how many the server has heard of: the others were void before."""
        made = self.counts["digested"]
        return 100 * (made - self.counts["coalesced"]) / made if made else 0.0


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    start = now()
    work()
    return now() - start


def at_times(events: Iterable[tuple[float, Callable[[], object]]]) -> None:
    """Does each when its time has come, in seconds from now; later if one before takes longer."""
    start = now()
    for due, work in sorted(events, key=lambda event: event[0]):
        time.sleep(max(0.0, start + due - now()))
        work()


def at_once(*works: Callable[[], object]) -> float:
    """Each in a process of its own, begun together. Seconds until the last one is done."""
    gate = multiprocessing.Barrier(len(works) + 1)

    def begin(work: Callable[[], object]) -> None:
        gate.wait(60)
        work()

    processes = [multiprocessing.Process(target=begin, args=(work,), daemon=True) for work in works]
    for process in processes:
        process.start()
    gate.wait(60)
    start = now()
    for process in processes:
        process.join(120)
    took = now() - start
    for process in processes:
        process.kill()
        process.join()
    if any(process.exitcode for process in processes):
        raise Failed("one of several who work at once has failed, or was not done after two minutes")
    return took


def fill(directories: Sequence[Path], files: int, content: bytes) -> None:
    """New directories with so many files each."""
    for directory in directories:
        directory.mkdir(parents=True)
        for number in range(files):
            (directory / f"file{number}").write_bytes(content)


def expect(path: Path, content: bytes) -> None:
    """A read that must show what was written, on whatever machine."""
    if path.read_bytes() != content:
        raise Failed(f"{path} is not as it was written")


def scan(base: Path, content: bytes) -> int:
    """Reads all files below; how many."""
    count = 0
    for directory, _, files in os.walk(base):
        for name in files:
            expect(Path(directory, name), content)
            count += 1
    return count
