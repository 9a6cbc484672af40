"""Two mounts of one tree: how fast one learns what the other did, and whether it does."""

import io
import itertools
import multiprocessing
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from phases.base import Counted, CountedUntold, Kind, Measured, Phase, Sizes, Trials, now
from targets import Failed, Soda, Target


class Recall(Phase):
    """A 4 KiB write on one mount to a file that another has cached, and the other's next read."""

    WRITE = Kind("recall", "us", better="lower")
    ALONE, READ = (
        Kind("write, nobody else", "us", better="lower"),
        Kind("read after recall", "us", better="lower"),
    )
    BOTH = Kind("write here, read there", "us", better="lower")
    TURNS = Kind("append in turns", "us", better="lower")

    def applies(self, target: Target) -> bool:
        return isinstance(target, Soda)

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        block = os.urandom(4096)
        (base / "file").write_bytes(block)
        writer, reader = (
            os.open(base / "file", os.O_WRONLY),
            os.open(target.roots[1] / "bench/file", os.O_RDONLY),
        )
        alone, writes, reads = [], [], []
        for _ in range(sizes.trips):
            start = now()
            os.pwrite(writer, block, 0)
            alone.append(now() - start)
        with Counted(target, target.roots[:2]) as counted_both:
            for number in range(sizes.trips):
                stamp = struct.pack("<Q", number) + block[8:]
                os.pread(reader, 4096, 0)
                start = now()
                os.pwrite(writer, stamp, 0)
                written = now()
                seen = os.pread(reader, 4096, 0)
                reads.append(now() - written)
                writes.append(written - start)
                if seen != stamp:
                    raise Failed(f"a stale read on {target.name}")
        os.close(writer)
        os.close(reader)
        with Counted(target, target.roots[:2]) as counted_turns:
            turns = append_in_turns(base, target.roots[1] / "bench", sizes.trips)
        return {
            self.WRITE: statistics.median(writes) * 1e6,
            self.ALONE: statistics.median(alone) * 1e6,
            self.READ: statistics.median(reads) * 1e6,
            self.BOTH: statistics.median(map(sum, zip(writes, reads))) * 1e6,
            self.TURNS: turns * 1e6,
            **counted_both.per("write here, read there", sizes.trips),
            **counted_turns.per("append in turns", sizes.trips),
        }


def append_in_turns(here: Path, there: Path, count: int) -> float:
    """Seconds for each record of 64 bytes that two mounts append to one file, now one, now the other. Each looks that the file
    is as long as it has to be."""
    (here / "log").touch()
    wait_for(there / "log")
    logs = [os.open(directory / "log", os.O_WRONLY | os.O_APPEND) for directory in (here, there)]
    times = []
    for number in range(count):
        log = logs[number % 2]
        start = now()
        os.write(log, b"x" * RECORD_BYTES)
        times.append(now() - start)
        if os.fstat(log).st_size != (number + 1) * RECORD_BYTES:
            raise Failed(f"a record of {there}/log is lost")
    for log in logs:
        os.close(log)
    return statistics.median(times)


class Conflict(Phase):
    """A machine that makes files as fast as it can, and another that reads now and then one of them that has just been made.
    How long that takes, and how much the first had not told then: only what the file needs has to be told for it."""

    READ = Kind("read beside a busy writer", "ms", better="lower")
    SLOWEST = Kind("the slowest of 20", "ms", better="lower")
    UNTOLD, RATE = Kind("changes untold meanwhile", ""), Kind("files made meanwhile", "/s")
    most_rounds = 3

    def applies(self, target: Target) -> bool:
        return isinstance(target, Soda)

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        assert isinstance(target, Soda)
        there, made = target.roots[1] / "bench", multiprocessing.Value("q", 0)
        stop = multiprocessing.Event()
        writer = multiprocessing.Process(target=make_until, args=(base, made, stop))
        with Counted(target, target.roots[:2]) as counted:
            writer.start()
            reads, untold, start, first = [], [], now(), made.value
            try:
                while len(reads) < sizes.trips // 5 and writer.is_alive():
                    time.sleep(0.02)
                    untold.append(target.counters(target.roots[0])["backlog_records"])
                    number = made.value - 1
                    if number < 0:
                        continue
                    begun = now()
                    content = (there / file_of(number)).read_bytes()
                    reads.append(now() - begun)
                    if content != content_of(number):
                        raise Failed(f"{there}/{file_of(number)} is not as it was written")
                rate = (made.value - first) / (now() - start)
            finally:
                stop.set()
                writer.join()
        if writer.exitcode:
            raise Failed(f"making files in {base} failed")
        return {
            self.READ: statistics.median(reads) * 1e3,
            self.SLOWEST: statistics.quantiles(reads, n=20)[-1] * 1e3,
            self.UNTOLD: statistics.median(untold),
            self.RATE: rate,
            **counted.per("file made beside a reader", made.value),
        }


class Untold(Phase):
    """A machine that has made a tree of which the server has not heard, thousands of changes, and another that reads a file
    deep in that tree, each time another one. Only what leads to the file has to be told for it. No more files than that this is
    not taken for a walk through the whole tree, for which all of it is told. Then one in a directory of thousands of such files:
    it is what another machine asks for, with all its names."""

    READ = Kind("conflict in an untold tree", "ms", better="lower")
    SLOWEST = Kind("the slowest of 20 in it", "ms", better="lower")
    TOLD = Kind("changes told for a conflict", "", better="lower")
    LEAST_UNTOLD = Kind("changes untold beside it, at least", "")
    WIDE = Kind("conflict in a wide untold directory", "ms", better="lower")
    TOLD_WIDE = Kind("changes told for that", "", better="lower")
    most_rounds = 3

    def applies(self, target: Target) -> bool:
        return isinstance(target, Soda)

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        assert isinstance(target, Soda)
        with target.patient_mount() as mount:
            return self.conflicts(target, mount, base, sizes)

    def conflicts(self, target: Soda, mount: Path, base: Path, sizes: Sizes) -> Measured:
        held, trials = mount / base.name / "held", range(min(20, sizes.trips // 5))
        held.mkdir()
        delays = bool(target.patience)
        for number in itertools.count():
            # All of them before the other mount looks for the first time; then what is to be untold beside them.
            if number in trials:
                (held / wanted_file(number)).parent.mkdir(parents=True)
                (held / wanted_file(number)).write_bytes(content_of(number))
            elif not delays or self.untold(target, mount) >= sizes.untold + 10 * len(trials):
                break
            else:
                make_directory(held, number)
            if number > sizes.untold:
                raise Failed(f"{mount} does not delay {sizes.untold} changes")
        there, reads, told, untold = target.roots[1] / "bench/held", [], [], []
        with CountedUntold(target, [mount, target.roots[1]]) as counted:
            for number in trials:
                before = self.told(target, mount)
                start = now()
                content = (there / wanted_file(number)).read_bytes()
                reads.append(now() - start)
                told.append(self.told(target, mount) - before)
                untold.append(self.untold(target, mount))
                if content != content_of(number):
                    raise Failed(f"{there}/{wanted_file(number)} is not as it was written")
        if delays and min(untold) < sizes.untold:
            raise Failed(f"{min(untold)} changes untold: less than {sizes.untold}")
        figures: Measured = {
            self.READ: statistics.median(reads) * 1e3,
            self.SLOWEST: statistics.quantiles(reads, n=20)[-1] * 1e3,
            **counted.per("conflict in an untold tree", len(trials)),
        }
        if delays:
            figures.update({self.TOLD: statistics.median(told), self.LEAST_UNTOLD: min(untold)})
        (held / "wide").mkdir()
        files = max(1, sizes.untold * 2 // 5)
        for file in range(files):
            (held / f"wide/file{file}").write_bytes(content_of(file))
        before, start = self.told(target, mount), now()
        content = (there / f"wide/file{files // 2}").read_bytes()
        figures[self.WIDE] = (now() - start) * 1e3
        if content != content_of(files // 2):
            raise Failed(f"{there}/wide/file{files // 2} is not as it was written")
        if delays:
            figures[self.TOLD_WIDE] = self.told(target, mount) - before
        return figures

    def untold(self, target: Soda, mount: Path) -> int:
        return target.counters(mount)["backlog_records"]

    def told(self, target: Soda, mount: Path) -> int:
        return target.counters(mount)["digested"]


def wanted_file(number: int) -> str:
    return f"wanted{number}/one/two/file"


def make_directory(held: Path, number: int) -> None:
    (held / f"busy{number}").mkdir()
    for file in range(100):
        (held / f"busy{number}/file{file}").write_bytes(content_of(file))


def file_of(number: int) -> str:
    return f"dir{number // 100}/file{number}"


def content_of(number: int) -> bytes:
    return stamp(number) * 32


def make_until(base: Path, made, stop) -> None:
    for number in itertools.count():
        if stop.is_set():
            return
        if number % 100 == 0:
            (base / f"dir{number // 100}").mkdir()
        (base / file_of(number)).write_bytes(content_of(number))
        made.value = number + 1


class Coherence(Phase):
    """One mount changes something and the call returns; the other, which has it cached, looks at once. Each look that shows
    the old state is a stale one. And records that both append to one log: how many are gone."""

    most_rounds = 1
    # Longer than the second that many file systems cache for.
    PATIENCE_S = 1.5

    def applies(self, target: Target) -> bool:
        return len(target.roots) > 1

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        here, there = base, target.roots[1] / "bench"
        wait_for(there)
        kinds = {
            "overwrite, through a held descriptor": overwrites_held,
            "overwrite, opened again": overwrites_reopened,
            "growth of a file": growths,
            "created name": creates,
            "unlinked name": unlinks,
            "renamed file": renames,
            "mode of a file": chmods,
        }
        found: Measured = {}
        for name, trials in kinds.items():
            directory = name.replace(" ", "-")
            (here / directory).mkdir()
            wait_for(there / directory)
            found[Kind(name, "stale")] = self.count(
                trials(here / directory, there / directory, sizes.trials), sizes
            )
        found[Kind("records appended by both", "lost")] = appended_by_both(here, there, 10 * sizes.trials)
        return found

    def count(self, trials: "Looks", sizes: Sizes) -> Trials:
        """Each of `trials` is carried out when it is drawn."""
        outcome, begun = Trials(), None
        for fresh in trials:
            start, stale = now(), False
            begun = begun or start
            while not fresh() and now() - start < self.PATIENCE_S:
                stale = True
                time.sleep(0.001)
            outcome += Trials(1, 1, (min(now() - start, self.PATIENCE_S),)) if stale else Trials(1)
            if now() - begun > sizes.trial_seconds:
                break
        return outcome


# Makes a change on one mount, then yields a look from the other: does it see the change?
Looks = Iterator[Callable[[], bool]]


def wait_for(path: Path) -> None:
    end = now() + 30
    while not path.exists():
        if now() > end:
            raise Failed(f"{path} is not seen after 30 s")
        time.sleep(0.02)


def stamp(number: int) -> bytes:
    return struct.pack("<Q", number) * 16


def read_stamp(file: io.FileIO) -> bytes:
    return os.pread(file.fileno(), 128, 0)


def overwrites_held(here: Path, there: Path, count: int) -> Looks:
    (here / "file").write_bytes(stamp(0))
    wait_for(there / "file")
    with open(here / "file", "r+b", buffering=0) as writer, open(there / "file", "rb", buffering=0) as reader:
        for number in range(1, count + 1):
            read_stamp(reader)
            os.pwrite(writer.fileno(), stamp(number), 0)
            os.fsync(writer)
            yield lambda: read_stamp(reader) == stamp(number)


def overwrites_reopened(here: Path, there: Path, count: int) -> Looks:
    (here / "file").write_bytes(stamp(0))
    wait_for(there / "file")
    for number in range(1, count + 1):
        (there / "file").read_bytes()
        with open(here / "file", "r+b") as file:
            file.write(stamp(number))
        yield lambda: (there / "file").read_bytes() == stamp(number)


def growths(here: Path, there: Path, count: int) -> Looks:
    (here / "file").write_bytes(b"")
    wait_for(there / "file")
    with open(here / "file", "ab", buffering=0) as writer:
        for number in range(1, count + 1):
            os.stat(there / "file")
            writer.write(b"x")
            os.fsync(writer)
            yield lambda: os.stat(there / "file").st_size == number


def creates(here: Path, there: Path, count: int) -> Looks:
    for number in range(count):
        assert not (there / f"file{number}").exists()
        (here / f"file{number}").touch(exist_ok=False)
        yield (there / f"file{number}").exists


def with_files(here: Path, there: Path, count: int) -> Iterator[str]:
    """Names of files that exist and that the other mount has looked at."""
    for number in range(count):
        (here / f"file{number}").write_bytes(b"abc")
    wait_for(there / f"file{count - 1}")
    # Whatever is cached for a while after its creation is cached from now on.
    time.sleep(1.2)
    for number in range(count):
        os.stat(there / f"file{number}")
        yield f"file{number}"


def unlinks(here: Path, there: Path, count: int) -> Looks:
    for name in with_files(here, there, count):
        os.unlink(here / name)
        yield lambda: not (there / name).exists()


def renames(here: Path, there: Path, count: int) -> Looks:
    for name in with_files(here, there, count):
        (there / f"new-{name}").exists()
        os.rename(here / name, here / f"new-{name}")
        yield lambda: (there / f"new-{name}").exists() and not (there / name).exists()


def chmods(here: Path, there: Path, count: int) -> Looks:
    for name in with_files(here, there, count):
        os.chmod(here / name, 0o640)
        yield lambda: os.stat(there / name).st_mode & 0o777 == 0o640


RECORD_BYTES = 64


def appended_by_both(here: Path, there: Path, count: int) -> Trials:
    """`count` records from each mount at the same time, O_APPEND; how many of them are not in the file."""
    (here / "log").touch()
    wait_for(there / "log")
    writers = [
        multiprocessing.Process(target=append, args=(directory / "log", who, count))
        for who, directory in (("A", here), ("B", there))
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if any(writer.exitcode for writer in writers):
        raise Failed(f"appending to {here}/log failed")
    # For those that cache by time.
    time.sleep(Coherence.PATIENCE_S)
    records = {line for line in (here / "log").read_bytes().split(b"\n") if len(line) == RECORD_BYTES - 1}
    return Trials(2 * count, 2 * count - len(records))


def append(path: Path, who: str, count: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in range(count):
        os.write(fd, f"{who}{number:0{RECORD_BYTES - 2}d}\n".encode())
    os.close(fd)
