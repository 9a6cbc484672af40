"""What Soda must reach, and whether it does."""

import re
from dataclasses import dataclass
from enum import Enum


class Bound(Enum):
    AT_LEAST = ">="
    AT_MOST = "<="


class Nature(Enum):
    TIMED = "timed"
    """Depends on the machine, and on what else it does."""
    COUNTED = "counted"
    """The same on every machine: a test, also with the smallest sizes."""
    REQUESTS = "requests"
    """Counted, too, but older kernels ask the daemon more often: a test from `ASKS_LITTLE` on."""


ASKS_LITTLE = (6, 16)
"""The first Linux whose requests the bounds are for."""


@dataclass(frozen=True)
class Goal:
    words: str
    figure: str
    against: str | None
    """The target that it is relative to (above 1 is better); None: the figure itself."""
    bound: Bound
    limit: float
    nature: Nature = Nature.TIMED
    target: str = "soda"
    """Whose figure it is."""


LEAST, MOST = Bound.AT_LEAST, Bound.AT_MOST

GOALS = [
    Goal(
        "re-read of a cached 256 MiB file, over the pass-through", "warm re-read", "passthrough", LEAST, 1.0
    ),
    Goal("4 KiB random reads of it, over the pass-through", "warm random 4K read", "passthrough", LEAST, 1.0),
    Goal("stat of cached names, over local", "warm stat", "local", LEAST, 0.85),
    Goal(
        "stat of a cached name: requests to the daemon",
        "requests per warm stat",
        None,
        MOST,
        0.01,
        Nature.REQUESTS,
    ),
    Goal(
        "open+read+close of a cached small file, over the pass-through",
        "warm small read",
        "passthrough",
        LEAST,
        1.0,
    ),
    Goal("... requests to the daemon", "requests per warm small read", None, MOST, 3.05, Nature.REQUESTS),
    Goal("a read from the client's cache over one from the server", "cache over server", None, LEAST, 13),
    Goal(
        "small reads from the server, leases off over on",
        "leases off over on, 1 KiB files",
        None,
        LEAST,
        0.95,
    ),
    Goal("... of that the look-up alone", "leases off over on, LOOKUP", None, LEAST, 0.95),
    Goal("... of that the read alone", "leases off over on, READ", None, LEAST, 0.95),
    Goal(
        "sequential reads from the server, leases off over on",
        "leases off over on, sequential",
        None,
        LEAST,
        0.95,
    ),
    Goal("cold sequential read of 1 GiB, over the pass-through", "seq read cold", "passthrough", LEAST, 0.6),
    Goal(
        "sequential write of 1 GiB with fsync, over the pass-through", "seq write", "passthrough", LEAST, 0.7
    ),
    *(
        Goal(f"... {kib} KiB at a time", f"seq write, {kib} KiB at a time", "passthrough", LEAST, 0.7)
        for kib in (128, 64)
    ),
    Goal("create+write+close by one thread, a second", "create", None, LEAST, 3000),
    Goal("... over the pass-through", "create", "passthrough", LEAST, 1.5),
    *(Goal(f"... over {peer}", "create", peer, LEAST, 15) for peer in ("juicefs", "gluster", "sshfs")),
    Goal("... requests to the daemon", "requests per create", None, MOST, 6.1, Nature.REQUESTS),
    Goal(
        "creates scale with clients: the best of 2, 4 and 8 over one",
        "create, best over 1 client",
        None,
        LEAST,
        1.0,
    ),
    Goal("... until the machine is full", "machine used by 8 clients", None, LEAST, 0.9),
    Goal(
        "fsync'ed creates share group commits: 8 threads over 1",
        "fsync creates, 8 threads over 1",
        None,
        LEAST,
        3.0,
    ),
    *(
        Goal(f"{name} in a held tree, over the pass-through", name, "passthrough", LEAST, 1.0)
        for name in ("unlink", "mkdir", "rename", "chmod")
    ),
    Goal("openssh, 1.15 times the pass-through's time", "ssh all three", "passthrough", LEAST, 1 / 1.15),
    Goal("... 1.3 times the local disk's", "ssh all three", "local", LEAST, 1 / 1.3),
    Goal("... its messages, write=through over behind", "messages per openssh", "soda-through", LEAST, 6.2),
    *(
        Goal(f"{name}, 1.5 times the local disk's time", name, "local", LEAST, 1 / 1.5)
        for name in ("git clone", "warm git status", "cold git status", "npm ci")
    ),
    Goal("two append in turns, over write=through", "append in turns", "soda-through", LEAST, 1.0),
    Goal("one reads what another writes, over write=through", "write here, read there", "soda-through", LEAST, 1.0),
    Goal("a read of one file beside a busy writer, ms", "read beside a busy writer", None, MOST, 20),
    Goal("... over write=through", "read beside a busy writer", "soda-through", LEAST, 1.0),
    Goal(
        "a conflict in a tree with 10,000 changes untold, ms",
        "conflict in an untold tree",
        None,
        MOST,
        20,
    ),
    Goal("... changes told for it", "changes told for a conflict", None, MOST, 20, Nature.COUNTED),
    Goal("a conflict in a directory of 4,000 untold files, ms", "conflict in a wide untold directory", None, MOST, 20),
    Goal("a write that invalidates a reader, us", "recall", None, MOST, 1000),
    Goal("memory of the table per lease, bytes", "memory per lease", None, MOST, 200, Nature.COUNTED),
]


def through(words: str, figure: str, bound: Bound, limit: float, nature: Nature = Nature.TIMED) -> Goal:
    return Goal(f"write=through: {words}", figure, None, bound, limit, nature, target="soda-through")


COUNT = Nature.REQUESTS

OF_ONE = {
    "unlink": 3.05,
    "mkdir": 3.05,
    "rename": 4.05,
    "rmdir": 3.05,
    "chmod": 1.1,
    "warm listing": 2.5,
    "tar x of one file": 12.3,
    "fsync create": 7.1,
    "stat after a read": 1.05,
}
"""Operation: requests to the daemon at most. Which these are is in PERFORMANCE.md."""

GOALS += [
    Goal(f"{operation}: requests to the daemon", f"requests per {operation}", None, MOST, most, Nature.REQUESTS)
    for operation, most in OF_ONE.items()
]

GOALS += [
    through("create+write+close by one thread, a second", "create", LEAST, 3000),
    through("... requests to the daemon", "requests per create", MOST, 6.1, Nature.REQUESTS),
    *(
        through(f"{operation}: requests to the daemon", f"requests per {operation}", MOST, most, Nature.REQUESTS)
        for operation, most in OF_ONE.items()
    ),
    *(
        Goal(f"io_uring: {operation}: requests to the daemon", f"requests per {operation}", None, MOST, most, COUNT, "soda-uring")
        for operation, most in {**OF_ONE, "create": 6.1}.items()
    ),
    through("creates, the best of 2, 4 and 8 clients over one", "create, best over 1 client", LEAST, 1.0),
    through("fsync'ed creates, 8 threads over 1", "fsync creates, 8 threads over 1", LEAST, 2.0),
    through("a write that invalidates a reader, us", "recall", MOST, 1000),
]
"""Last those of another target."""


def door(words: str, figure: str, bound: Bound, limit: float, target: str, against: str | None = None) -> Goal:
    return Goal(f"{target}: {words}", figure, against, bound, limit, target=target)


DOOR = [
    door("a request's median, us", "getattr, median", MOST, 12, "null-uring"),
    door("the same, of Soda", "getattr, median", MOST, 12, "soda-uring"),
    door("requests of 4 threads, over /dev/fuse", "getattr by 4 threads", LEAST, 1.4, "null-uring", "null-dev-4"),
    door("the same, of Soda", "getattr by 4 threads", LEAST, 1.4, "soda-uring", "soda-dev"),
    door("create+write+close, over /dev/fuse", "create", LEAST, 1.5, "soda-uring", "soda-dev"),
    door("open+read+close of a cached small file, median, us", "open+read+close, median", MOST, 10, "soda-uring"),
    door("... by a file system that does nothing itself", "open+read+close, median", MOST, 10, "null-uring"),
    door("data in the daemon's memory, MB/s", "read from memory", LEAST, 1500, "soda-dev"),
    door("data in the daemon's memory, MB/s", "read from memory", LEAST, 1500, "soda-uring"),
    door("data in the cache directory, MB/s", "read from cache-dir", LEAST, 1500, "soda-dev"),
    door("data in the cache directory, MB/s", "read from cache-dir", LEAST, 1500, "soda-uring"),
]
"""Those of `bench/door`."""


@dataclass(frozen=True)
class Judged:
    goal: Goal
    value: float

    @property
    def met(self) -> bool:
        return self.value >= self.goal.limit if self.goal.bound is LEAST else self.value <= self.goal.limit


def judge(figures: dict, goals: list[Goal] = GOALS) -> list[Judged]:
    """The goals that a series' figures (as in the JSON) say something about."""
    judged = []
    for goal in goals:
        figure = figures.get(goal.figure, {"targets": {}, "ratios": {}})
        if goal.against is None:
            value = figure["targets"].get(goal.target, {}).get("median")
        else:
            value = figure["ratios"].get(goal.against, {}).get(goal.target)
        if value is not None:
            judged.append(Judged(goal, value))
    return judged


def missed_counts(figures: dict, kernel: str, watched: bool) -> list[str]:
    """What of a series fails as a test does, a line each: goals that are counted, and anything that two mounts of Soda see
    stale or lose. Who is `watched` takes more requests."""
    natures = {Nature.COUNTED}
    if not watched and tuple(int(number) for number in re.findall(r"\d+", kernel)[:2]) >= ASKS_LITTLE:
        natures.add(Nature.REQUESTS)
    missed = [judged for judged in judge(figures) if judged.goal.nature in natures and not judged.met]
    lines = [
        f"{judged.goal.figure}: {judged.value:.3g}, the bound is {judged.goal.bound.value} {judged.goal.limit:g}"
        for judged in missed
    ]
    for name, figure in figures.items():
        for target in ("soda", "soda-through", "soda-uring"):
            if wrong := figure["targets"].get(target, {}).get("stale", 0):
                lines.append(f"{name}, {target}: {wrong} {figure['unit']}")
    return lines
