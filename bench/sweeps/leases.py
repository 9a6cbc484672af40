"""When leases are given, and for how long: idle ones, deep ones, those that two machines want in turn."""

import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from phases.base import Kind, Measured, now
from phases.sharing import append_in_turns
from sweeps.base import Cell, Extent, MountPolicy, ServerPolicy, Tally, at_once, expect, fill, scan, timed
from targets import Failed, Soda


class LeaseIdle(MountPolicy):
    """A working set that a machine comes back to after pauses, while another one changes some of it at the end of each. The
    pauses are of seconds, and so are the times, for what counts is which of them is longer."""

    name, values, default = "lease-idle", ("500ms", "1s", "2s", "4s", "10m"), "10m"

    AGAIN = Kind("read again, a file", "us", "lower")
    MESSAGES = Kind("... messages for each file", "", "lower")
    SENT = Kind("... data that came once more", "MiB", "lower")
    HELD = Kind("leases held in the pauses, mean", "", "lower")
    CHANGE = Kind("another machine's change", "us", "lower")
    RECALLS = Kind("... recalls for each", "", "lower")

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        here, there = (root / "set" for root in cell.roots)
        directories, each = extent.files // 100, 20
        old, new = b"o" * 8192, b"n" * 8192
        fill([there / f"dir{number}" for number in range(directories)], each, old)
        cell.settle([cell.roots[1]])
        scan(here, old)
        again, held, changes, recalls, messages, received = [], [], [], 0, 0, 0
        for pause in extent.pauses:
            time.sleep(pause)
            held.append(cell.counters(cell.roots[0])["held_leases"])
            with Tally(cell, *cell.roots) as tally:
                for number in range(directories):
                    path = there / f"dir{number}/file0"
                    changes.append(timed(lambda: overwrite(path, new)))
            recalls += tally.recalls
            with Tally(cell, cell.roots[0]) as tally:
                paths = [here / f"dir{number}/file{file}" for number in range(directories) for file in range(each)]
                again += [timed(lambda: expect(path, new if path.name == "file0" else old)) for path in paths]
            messages += tally.messages
            received += tally.counts["bytes_received"]
        return {
            self.AGAIN: statistics.mean(again) * 1e6,
            self.MESSAGES: messages / len(again),
            self.SENT: received / (1 << 20),
            self.HELD: statistics.mean(held),
            self.CHANGE: statistics.mean(changes) * 1e6,
            self.RECALLS: recalls / len(changes),
        }


def overwrite(path: Path, content: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.write(content)


class DeepAfter(ServerPolicy):
    """A tree that one machine has made and another reads, which the first removes then; directories of which another machine
    has read a few files, when these are changed; and two builders, in directories beside each other and in the same one."""

    name, values, default = "deep-after", ("2", "4", "16", "64", "256", ServerPolicy.NO_DEEP_LEASES), "16"
    machines = 3

    SCAN, SCAN_MESSAGES = Kind("a scan, a file", "us", "lower"), Kind("... messages for each file", "", "lower")
    HELD = Kind("... leases that are held then", "", "lower")
    REMOVE, REMOVE_MESSAGES = Kind("removed by who made it, a file", "us", "lower"), Kind("... messages of both", "", "lower")
    FEW, FEW_MESSAGES = Kind("a change of what others have read", "us", "lower"), Kind("... messages for each", "", "lower")

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        here, there, elsewhere = cell.roots
        lay_out(elsewhere, extent.units)
        cell.unmount(elsewhere)
        content = b"s" * 1024
        figures: Measured = {}

        fill([here / f"tree/dir{number}" for number in range(extent.files // 50)], 25, content)
        with Tally(cell, here, there) as tally:
            seconds = timed(lambda: scan(there / "tree", content))
        files = extent.files // 2
        figures |= {self.SCAN: seconds / files * 1e6, self.SCAN_MESSAGES: tally.messages / files}
        figures[self.HELD] = cell.counters(there)["held_leases"]
        with Tally(cell, here, there) as tally:
            seconds = timed(lambda: shutil.rmtree(here / "tree"))
        figures |= {self.REMOVE: seconds / files * 1e6, self.REMOVE_MESSAGES: tally.messages}

        few = [here / f"few/dir{number}" for number in range(extent.files // 50)]
        fill(few, 8, content)
        cell.settle([here])
        for directory in few:
            for file in range(6):
                expect(there / f"few/{directory.name}/file{file}", content)
        changed = [directory / f"file{file}" for directory in few for file in (0, 7)]
        with Tally(cell, here, there) as tally:
            seconds = timed(lambda: [overwrite(path, content[::-1]) for path in changed])
        figures |= {self.FEW: seconds / len(changed) * 1e6, self.FEW_MESSAGES: tally.messages / len(changed)}

        for where, targets in (("beside each other", ("a", "b")), ("in one directory", ("out", "out"))):
            with Tally(cell, here, there) as tally:
                seconds = build_both(here, there, targets, extent.units)
            units = 2 * extent.units
            figures[Kind(f"two that build {where}, a unit", "ms", "lower")] = seconds / units * 1e3
            figures[Kind(f"... messages for each unit, {where}", "", "lower")] = tally.messages / units
            figures[Kind(f"... recalls for each unit, {where}", "", "lower")] = tally.recalls / units
        return figures


HEADERS = [f"h{number}" for number in range(10)]


def lay_out(root: Path, units: int) -> None:
    """What two builders find."""
    for directory in ("src", "a", "b", "out"):
        (root / directory).mkdir()
    for header in HEADERS:
        (root / "src" / header).write_bytes(b"header")
    for unit in (f"{mine}{number}" for mine in "ab" for number in range(units)):
        (root / f"src/{unit}.c").write_bytes(unit.encode())


def build_both(here: Path, there: Path, targets: Sequence[str], units: int) -> float:
    """Two machines build at once, the one the sources a, the other b. Seconds."""
    took = at_once(
        lambda: build(here, "a", here / targets[0], units), lambda: build(there, "b", there / targets[1], units)
    )
    for mine, target, other in (("a", targets[0], there), ("b", targets[1], here)):
        for unit in (f"{mine}{number}" for number in range(units)):
            expect(other / target / f"{unit}.o", unit.encode() * 100)
    return took


def build(root: Path, mine: str, target: Path, units: int) -> None:
    """What a compiler does for each source: reads it and some headers, looks whether the object is there, writes it under another
    name and renames it."""
    for unit in (f"{mine}{number}" for number in range(units)):
        expect(root / f"src/{unit}.c", unit.encode())
        for header in HEADERS:
            expect(root / "src" / header, b"header")
        if (target / f"{unit}.o").exists():
            raise Failed(f"{target}/{unit}.o is there already")
        temporary = target / f"{unit}.o.tmp"
        temporary.write_bytes(unit.encode() * 100)
        temporary.rename(target / f"{unit}.o")


class DeepHoles(ServerPolicy):
    """A machine that has made many directories of two files, and another that changes one file in each of them: as many holes, if
    the deep lease stays. Then the first reads all of it, and changes the other files."""

    name, values, default = "deep-holes", ("16", "64", "256", "1024", "4096", ServerPolicy.NO_DEEP_LEASES), "256"

    CHANGE = Kind("another machine's change", "us", "lower")
    MESSAGES, RECALLS = Kind("... messages of both for each", "", "lower"), Kind("... recalls for each", "", "lower")
    READ, READ_MESSAGES = Kind("read again, a file", "us", "lower"), Kind("... messages for each file", "", "lower")
    OWN, OWN_MESSAGES = Kind("own changes then", "us", "lower"), Kind("... messages of both, for each", "", "lower")

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        here, there = (root / "held" for root in cell.roots)
        directories = [f"dir{number}" for number in range(extent.directories)]
        old, new = b"o" * 1024, b"n" * 1024
        fill([here / directory for directory in directories], 2, old)
        cell.settle([cell.roots[0]])
        with Tally(cell, *cell.roots) as tally:
            seconds = timed(lambda: [overwrite(there / directory / "file0", new) for directory in directories])
        count = len(directories)
        figures: Measured = {
            self.CHANGE: seconds / count * 1e6,
            self.MESSAGES: tally.messages / count,
            self.RECALLS: tally.recalls / count,
        }

        def read_all() -> None:
            for directory in directories:
                expect(here / directory / "file0", new)
                expect(here / directory / "file1", old)

        with Tally(cell, *cell.roots) as tally:
            seconds = timed(read_all)
        figures |= {self.READ: seconds / (2 * count) * 1e6, self.READ_MESSAGES: tally.messages / (2 * count)}
        with Tally(cell, *cell.roots) as tally:
            seconds = timed(lambda: [overwrite(here / directory / "file1", new) for directory in directories])
        return {**figures, self.OWN: seconds / count * 1e6, self.OWN_MESSAGES: tally.messages / count}


class DeepHolesUntold(ServerPolicy):
    """A machine that has made and changed files in many directories, thousands of changes of which nothing is told, and goes on
    to make files there at a pace of its own; and another that changes one file in each directory meanwhile: as many holes, if
    the deep lease stays. If it does not, all that is below it is told for that, and who goes on asks for each directory anew."""

    name, values, default = "deep-holes-untold", DeepHoles.values, DeepHoles.default
    FILES, EVERY_S = 5, 0.002

    CHANGE, SLOWEST = Kind("another machine's change, median", "ms", "lower"), Kind("... the slowest", "ms", "lower")
    TOLD = Kind("... changes told for each", "", "lower")
    MESSAGES, RECALLS = Kind("... messages of both for each", "", "lower"), Kind("... recalls for each", "", "lower")
    OWN, SLOWEST_OWN = Kind("a file made meanwhile, mean", "us", "lower"), Kind("... the slowest made", "ms", "lower")
    LEFT = Kind("changes untold in the end", "")

    def options(self, value: str) -> tuple[Sequence[str], Sequence[str]]:
        return DeepHoles().options(value)[0], Soda.patience

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        here, there = (root / "untold" for root in cell.roots)
        directories = [f"dir{number}" for number in range(extent.directories // 3)]
        old, mine, new = b"o" * 1024, b"m" * 1024, b"n" * 1024
        fill([here / directory for directory in directories], self.FILES, old)
        cell.settle([cell.roots[0]])
        for directory in directories:
            for number in range(self.FILES):
                overwrite(here / directory / f"file{number}", mine)
                (here / directory / f"new{number}").write_bytes(mine)
        before = cell.sum(cell.roots)
        changes: list[float] = []
        with BesideMaker([here / directory for directory in directories], mine, self.EVERY_S) as maker:
            for directory in directories:
                changes.append(timed(lambda: overwrite(there / directory / "file0", new)))
                time.sleep(self.EVERY_S)
        after, count = cell.sum(cell.roots), len(directories)
        grown = {name: after[name] - before[name] for name in ("digested", "messages", "recalls")}
        left = cell.counters(cell.roots[0])["backlog_records"]
        for directory in directories:
            expect(here / directory / "file0", new)
            expect(there / directory / "file1", mine)
        made = sum(name.startswith("more") for directory in directories for name in os.listdir(there / directory))
        if made != maker.made.value:
            raise Failed(f"{made} files are to be seen below {there}, {maker.made.value} were made")
        return {
            self.CHANGE: statistics.median(changes) * 1e3,
            self.SLOWEST: max(changes) * 1e3,
            self.TOLD: grown["digested"] / count,
            self.MESSAGES: grown["messages"] / count,
            self.RECALLS: grown["recalls"] / count,
            self.OWN: maker.seconds.value / max(1, made) * 1e6,
            self.SLOWEST_OWN: maker.slowest.value * 1e3,
            self.LEFT: left,
        }


class BesideMaker:
    """A process that makes files in these directories by turns, one each so many seconds, while something else is done."""

    def __init__(self, directories: Sequence[Path], content: bytes, every: float):
        self.made, self.stop = multiprocessing.Value("q", 0), multiprocessing.Event()
        self.seconds, self.slowest = multiprocessing.Value("d", 0), multiprocessing.Value("d", 0)
        self.process = multiprocessing.Process(target=self.make, args=(directories, content, every), daemon=True)

    def __enter__(self) -> "BesideMaker":
        self.process.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop.set()
        self.process.join(120)
        if self.process.exitcode != 0:
            self.process.kill()
            raise Failed("who makes files beside has failed, or was not done after two minutes")

    def make(self, directories: Sequence[Path], content: bytes, every: float) -> None:
        while not self.stop.is_set():
            number = self.made.value
            start = now()
            (directories[number % len(directories)] / f"more{number}").write_bytes(content)
            took = now() - start
            self.made.value, self.seconds.value = number + 1, self.seconds.value + took
            self.slowest.value = max(self.slowest.value, took)
            time.sleep(every)


class BackOff(ServerPolicy):
    """Two machines at one directory and one file: appends and new files by turns, one at a time and in bursts; then one of them
    alone, at a pace of its own."""

    name, values, default = "back-off", ("off", "10ms", "100ms", "1s", "10s"), "100ms"

    APPEND = Kind("appends by turns", "us", "lower")
    BURST = 20

    def measure(self, cell: Cell, extent: Extent) -> Measured:
        here, there = (root / "shared" for root in cell.roots)
        here.mkdir()
        with Tally(cell, *cell.roots) as tally:
            append = append_in_turns(here, there, extent.turns)
        figures: Measured = {
            self.APPEND: append * 1e6,
            Kind("... messages for each", "", "lower"): tally.messages / extent.turns,
        }
        work = {
            "files by turns": lambda: self.create(here, there, extent.turns, 1),
            "files by turns, looked at": lambda: self.create(here, there, extent.turns, 1, looks=True),
            f"files in bursts of {self.BURST}": lambda: self.create(here, there, extent.turns, self.BURST),
        }
        for what, create in work.items():
            with Tally(cell, *cell.roots) as tally:
                seconds = create()
            figures[Kind(what, "us", "lower")] = seconds / extent.turns * 1e6
            figures[Kind(f"{what}, messages for each", "", "lower")] = tally.messages / extent.turns
            figures[Kind(f"{what}, recalls for each", "", "lower")] = tally.recalls / extent.turns
        # Who has the directory for itself again.
        with Tally(cell, cell.roots[0]) as tally:
            paths = [here / self.place(self.BURST) / f"alone{number}" for number in range(extent.turns)]
            seconds = 0.0
            for path in paths:
                seconds += timed(lambda: path.write_bytes(b"alone"))
                time.sleep(extent.paced_seconds / 2 / len(paths))
        figures[Kind("one alone then, a file", "us", "lower")] = seconds / len(paths) * 1e6
        figures[Kind("... messages for each file", "", "lower")] = tally.messages / len(paths)
        return figures

    def create(self, here: Path, there: Path, count: int, burst: int, looks: bool = False) -> float:
        """New files in a directory of their own, by two machines in turn. Seconds."""
        name = self.place(burst, looks)
        (here / name).mkdir()

        def work() -> None:
            for number in range(count):
                mine, other = (here, there) if number // burst % 2 == 0 else (there, here)
                (mine / name / f"file{number}").write_bytes(b"%d" % number)
                if looks:
                    expect(other / name / f"file{number}", b"%d" % number)

        seconds = timed(work)
        names = {f"file{number}" for number in range(count)}
        if any(set(os.listdir(root / name)) != names for root in (here, there)):
            raise Failed(f"a file of {here / name} is missing on one of two machines")
        return seconds

    def place(self, burst: int, looks: bool = False) -> str:
        return f"burst{burst}{'looked' if looks else ''}"
