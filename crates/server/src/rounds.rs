//! What is noted in the store of syncs and of the kernel's boots: the words of [`crate::durability`].

use serde::{Deserialize, Serialize};

/// Which boot of the kernel this is (`/proc/sys/kernel/random/boot_id`, see random(4)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BootId(String);

impl BootId {
    pub fn new(id: impl Into<String>) -> BootId {
        BootId(id.into())
    }

    /// That of this machine; `None` where the kernel does not tell.
    pub fn of_this_machine() -> Option<BootId> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(BootId::new(text.trim()))
    }
}

/// The number of a sync. Grows over all runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round(pub(crate) u64);

/// What is noted in the store.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DurabilityRecord {
    pub(crate) boot: Option<BootId>,
    /// All data of this round and those before is on the medium, or in `doubtful`.
    pub(crate) synced: Round,
    /// A pair for each power cut that may have taken data: rounds above the first and below the second.
    pub(crate) doubtful: Vec<(Round, Round)>,
}
