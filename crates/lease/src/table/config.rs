//! What an administrator or an experiment can choose.

use super::rates::{BackOff, Equation8};
use soda_types::{Mode, ObjectTerm, VolumeId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableConfig {
    /// How long a session lasts without traffic. The most that a conflicting operation waits for a dead client.
    pub session_term: Duration,
    /// How long after a restart clients may reclaim. At least the term and what clocks may drift apart in it.
    pub grace: Duration,
    /// How long leases on objects last.
    pub object_term: ObjectTerm,
    /// Volumes with a term of their own.
    pub volume_terms: BTreeMap<VolumeId, ObjectTerm>,
    /// A read that has waited this long, while the holder went on changing the object, asks for the whole lease, not only
    /// to lower it.
    pub read_patience: Duration,
    /// An unanswered recall is sent again after this time, again and again.
    pub recall_resend: Duration,
    /// A holder that goes on renewing but leaves a recall unanswered and reports no progress for this long is ended
    /// once its lease has run out.
    pub recall_deadline: Duration,
    /// A holder that has not said what an object is like after this time is asked for its lease instead.
    pub inquiry_patience: Duration,
    pub equation_8: Equation8,
    pub write_leases: WriteLeases,
    pub back_off: BackOff,
    pub deep_leases: DeepLeases,
    /// Most leases of one session; its least recently granted one is recalled when a further one is given.
    pub max_leases_per_session: usize,
    /// Most leases of the table; beyond, the session that asks gives up its least recently granted one.
    pub max_leases: usize,
}

impl Default for TableConfig {
    fn default() -> TableConfig {
        TableConfig::with_term(Duration::from_secs(10))
    }
}

impl TableConfig {
    /// The defaults for a session term, everything else in proportion.
    pub fn with_term(term: Duration) -> TableConfig {
        TableConfig {
            session_term: term,
            grace: term.saturating_add(term / 10),
            object_term: ObjectTerm::Session,
            volume_terms: BTreeMap::new(),
            read_patience: term / 100,
            recall_resend: term / 5,
            recall_deadline: term.saturating_mul(3),
            inquiry_patience: term / 40,
            equation_8: Equation8::On { half_life: term, min_writes: 8 },
            write_leases: WriteLeases::Grant,
            back_off: BackOff::On { first: term / 100, longest: term },
            deep_leases: DeepLeases::Off,
            max_leases_per_session: 1_000_000,
            max_leases: 8_000_000,
        }
    }

    /// With more holes in one directory of a deep lease of this mode than this, it is asked for with all below it: others work
    /// there. Who only reads has nothing to tell for that.
    pub(super) fn crowd(&self, mode: Mode) -> usize {
        let crowd = match mode {
            Mode::Read => CROWD_OF_READER,
            Mode::Write => CROWD_OF_WRITER,
        };
        match self.deep_leases {
            DeepLeases::Off => usize::MAX,
            DeepLeases::On { max_holes, .. } => crowd.min(max_holes - max_holes / 4),
        }
    }

    /// With more holes than this a deep lease is given up.
    pub(super) fn most_holes(&self) -> usize {
        match self.deep_leases {
            DeepLeases::Off => usize::MAX,
            DeepLeases::On { max_holes, .. } => max_holes,
        }
    }

    pub(super) fn term_of(&self, volume: VolumeId) -> ObjectTerm {
        if self.volume_terms.is_empty() {
            return self.object_term;
        }
        self.volume_terms.get(&volume).copied().unwrap_or(self.object_term)
    }
}

/// Whether who changes an object gets a write lease on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteLeases {
    Grant,
    /// Only to who caches the object already: its caches have to be brought to the new state before anybody else sees
    /// it, which is what the recall of a write lease is for.
    OnlyToHolders,
}

/// Whether one lease may cover a whole subtree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeepLeases {
    /// Where objects lie is neither asked nor remembered.
    Off,
    On {
        /// A session that holds so many read leases below a directory where nobody else may write gets one for all of it; as
        /// many write leases where nobody else holds anything, one for writing. A deep lease below counts for a quarter of
        /// that. What is held now decides, not when it was granted: a deep lease pays by what it stands for.
        after: u32,
        /// With more holes than this a deep lease is given up: its directory is shared, node leases cost less.
        max_holes: usize,
    },
}

/// See [`TableConfig::crowd`].
const CROWD_OF_READER: usize = 8;
const CROWD_OF_WRITER: usize = 64;

impl DeepLeases {
    /// As measured (PERFORMANCE, "Policies"). Where much is untold its holder tells all of it, as to who walks through the tree,
    /// long before others have so many holes in it.
    pub const DEFAULT_ON: DeepLeases = DeepLeases::On { after: 16, max_holes: 256 };
}
