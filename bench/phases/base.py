"""What all phases are made of."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from targets import Target

MIB = 1 << 20
now = time.perf_counter


@dataclass(frozen=True)
class Kind:
    """What a figure is: its name, unit, and whether more of it is better."""

    name: str
    unit: str
    better: str = "higher"

    def goodness(self, value: float, base: float) -> float:
        """How good a value is next to another: above 1 is better."""
        return value / base if self.better == "higher" else base / value


@dataclass
class Trials:
    """How often one of two mounts saw something old, or lost something, and for how long."""

    count: int = 0
    stale: int = 0
    delays: tuple[float, ...] = ()
    """Seconds until the truth was seen, or nobody looked any more, for those that were stale."""

    def __add__(self, other: "Trials") -> "Trials":
        return Trials(self.count + other.count, self.stale + other.stale, self.delays + other.delays)


@dataclass(frozen=True)
class Sizes:
    sequential_mib: int
    cached_mib: int
    small_files: int
    """A multiple of 100 and of 8."""
    fio_seconds: float
    synced_creates: int
    trips: int
    trials: int
    trial_seconds: float
    """At most for one kind of trial."""

    @staticmethod
    def full() -> "Sizes":
        return Sizes(
            sequential_mib=1024,
            cached_mib=256,
            small_files=4000,
            fio_seconds=3,
            synced_creates=200,
            trips=500,
            trials=200,
            trial_seconds=6,
        )

    @staticmethod
    def smoke() -> "Sizes":
        return Sizes(
            sequential_mib=32,
            cached_mib=8,
            small_files=200,
            fio_seconds=0.5,
            synced_creates=20,
            trips=50,
            trials=10,
            trial_seconds=1,
        )


Measured = dict[Kind, float | Trials]


class Phase:
    most_rounds = 100

    def prepare(self) -> None:
        """Installs or fetches what it needs of the machine. Called once, before any target is started."""

    def applies(self, target: Target) -> bool:
        return True

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        """`base` is a new directory on the first of the target's roots."""
        raise NotImplementedError

    def run(self, target: Target, sizes: Sizes) -> Measured:
        """Measures once. Leaves nothing behind."""
        base = target.roots[0] / "bench"
        base.mkdir()
        try:
            os.sync()
            return self.measure(target, base, sizes)
        finally:
            remove(base)


def remove(base: Path) -> None:
    """Everything below. By path, for the target may have been remounted; more than once, for some see what another of their
    mounts did only a while later."""
    end = now() + 10
    while base.exists():
        try:
            shutil.rmtree(base)
        except OSError:
            if now() > end:
                raise
            time.sleep(0.1)


def rate(count: int, work: Callable[[], None]) -> float:
    """How many a second, if `work` does `count`."""
    start = now()
    work()
    return count / (now() - start)


def create(
    directory: Path, numbers: range, content: bytes, sync: Callable[[int], None] | None = None
) -> None:
    """New files in a directory, each opened, written, synced if that is wanted, and closed."""
    for number in numbers:
        fd = os.open(f"{directory}/file{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(fd, content)
        if sync:
            sync(fd)
        os.close(fd)
