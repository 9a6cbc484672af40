"""What leases save and what they cost."""

import ctypes
import os
import random
import re
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from phases.base import MIB, Kind, Measured, Phase, Sizes, create, now
from phases.data import read_blocks, write_file
from targets import PROJECT, Local, Passthrough, Soda, SodaServer, Target, is_mounted, run


class CacheAndServer(Phase):
    """The SODA paper's measure: 1 KiB read from the client's cache over 1 KiB read from the server. Places far apart, so
    that nothing read ahead helps."""

    RATIO, SERVER = Kind("cache over server", "x"), Kind("1 KiB read from server", "us", better="lower")
    STRIDE = 4 * MIB
    most_rounds = 3

    def applies(self, target: Target) -> bool:
        return not isinstance(target, (Local, Passthrough))

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        path, places = base / "file", max(8, sizes.sequential_mib * MIB // self.STRIDE)
        with open(path, "wb") as file:
            for place in range(places):
                file.seek(place * self.STRIDE)
                file.write(os.urandom(4096))
            file.flush()
            os.fsync(file.fileno())
        self.make_cold(target)
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        order = list(range(places))
        random.Random(1).shuffle(order)
        times = []
        for _ in range(3):
            samples = []
            for place in order:
                start = now()
                os.pread(fd, 1024, place * self.STRIDE)
                samples.append(now() - start)
            times.append(statistics.median(samples))
        os.close(fd)
        return {self.RATIO: times[0] / min(times[1:]), self.SERVER: times[0] * 1e6}


class LeasesOnAndOff(Phase):
    """What the promise costs who reads from the server: the same reads from two servers on the same machine, one of which
    grants leases and one nothing (`--object-term 0`, and clients that go by time-outs, or they would ask twice).

    Only messages that both send are timed: one LOOKUP and one READ for each file that the client has never seen. Opening
    is not: without leases it costs two more messages. Each file is read here and there in turn, so that whatever else the
    machine does meets both; halfway the servers change roles, so that the layout of their data does not count."""

    SMALL = Kind("leases off over on, 1 KiB files", "x")
    SEQUENTIAL = Kind("leases off over on, sequential", "x")
    LOOKUP = Kind("leases off over on, LOOKUP", "x")
    READ = Kind("leases off over on, READ", "x")
    ON = Kind("LOOKUP and READ with leases", "us", better="lower")
    SERVE_OFF, MOUNT_OFF = ("--object-term", "0"), ("consistency=ttl=3600",)
    STREAMS = 8
    most_rounds = 3

    def applies(self, target: Target) -> bool:
        return isinstance(target, Soda)

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        # Beside the target's own server, which stays idle.
        place = target.base / "leases"
        place.mkdir(exist_ok=True)
        # All of it fits into the servers' caches.
        count, mib = sizes.small_files // 2, max(sizes.cached_mib // 2 // self.STREAMS, 1)
        with ExitStack() as cleanup:
            sides = [Side(place, name, cleanup) for name in ("a", "b")]
            for side in sides:
                side.fill(count, self.STREAMS, mib)
            lookups, reads, streams = Pairs(), Pairs(), Pairs()
            for on, off in (sides, sides[::-1]):
                on.restart((), ())
                off.restart(self.SERVE_OFF, self.MOUNT_OFF)
                for number in range(count):
                    lookups.add(number, lambda: on.stat(number), lambda: off.stat(number))
                # All are opened before one is read: who has just sent a message is awake and answers the next one sooner.
                for first in range(0, count, 100):
                    numbers = range(first, min(first + 100, count))
                    readers = [(on.reader(number), off.reader(number)) for number in numbers]
                    for number, pair in zip(numbers, readers):
                        reads.add(number, *pair)
                    on.close_all()
                    off.close_all()
                readers = [
                    (on.stream(number, mib), off.stream(number, mib)) for number in range(self.STREAMS)
                ]
                for number, pair in enumerate(readers):
                    streams.add(number, *pair)
        on_total = lookups.on() + reads.on()
        return {
            self.SMALL: (lookups.off() + reads.off()) / on_total,
            self.LOOKUP: lookups.off() / lookups.on(),
            self.READ: reads.off() / reads.on(),
            self.SEQUENTIAL: streams.off() / streams.on(),
            self.ON: on_total * 1e6,
        }


class Pairs:
    """Times of the same done with leases and without, one right after the other, each first in turn."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"on": [], "off": []}

    def add(self, number: int, on: Callable[[], object], off: Callable[[], object]) -> None:
        pair = [("on", on), ("off", off)]
        for name, work in pair if number % 2 else reversed(pair):
            start = now()
            work()
            self.times[name].append(now() - start)

    def on(self) -> float:
        return statistics.median(self.times["on"])

    def off(self) -> float:
        return statistics.median(self.times["off"])


class Side:
    """A server of its own with one mount."""

    def __init__(self, place: Path, name: str, cleanup: ExitStack):
        self.server, self.mount = SodaServer(place / f"data.{name}"), place / f"mount.{name}"
        self.mount.mkdir(exist_ok=True)
        self.fds: list[int] = []
        cleanup.callback(self.stop)

    def fill(self, count: int, streams: int, mib: int) -> None:
        self.server.start()
        self.server.mount(self.mount)
        self.root = self.mount / "tree"
        if not self.root.exists():
            self.root.mkdir()
            create(self.root, range(count), os.urandom(1024))
            for number in range(streams):
                write_file(self.root / f"large{number}", mib)
        self.stop()

    def restart(self, serve: tuple[str, ...], mount: tuple[str, ...]) -> None:
        """The server's caches are warm afterwards, the client's cold."""
        self.stop()
        self.server.start(*serve)
        self.server.mount(self.mount)
        for path in self.root.iterdir():
            path.read_bytes()
        run(Soda.program, "umount", self.mount)
        self.server.mount(self.mount, *mount)
        self.root.stat()

    def stat(self, number: int) -> None:
        os.stat(f"{self.root}/file{number}")

    def reader(self, number: int) -> Callable[[], object]:
        fd = self.opened(f"file{number}")
        return lambda: os.pread(fd, 1024, 0)

    def stream(self, number: int, mib: int) -> Callable[[], object]:
        fd = self.opened(f"large{number}")
        return lambda: read_blocks(fd, mib)

    def opened(self, name: str) -> int:
        """A descriptor of a file whose attributes the client has just asked for, or would ask for while it reads."""
        fd = os.open(self.root / name, os.O_RDONLY)
        self.fds.append(fd)
        ask_attributes(fd)
        return fd

    def close_all(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def stop(self) -> None:
        self.close_all()
        if is_mounted(self.mount):
            run(Soda.program, "umount", self.mount)
        self.server.stop()


AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, STATX_BYTES = 0x1000, 0x2000, 0x7FF, 256
LIBC = ctypes.CDLL(None, use_errno=True)


def ask_attributes(fd: int) -> None:
    """fstat that is not answered from the kernel's cache."""
    if LIBC.statx(
        fd,
        b"",
        AT_EMPTY_PATH | AT_STATX_FORCE_SYNC,
        STATX_BASIC_STATS,
        ctypes.create_string_buffer(STATX_BYTES),
    ):
        raise OSError(ctypes.get_errno(), "statx")


class LeaseMemory(Phase):
    """Bytes of the server's table for each of a million leases of a thousand sessions, as the lease crate's own test counts
    them: the most expensive of its two ways to hold a million."""

    BYTES = Kind("memory per lease", "bytes", better="lower")
    most_rounds = 1

    def applies(self, target: Target) -> bool:
        return isinstance(target, Soda)

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        output = run(
            "cargo",
            "test",
            "--release",
            "--locked",
            "-p",
            "soda-lease",
            "--test",
            "scale",
            "--",
            "--nocapture",
            cwd=PROJECT,
        )
        return {self.BYTES: max(float(number) for number in re.findall(r"([\d.]+) bytes per lease", output))}
