"""The contents of large files."""

import json
import os
import statistics
import struct
from pathlib import Path

from phases.base import MIB, Counted, Kind, Measured, Phase, Sizes, now
from targets import Failed, Target, run, shell


def write_file(path: Path, mib: int, piece: int = MIB) -> None:
    """`mib` blocks of 1 MiB, each with its number in front, by calls for `piece` bytes; synced."""
    block = bytearray(os.urandom(MIB))
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    for number in range(mib):
        struct.pack_into("<Q", block, 0, number)
        view = memoryview(block)
        while view:
            view = view[os.write(fd, view[:piece]) :]
    os.fsync(fd)
    os.close(fd)


def read_file(path: Path, mib: int) -> float:
    """Opens it and reads it from end to end. Seconds."""
    start = now()
    fd = os.open(path, os.O_RDONLY)
    read_blocks(fd, mib)
    os.close(fd)
    return now() - start


def read_blocks(fd: int, mib: int) -> None:
    """Reads what `write_file` wrote and checks the number of every block."""
    buffer = bytearray(MIB)
    for number in range(mib):
        got = 0
        while got < MIB:
            count = os.readv(fd, [memoryview(buffer)[got:]])
            if not count:
                raise Failed(f"a file of {mib} MiB ends after {number} MiB and {got} bytes")
            got += count
        if struct.unpack_from("<Q", buffer)[0] != number:
            raise Failed(f"wrong data in block {number}")


def megabytes(mib: int, seconds: float) -> float:
    return mib * MIB / 1e6 / seconds


class Sequential(Phase):
    """1 GiB written in 1 MiB pieces with fsync in the end, and half of that in smaller ones; read with everything cold."""

    WRITE, READ = Kind("seq write", "MB/s"), Kind("seq read cold", "MB/s")
    SMALLER = {kib: Kind(f"seq write, {kib} KiB at a time", "MB/s") for kib in (128, 64, 4)}
    tree = Kind("entries beside a large file", "stale")
    most_rounds = 3

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        path = base / "file"
        with Counted(target) as counted:
            start = now()
            write_file(path, sizes.sequential_mib)
            written = now() - start
        smaller = {}
        for kib, kind in self.SMALLER.items():
            half = max(1, sizes.sequential_mib // 2)
            start = now()
            write_file(base / "smaller", half, kib << 10)
            smaller[kind] = megabytes(half, now() - start)
            (base / "smaller").unlink()
        self.make_cold(target)
        read = read_file(path, sizes.sequential_mib)
        return {
            self.WRITE: megabytes(sizes.sequential_mib, written),
            **smaller,
            self.READ: megabytes(sizes.sequential_mib, read),
            **counted.per("MiB of seq write", sizes.sequential_mib),
        }


class Cached(Phase):
    """A file that was just read: read again from end to end, and at random with fio."""

    REREAD, RANDOM = Kind("warm re-read", "MB/s"), Kind("warm random 4K read", "/s")

    def prepare(self) -> None:
        shell("install_packages fio >&2")

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        path = base / "file"
        write_file(path, sizes.cached_mib)
        for _ in range(2):
            read_file(path, sizes.cached_mib)
        reread = statistics.median(read_file(path, sizes.cached_mib) for _ in range(5))
        output = run(
            "fio",
            "--output-format=json",
            "--name=random",
            "--ioengine=psync",
            "--rw=randread",
            "--bs=4k",
            "--invalidate=0",
            f"--filename={path}",
            f"--size={sizes.cached_mib}m",
            "--time_based",
            f"--runtime={sizes.fio_seconds}",
            cwd="/",
        )
        iops = json.loads(output[output.index("{") :])["jobs"][0]["read"]["iops"]
        return {self.REREAD: megabytes(sizes.cached_mib, reread), self.RANDOM: iops}
