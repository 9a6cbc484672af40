"""The workloads. Each phase prepares its files on a target, measures, and takes them away again."""

from phases.base import Kind, Phase, Sizes, Trials
from phases.data import Cached, Sequential
from phases.files import Clients, Depth, Small, Synced
from phases.leases import CacheAndServer, LeaseMemory, LeasesOnAndOff
from phases.sharing import Coherence, Recall
from phases.software import Andrew, Git, Openssh

__all__ = ["ALL", "EXTRA", "Kind", "Phase", "Sizes", "Trials"]

ALL: dict[str, Phase] = {
    "seq": Sequential(),
    "cached": Cached(),
    "small": Small(),
    "depth": Depth(),
    "clients": Clients(),
    "synced": Synced(),
    "recall": Recall(),
    "coherence": Coherence(),
    "cache": CacheAndServer(),
    "leases": LeasesOnAndOff(),
    "memory": LeaseMemory(),
    "andrew": Andrew(),
    "git": Git(),
    "ssh": Openssh(),
}
# What takes minutes: real software on the slower file systems; a test that has to be compiled.
EXTRA = ["memory", "andrew", "git", "ssh"]
