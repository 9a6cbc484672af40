"""The machine itself: its other cores kept busy or left idle, and how quiet it was meanwhile."""

import multiprocessing
import os
import platform
from pathlib import Path


class Load:
    """All cores but one kept busy, or left alone. Waking an idle virtual core costs more than most requests."""

    def __init__(self, which: str):
        cores = sorted(os.sched_getaffinity(0))[1:] if which == "busy" else []
        self.spinners = [multiprocessing.Process(target=spin, args=(core,), daemon=True) for core in cores]

    def __enter__(self) -> None:
        for spinner in self.spinners:
            spinner.start()

    def __exit__(self, *_) -> None:
        for spinner in self.spinners:
            spinner.terminate()
            spinner.join()


def spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


class Usage:
    """What the machine did since this was made."""

    def __init__(self):
        self.before = ticks(), pages_swapped()

    def since(self) -> dict[str, float]:
        """Shares of all cores' time that were busy and stolen by the host; pages swapped; the load average."""
        before, swapped = self.before
        spent = [after - earlier for after, earlier in zip(ticks(), before)]
        # user nice system idle iowait irq softirq steal
        total, idle, stolen = sum(spent) or 1, spent[3] + spent[4], spent[7]
        return {
            "busy": round((total - idle) / total, 4),
            "steal": round(stolen / total, 4),
            "swapped_pages": pages_swapped() - swapped,
            "load": os.getloadavg()[0],
        }


def ticks() -> list[int]:
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def pages_swapped() -> int:
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(count) for name, count in lines if name in ("pswpin", "pswpout"))


def description() -> dict[str, str | int]:
    """What somebody else needs to know to compare figures."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(memory_kib / (1 << 20)),
        "kernel": platform.release(),
    }
