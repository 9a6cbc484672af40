"""The workloads. Each phase prepares its files on a target, measures, and takes them away again."""

from phases.base import Kind, Phase, Sizes, Trials
from phases.data import Cached, Sequential
from phases.files import Clients, Depth, Names, Small, Synced
from phases.leases import CacheAndServer, LeaseMemory, LeasesOnAndOff
from phases.sharing import Coherence, Conflict, Recall, Untold
from phases.software import Andrew, Git, Npm, Openssh

__all__ = ["ALL", "EXTRA", "Kind", "Phase", "Sizes", "Trials"]

ALL: dict[str, Phase] = {
    "seq": Sequential(),
    "cached": Cached(),
    "small": Small(),
    "names": Names(),
    "depth": Depth(),
    "clients": Clients(),
    "synced": Synced(),
    "recall": Recall(),
    "conflict": Conflict(),
    "untold": Untold(),
    "coherence": Coherence(),
    "cache": CacheAndServer(),
    "leases": LeasesOnAndOff(),
    "memory": LeaseMemory(),
    "andrew": Andrew(),
    "git": Git(),
    "npm": Npm(),
    "ssh": Openssh(),
}
# What takes minutes: real software on the slower file systems; a test that has to be compiled.
EXTRA = ["memory", "andrew", "git", "npm", "ssh"]
