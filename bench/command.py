"""What the programs here have in common."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable

from targets import PROJECT


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes names, with commas between them."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return names

    return parse


def commit() -> str:
    """With `+` if there are changes that are not committed."""
    git = subprocess.run(
        ["git", "-C", PROJECT, "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    return git.stdout.strip() or "unknown commit"


def unmount_when_stopped(name: str) -> None:
    """Who is stopped from outside cleans up as after an error; a second signal does not disturb that."""
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def stop(*_) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(f"{name}: stopped")

    for number in numbers:
        signal.signal(number, stop)
