"""What is measured, and what it is called."""

from dataclasses import dataclass


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


Measured = dict[Kind, float | Trials]
