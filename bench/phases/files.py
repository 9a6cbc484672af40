"""Many small files."""

import io
import multiprocessing
import os
import statistics
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from machine import Usage
from phases.base import Counted, Kind, Measured, Phase, Sizes, create, now, rate
from targets import Failed, Local, Passthrough, Soda, Target


class Small(Phase):
    """4 KiB files in directories of 100: made, looked at, read, removed, all by one thread; and archives of one such file,
    unpacked by tar. Where they are counted, how many requests of the kernel to the daemon and messages of the daemon to the
    server each takes."""

    CREATE, STAT, READ = Kind("create", "/s"), Kind("warm stat", "/s"), Kind("warm small read", "/s")
    LIST, UNLINK = Kind("warm readdir names", "/s"), Kind("unlink", "/s")
    TAR = Kind("tar x of one file", "/s")
    tree = Kind("entries of a tree of small files", "stale")

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        count, content = sizes.small_files, os.urandom(4096)
        directories = [base / f"dir{number}" for number in range(count // 100)]
        for directory in directories:
            directory.mkdir()
        paths = [f"{directory}/file{number}" for directory in directories for number in range(100)]

        def create_all() -> None:
            for directory in directories:
                create(directory, range(100), content)

        def stat_all() -> None:
            for path in paths:
                os.stat(path)

        def read_all() -> None:
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                data = os.read(fd, 8192)
                os.close(fd)
                assert len(data) == 4096

        def list_all() -> None:
            assert sum(len(os.listdir(directory)) for directory in directories) == count

        def unlink_all() -> None:
            for path in paths:
                os.unlink(path)

        figures: Measured = {}

        def measured(kind: Kind, work: Callable[[], None], times: int = 1) -> None:
            with Counted(target) as counted:
                figures[kind] = statistics.median(rate(count, work) for _ in range(times))
            figures.update(counted.per(kind.name, count * times))

        measured(self.CREATE, create_all)
        os.sync()
        # Last what is measured first: what FUSE has read it asks the attributes of once more (access time).
        for warm_up in (list_all, read_all, stat_all):
            warm_up()
        measured(self.STAT, stat_all, 5)
        measured(self.READ, read_all, 3)
        with Counted(target) as counted:
            stat_all()
        figures.update(counted.per("stat after a read", count))
        with Counted(target) as counted:
            figures[self.LIST] = statistics.median(rate(count, list_all) for _ in range(3))
        figures.update(counted.per("warm listing", 3 * len(directories)))
        measured(self.UNLINK, unlink_all)
        with archives_of_one_file(10, content) as archives, Counted(target) as counted:
            unpacked = len(archives) * len(directories)
            figures[self.TAR] = rate(unpacked, lambda: unpack_all(archives, directories))
        figures.update(counted.per(self.TAR.name, unpacked))
        for directory in directories:
            create(directory, range(0, 100, 10), content)
        return figures


@contextmanager
def archives_of_one_file(count: int, content: bytes) -> Iterator[list[Path]]:
    """Each with a file of a name of its own, on the local disk."""
    with tempfile.TemporaryDirectory(prefix="soda-bench.") as base:
        archives = [Path(base) / f"{number}.tar" for number in range(count)]
        for archive in archives:
            with tarfile.open(archive, "w") as tar:
                member = tarfile.TarInfo(f"unpacked{archive.stem}")
                member.size, member.mtime = len(content), 1_000_000_000
                tar.addfile(member, io.BytesIO(content))
        yield archives


def unpack_all(archives: list[Path], directories: list[Path]) -> None:
    for directory in directories:
        for archive in archives:
            subprocess.run(["tar", "xf", archive, "-C", directory], check=True)


class Names(Phase):
    """Names and modes in a tree that this mount has made: directories, modes of files, renames into another directory, and
    directories removed. By one thread."""

    MKDIR, CHMOD = Kind("mkdir", "/s"), Kind("chmod", "/s")
    RENAME, RMDIR = Kind("rename", "/s"), Kind("rmdir", "/s")
    tree = Kind("entries of a tree of names", "stale")

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        count = sizes.small_files // 2
        parents = [base / f"dir{number}" for number in range(count // 50)]
        for parent in parents:
            parent.mkdir()
            create(parent, range(50), b"")
        files = [
            (f"{parent}/file{number}", f"{other}/new{number}")
            for parent, other in zip(parents, parents[1:] + parents[:1])
            for number in range(50)
        ]
        directories = [f"{parent}/sub{number}" for parent in parents for number in range(50)]
        os.sync()
        steps: dict[Kind, Callable[[], None]] = {
            self.MKDIR: lambda: each(os.mkdir, directories),
            self.CHMOD: lambda: each(lambda names: os.chmod(names[0], 0o640), files),
            self.RENAME: lambda: each(lambda names: os.rename(*names), files),
            self.RMDIR: lambda: each(os.rmdir, directories),
        }
        figures: Measured = {}
        for kind, step in steps.items():
            with Counted(target) as counted:
                figures[kind] = rate(count, step)
            figures.update(counted.per(kind.name, count))
        return figures


def each(work: Callable, items: list) -> None:
    for item in items:
        work(item)


class Depth(Phase):
    """stat of one cached file at the end of a short and of a long path: what each directory on the way costs."""

    DEPTHS = {
        1: Kind("warm stat, depth 1", "/s"),
        4: Kind("warm stat, depth 4", "/s"),
        16: Kind("warm stat, depth 16", "/s"),
    }
    TIMES = 5_000

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        figures: Measured = {}
        # Relative to the file's first directory, so that the way there does not count.
        here = os.open(base, os.O_PATH)
        try:
            for depth, kind in self.DEPTHS.items():
                path = "/".join(["d"] * (depth - 1) + ["file"])
                (base / path).parent.mkdir(parents=True, exist_ok=True)
                (base / path).touch()

                def stat_often() -> None:
                    for _ in range(self.TIMES):
                        os.stat(path, dir_fd=here)

                stat_often()
                figures[kind] = statistics.median(rate(self.TIMES, stat_often) for _ in range(5))
        finally:
            os.close(here)
        return figures


class Clients(Phase):
    """The same number of creates by 1, 2, 4 and 8 clients at once, each in its own directory; on Soda each on its own mount,
    all on one server. How much of the machine eight of them use says whether more could be had."""

    KINDS = {
        clients: Kind(f"create, {clients} client{'s' if clients > 1 else ''}", "/s")
        for clients in (1, 2, 4, 8)
    }
    SCALING = Kind("create, best over 1 client", "x")
    FULL = Kind("machine used by 8 clients", "of all cores")
    tree = Kind("entries that several clients have made", "stale")

    def applies(self, target: Target) -> bool:
        return isinstance(target, (Local, Passthrough, Soda))

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        rates, busy = [], 0.0
        # Half of the small files each time: the pass-through keeps a descriptor for each of all four times.
        each_of_eight = sizes.small_files // 16
        for clients in self.KINDS:
            count = each_of_eight * 8 // clients
            directories = []
            for number in range(clients):
                root = target.roots[number % len(target.roots)]
                directories.append(root / "bench" / f"client{clients}.{number}")
                directories[-1].mkdir()
            barrier = multiprocessing.Barrier(clients + 1)
            workers = [
                multiprocessing.Process(
                    target=create_at_once, args=(directory, count, barrier)
                )
                for directory in directories
            ]
            with Counted(target, target.roots[:clients]) as counted:
                for worker in workers:
                    worker.start()
                barrier.wait()
                start, usage = now(), Usage()
                for worker in workers:
                    worker.join()
                rates.append(count * clients / (now() - start))
                busy = usage.since()["busy"]
            if any(worker.exitcode for worker in workers):
                raise Failed(f"a client failed on {target.name}")
        one, *several = rates
        figures: Measured = {**dict(zip(self.KINDS.values(), rates)), self.SCALING: max(several) / one, self.FULL: busy}
        return {**figures, **counted.per(f"create, {clients} clients", count * clients)}


def create_at_once(directory: Path, count: int, barrier) -> None:
    content = os.urandom(4096)
    barrier.wait()
    create(directory, range(count), content)


class Synced(Phase):
    """Files of 4 KiB that are made, written and fsync'ed, by one thread and by eight. Threads that wait for the same commit
    share its price."""

    ONE, EIGHT = Kind("fsync creates", "/s"), Kind("fsync creates, 8 threads", "/s")
    SHARED = Kind("fsync creates, 8 threads over 1", "x")
    tree = Kind("entries that were fsync'ed", "stale")

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        content, count = os.urandom(4096), sizes.synced_creates
        with Counted(target) as counted:
            one = rate(count, lambda: create(base, range(count), content, os.fsync))
        threads = [
            threading.Thread(
                target=create, args=(base, range(number * count, (number + 1) * count), content, os.fsync)
            )
            for number in range(1, 9)
        ]

        def all_threads() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        with Counted(target) as counted_eight:
            eight = rate(8 * count, all_threads)
        figures: Measured = {self.ONE: one, self.EIGHT: eight, self.SHARED: eight / one}
        figures.update(counted.per("fsync create", count))
        return {**figures, **counted_eight.per("fsync create, 8 threads", 8 * count)}
