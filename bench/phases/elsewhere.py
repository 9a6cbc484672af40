"""What another machine sees of a tree: while it is made, and afterwards."""

import errno
import hashlib
import itertools
import multiprocessing
import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phases.figures import Kind, Trials
from targets import Failed

LOOKS = Kind("looks of another mount during the run", "stale")
EVERY_S = 0.02
LARGE = 1 << 20
# What a look may meet in a tree that changes: the name, or what it meant, is gone.
GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)


class Watcher:
    """Two processes, fifty times a second, while a phase works in `base`. One lists a directory somewhere below `base` through
    another mount (`there`), looks at what is in it and reads a file of it. What it sees has to fit together: a file whose times are
    the same before and after it is read has the length that was read. The other process writes a number into a beacon, a file
    beside `base`, and makes a name of it; whoever looks on the other mount then must find that number or a later one, and the name."""

    def __init__(self, base: Path, there: Path):
        self.beacons = base.parent / "beacons", there.parent / "beacons"
        self.results = multiprocessing.Queue()
        self.stop = multiprocessing.Event()
        self.said = multiprocessing.Value("q", 0)
        self.working = multiprocessing.Lock(), multiprocessing.Lock()
        # A directory for each run: what is left of one says nothing to the next.
        self.beacons[0].mkdir(exist_ok=True)
        for name in os.listdir(self.beacons[0]):
            os.unlink(self.beacons[0] / name)
        self.processes = [
            multiprocessing.Process(target=say, args=(self.beacons[0], self.said, self.working[0], self.stop)),
            multiprocessing.Process(target=watch, args=(there, self.beacons[1], self.said, self.working[1], self.stop, self.results)),
        ]

    def __enter__(self) -> "Watcher":
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop.set()
        self.trials = Trials(*self.results.get(timeout=60))
        for process in self.processes:
            process.join()
        if any(process.exitcode for process in self.processes):
            raise Failed("who looks at the tree beside the measuring has failed")
        shutil.rmtree(self.beacons[0])

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Within it neither process has anything open on a mount, so that these can be taken away and come back."""
        with self.working[0], self.working[1]:
            yield


def say(beacons: Path, said, working, stop) -> None:
    """Writes a number down and makes a name of it, and removes the one before; what is said has been done."""
    (beacons / "number").touch()
    for number in itertools.count(1):
        if stop.wait(EVERY_S):
            return
        with working, open(beacons / "number", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"%016d" % number, 0)
            (beacons / str(number)).touch()
            if number > 1:
                os.unlink(beacons / str(number - 1))
            said.value = number


def heard(beacons: Path, said) -> bool:
    """Whether what was said before is seen."""
    least = said.value
    if not least:
        return True
    there = (beacons / str(least)).exists()
    number = int((beacons / "number").read_bytes())
    # A name goes when the next number has been written.
    return number >= least + (not there)


def watch(base: Path, beacons: Path, said, working, stop, results) -> None:
    chance = random.Random(1)
    looks = wrong = 0
    while not stop.wait(EVERY_S):
        for right in (lambda: look(base, chance), lambda: heard(beacons, said)):
            try:
                with working:
                    wrong += not right()
            except OSError as error:
                if error.errno in GONE:
                    # Moved or removed meanwhile, or not there yet.
                    continue
                wrong += 1
            looks += 1
    if not looks:
        # What is left is at rest: nothing excuses who cannot look at it.
        try:
            looks, wrong = 1, int(not look(base, chance))
        except OSError:
            looks, wrong = 1, 1
    results.put((looks, wrong))


def look(base: Path, chance: random.Random) -> bool:
    """Whether what is seen in one directory fits together."""
    directory, files = str(base), []
    while True:
        directories = []
        files = []
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            (directories if stat.S_ISDIR(os.lstat(path).st_mode) else files).append(path)
        if not directories or chance.random() < 0.3:
            break
        directory = chance.choice(directories)
    regular = [path for path in files if stat.S_ISREG(os.lstat(path).st_mode)]
    if not regular:
        return True
    with open(chance.choice(regular), "rb") as file:
        before = os.fstat(file.fileno())
        # Of a large file its end: to read all of it fifty times a second would be a load of its own.
        start = 0 if before.st_size <= LARGE else before.st_size - 1
        file.seek(start)
        length = start + len(file.read(LARGE))
        after = os.fstat(file.fileno())
    same = (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
    return not same or before.st_size == after.st_size == length


def compared(here: Path, there: Path) -> Trials:
    """How many entries of a tree another mount does not show exactly so: names, types, modes, owners, sizes, times, contents."""
    mine, theirs = dict(entries(here)), dict(entries(there))
    paths = mine.keys() | theirs.keys()
    return Trials(len(paths), sum(mine.get(path) != theirs.get(path) for path in paths))


def entries(base: Path) -> Iterator[tuple[str, tuple]]:
    for directory, names, files in os.walk(base):
        for name in names + files:
            path = os.path.join(directory, name)
            about = os.lstat(path)
            content = b""
            if stat.S_ISLNK(about.st_mode):
                content = os.readlink(path).encode()
            elif stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha1").digest()
            size = 0 if stat.S_ISDIR(about.st_mode) else about.st_size
            owner = about.st_uid, about.st_gid
            yield os.path.relpath(path, base), (about.st_mode, owner, size, about.st_mtime_ns, content)
