"""What all phases are made of."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from phases.elsewhere import LOOKS, Watcher, compared
from phases.figures import Kind, Measured, Trials
from targets import Target

MIB = 1 << 20
now = time.perf_counter


@dataclass(frozen=True)
class Sizes:
    sequential_mib: int
    cached_mib: int
    small_files: int
    """A multiple of 100 and of 8."""
    untold: int
    """Changes that the server has not heard of while somebody asks for one of them."""
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
            small_files=5000,
            untold=10_000,
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
            # Ten looks at so few are no walk through all of them yet.
            untold=4500,
            fio_seconds=0.5,
            synced_creates=20,
            trips=50,
            trials=10,
            trial_seconds=1,
        )


class Phase:
    most_rounds = 100
    tree: Kind | None = None
    """If set, what is left at the end is compared with what another mount of the target sees: the figure's name."""
    watcher: Watcher | None = None
    """Who looks meanwhile."""

    def prepare(self) -> None:
        """Installs or fetches what it needs of the machine. Called once, before any target is started."""

    def applies(self, target: Target) -> bool:
        return True

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        """`base` is a new directory on the first of the target's roots."""
        raise NotImplementedError

    def run(self, target: Target, sizes: Sizes, watched: bool = False) -> Measured:
        """Measures once. Leaves nothing behind. `watched`: while another mount looks."""
        base = target.roots[0] / "bench"
        base.mkdir()
        try:
            os.sync()
            if watched and len(target.roots) > 1:
                try:
                    with Watcher(base, target.roots[1] / "bench") as self.watcher:
                        measured = self.measure(target, base, sizes)
                    measured[LOOKS] = self.watcher.trials
                finally:
                    self.watcher = None
            else:
                measured = self.measure(target, base, sizes)
            if self.tree and len(target.roots) > 1:
                measured[self.tree] = compared(base, target.roots[1] / "bench")
            return measured
        finally:
            remove(base)

    def make_cold(self, target: Target) -> None:
        """A mount may be taken away for it, so whoever looks rests meanwhile."""
        with self.watcher.resting() if self.watcher else nullcontext():
            target.cold()


class Counted:
    """What some work on mounts of a target (its first one, unless others are named) took beside time, where the target counts
    it: filled when the work is done, and the server has been told of it."""

    def __init__(self, target: Target, roots: Sequence[Path] | None = None):
        self.target = target
        self.roots = target.roots[:1] if roots is None else roots
        self.counts: dict[str, int] = {}

    def __enter__(self) -> "Counted":
        self.before = self.look()
        return self

    def __exit__(self, *_) -> None:
        self.counts = {name: count - self.before[name] for name, count in self.look().items()}

    def look(self) -> dict[str, int]:
        self.target.settle(self.roots)
        return self.target.counts(self.roots)

    def per(self, what: str, operations: int = 1) -> Measured:
        """Figures `requests per WHAT` and `messages per WHAT`."""
        return {Kind(f"{name} per {what}", "", "lower"): count / operations for name, count in self.counts.items()}


class CountedUntold(Counted):
    """As it is when the work is done: what the server has not heard of then is not in it."""

    def look(self) -> dict[str, int]:
        return self.target.counts(self.roots)


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
