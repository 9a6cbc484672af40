"""The policies, each with the values that are tried and the work that it matters for."""

from sweeps.base import Cell, Extent, Sweep
from sweeps.delayed import DigestSize, DirtyAge, DirtySize
from sweeps.leases import BackOff, DeepAfter, DeepHoles, DeepHolesUntold, LeaseIdle

__all__ = ["ALL", "Cell", "Extent", "Sweep"]

ALL: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        DirtyAge(),
        DirtySize(),
        DigestSize(),
        LeaseIdle(),
        DeepAfter(),
        DeepHoles(),
        DeepHolesUntold(),
        BackOff(),
    )
}
