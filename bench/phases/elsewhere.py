"""What another machine sees of a tree: while it is made, and afterwards."""

import hashlib
import multiprocessing
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

from phases.figures import Kind, Trials

LOOKS = Kind("looks of another mount during the run", "stale")
EVERY_S = 0.02


class Watcher:
    """A process that lists a directory somewhere below `base`, looks at what is in it and reads a file of it, fifty times a
    second. What it sees has to fit together: a file whose times are the same before and after it is read has the length that
    was read."""

    def __init__(self, base: Path):
        self.results = multiprocessing.Queue()
        self.stop = multiprocessing.Event()
        self.process = multiprocessing.Process(target=watch, args=(base, self.stop, self.results))

    def __enter__(self) -> "Watcher":
        self.process.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop.set()
        self.trials = Trials(*self.results.get(timeout=60))
        self.process.join()


def watch(base: Path, stop, results) -> None:
    chance = random.Random(1)
    looks = wrong = 0
    while not stop.wait(EVERY_S):
        try:
            right = look(base, chance)
        except OSError:
            # Moved or removed meanwhile, or not there yet.
            continue
        looks += 1
        wrong += not right
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
        length = len(file.read())
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
