//! Which acknowledged changes are known to be on the medium, with their data.
//!
//! A batch is in the journal before its reply leaves, and a sync writes data before the journal. But the kernel may write a
//! page of the journal out by chance, before the data: after a power cut the store then has a change, and its reply, whose
//! data is gone. So syncs are counted. Each stored reply carries the round it was committed in; a round ends with a note in
//! the journal that is written when its data is on the medium and the journal's end is not yet. After a power cut,
//! what carries a round that has no such note is in doubt, and is not counted as stored when its client comes back. Whether
//! there was one is told by the kernel's boot id: what a process wrote survives its own death, not that of the kernel.

use crate::records::{self, RecordError};
use crate::rounds::{BootId, DurabilityRecord, Round};
use soda_storage::{Batch, DataStore, MetaStore, Table, crash};
use soda_types::FsResult;
use soda_volume::Volume;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Rounds of one run: a thousand syncs a second for thirty years.
const ROUNDS_PER_START: u32 = 40;

/// The rounds of this run.
#[derive(Debug)]
pub(crate) struct Durability {
    record: DurabilityRecord,
    first: Round,
    /// The round of what is committed now.
    current: AtomicU64,
    /// The newest round that a reply carries.
    used: AtomicU64,
    synced: AtomicU64,
    /// What a former run wrote may be in the kernel's memory only.
    owes_former_run: AtomicBool,
}

impl Durability {
    /// Begins a run, the `starts`th.
    ///
    /// # Errors
    /// The record cannot be read, or is damaged.
    pub(crate) fn begin(
        meta: &dyn MetaStore,
        starts: u64,
        boot: Option<BootId>,
    ) -> Result<Durability, RecordError> {
        let mut record = records::load_durability(meta)?;
        let first = Round(starts << ROUNDS_PER_START);
        let is_same_kernel = boot.is_some() && record.boot == boot;
        if !is_same_kernel {
            if starts > 1 {
                record.doubtful.push((record.synced, first));
            }
            record.synced = Round(first.0 - 1);
        }
        record.boot = boot;
        Ok(Durability {
            first,
            current: AtomicU64::new(first.0),
            used: AtomicU64::new(0),
            synced: AtomicU64::new(record.synced.0),
            // What is read after a boot comes from the medium.
            owes_former_run: AtomicBool::new(is_same_kernel),
            record,
        })
    }

    /// Adds the state of the run's beginning to the batch that records the start.
    pub(crate) fn put_beginning(&self, batch: &mut Batch) {
        batch.put(Table::Server, records::durability_key(), records::encode(&self.record));
    }

    /// The round for a reply whose chunks, if it has any, are all appended, and which is not committed yet.
    pub(crate) fn round(&self) -> Round {
        let round = self.current.load(Ordering::SeqCst);
        self.used.fetch_max(round, Ordering::SeqCst);
        Round(round)
    }

    /// Everything up to this round is on the medium.
    pub(crate) fn synced(&self) -> Round {
        Round(self.synced.load(Ordering::SeqCst))
    }

    /// Whether a power cut may have taken data of this round.
    pub(crate) fn is_doubtful(&self, round: Round) -> bool {
        self.record.doubtful.iter().any(|(after, before)| *after < round && round < *before)
    }

    /// Makes everything durable that was committed before: where the journal has all data that the medium may lack, by the
    /// journal alone. One caller at a time.
    pub(crate) fn sync(&self, volume: &Volume, data: &dyn DataStore) -> FsResult<()> {
        // Who read this number has appended its chunks before.
        let round = self.current.fetch_add(1, Ordering::SeqCst);
        if self.owes_former_run.load(Ordering::SeqCst) {
            self.sync_former_run(volume, data)?;
        } else if self.used.load(Ordering::SeqCst) <= self.synced().0 {
            return volume.sync_soon();
        }
        // Whoever carries this round has said what it owes before it has read the number.
        if volume.owes_data() {
            data.sync()?;
        }
        crash::point("server.round-data-synced");
        let noted = note(volume, &DurabilityRecord { synced: Round(round), ..self.record.clone() });
        volume.sync_soon()?;
        if noted {
            self.synced.store(round, Ordering::SeqCst);
        }
        Ok(())
    }

    /// The kernel reports an error of its writing back once, so one that is met here must be remembered.
    fn sync_former_run(&self, volume: &Volume, data: &dyn DataStore) -> FsResult<()> {
        if let Err(error) = data.sync_what_others_wrote() {
            let mut record = self.record.clone();
            record.doubtful.push((record.synced, self.first));
            note(volume, &record);
            return Err(error.into());
        }
        self.owes_former_run.store(false, Ordering::SeqCst);
        Ok(())
    }
}

/// Whether it could be written. If not, a power cut puts more in doubt than it has to.
fn note(volume: &Volume, record: &DurabilityRecord) -> bool {
    let mut batch = Batch::releasing();
    batch.put(Table::Server, records::durability_key(), records::encode(record));
    volume
        .meta()
        .commit(batch)
        .inspect_err(|error| tracing::warn!(%error, "how far everything is durable could not be noted"))
        .is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use soda_storage::{MemoryData, MemoryMeta, MetaRead};
    use std::sync::Arc;

    struct Machine {
        meta: Arc<MemoryMeta>,
        data: Arc<MemoryData>,
        starts: u64,
    }

    impl Machine {
        fn new() -> Machine {
            Machine { meta: Arc::default(), data: Arc::default(), starts: 0 }
        }

        fn start(&mut self, boot: Option<&str>) -> (Volume, Durability) {
            self.starts += 1;
            let volume = Volume::open(self.meta.clone(), self.data.clone(), Default::default()).unwrap();
            let durability = Durability::begin(&*self.meta, self.starts, boot.map(BootId::new)).unwrap();
            let mut batch = Batch::new();
            durability.put_beginning(&mut batch);
            self.meta.commit(batch).unwrap();
            (volume, durability)
        }
    }

    #[test]
    fn only_what_was_not_synced_before_another_boot_is_in_doubt_and_stays_so() {
        let mut machine = Machine::new();
        let (volume, run) = machine.start(Some("one"));
        let synced = run.round();
        run.sync(&volume, &*machine.data).unwrap();
        let unsynced = run.round();
        assert!(synced < unsynced && run.synced() == synced);

        let (volume, same) = machine.start(Some("one"));
        assert!(!same.is_doubtful(unsynced), "the kernel had it");
        assert!(same.synced() < unsynced, "the kernel alone");
        same.sync(&volume, &*machine.data).unwrap();
        assert!(same.synced() > unsynced);
        let later = same.round();
        let (volume, other) = machine.start(Some("two"));
        assert!(!other.is_doubtful(unsynced), "it was made durable in the last run");
        assert!(other.is_doubtful(later) && !other.is_doubtful(synced) && !other.is_doubtful(other.round()));
        other.sync(&volume, &*machine.data).unwrap();
        let (_, again) = machine.start(Some("two"));
        assert!(again.is_doubtful(later), "what is lost does not come back");
        assert!(!again.is_doubtful(other.round()));
    }

    #[test]
    fn a_machine_that_does_not_say_which_boot_it_is_is_never_the_same() {
        let mut machine = Machine::new();
        let (_, run) = machine.start(None);
        let unsynced = run.round();
        let (_, run) = machine.start(None);
        assert!(run.is_doubtful(unsynced));
    }

    #[test]
    fn a_sync_of_nothing_writes_nothing() {
        let mut machine = Machine::new();
        let (volume, run) = machine.start(Some("one"));
        let noted = || machine.meta.get(Table::Server, &records::durability_key()).unwrap();
        let before = noted();
        run.sync(&volume, &*machine.data).unwrap();
        assert_eq!(noted(), before);
        run.round();
        run.sync(&volume, &*machine.data).unwrap();
        assert_ne!(noted(), before);
    }

    #[test]
    fn what_a_process_left_to_the_kernel_is_in_doubt_until_the_next_one_has_synced_it() {
        let mut machine = Machine::new();
        let (_, run) = machine.start(Some("one"));
        let unsynced = run.round();
        machine.start(Some("one"));
        let (_, other) = machine.start(Some("two"));
        assert!(other.is_doubtful(unsynced));
    }
}
