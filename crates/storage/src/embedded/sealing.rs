//! When a tree's changes in memory are written out as a sorted file.
//!
//! *The problem.* The engine seals the memory table of a tree when that is full, syncs its journal, and then writes out all
//! sealed tables of that tree. By itself it seals whenever it likes. So a table may be sealed after that sync and be written out
//! with the one before it, and a power cut in that moment leaves what a batch did in this tree and takes what it did in the
//! others, which only the journal had.
//!
//! *What is done.* The engine is told that no table is ever full and no journal too much, and tables are sealed here: none while
//! the tree has one that is not written out. So whatever is written out was sealed before the journal's sync, and is in there.
//!
//! (fjall 3.1: `worker_pool.rs`, `Flush`; `lsm-tree`, `AbstractTree::flush`.)

use fjall::{AbstractTree, Database, Keyspace, PersistMode};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// What a tree's table may grow to while the one before it is written out, in full tables. Then changes wait for that.
const MOST_FULL: u64 = 2;

/// How often to see whether something is written out, and how many times at most.
pub(super) const POLL: Duration = Duration::from_millis(10);
const POLLS: u32 = 3000;

#[derive(Debug)]
pub(super) struct Sealing {
    /// Bytes of a table that is full.
    full: u64,
    /// Held from the look at a tree to the sealing of its table.
    turn: Mutex<()>,
}

/// Whether all that was committed before is on its way to sorted files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sealed {
    All,
    /// The engine does not come to write out what was sealed before.
    NotAll,
}

impl Sealing {
    pub(super) fn new(full: u64) -> Sealing {
        Sealing { full, turn: Mutex::new(()) }
    }

    /// To be called after a batch for these of all trees was committed, with no lock held that who writes out may need. Waits
    /// where they grow faster than they are written out.
    ///
    /// # Errors
    /// The engine has failed: nothing is going to be written out.
    pub(super) fn committed<'a>(
        &self,
        database: &Database,
        all: &[Keyspace],
        changed: impl Iterator<Item = &'a Keyspace>,
    ) -> fjall::Result<()> {
        for tree in changed.filter(|tree| size(tree) > self.full) {
            self.seal_if_full(database, all, tree)?;
            while size(tree) > self.full.saturating_mul(MOST_FULL) && is_being_written_out(tree) {
                // Says whether the engine has failed.
                database.persist(PersistMode::Buffer)?;
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    fn seal_if_full(&self, database: &Database, all: &[Keyspace], tree: &Keyspace) -> fjall::Result<()> {
        let _turn = match self.turn.try_lock() {
            // Whoever has it looks after what is full.
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Ok(turn) => turn,
        };
        if is_being_written_out(tree) || size(tree) <= self.full {
            return Ok(());
        }
        tree.rotate_memtable()?;
        // A tree that is hardly written to must not keep the journals of all that the others did: what a start has to read.
        if database.journal_count() > 1 {
            for other in all.iter().filter(|other| !is_being_written_out(other)) {
                other.rotate_memtable()?;
            }
        }
        Ok(())
    }

    /// Seals all that there is, to be written out in the background.
    pub(super) fn seal_all(&self, trees: &[Keyspace]) -> fjall::Result<Sealed> {
        let _turn = self.turn();
        for tree in trees {
            // Not for ever: an engine that has failed never gets there.
            if !wait_until(POLLS, || !is_being_written_out(tree)) {
                return Ok(Sealed::NotAll);
            }
            tree.rotate_memtable()?;
        }
        Ok(Sealed::All)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until all that was sealed is in sorted files. False: it does not get there.
pub(super) fn wait_for_writing_out(trees: &[Keyspace]) -> bool {
    wait_until(POLLS, || trees.iter().all(|tree| !is_being_written_out(tree)))
}

/// Looks so many times, each after [`POLL`].
pub(super) fn wait_until(polls: u32, done: impl Fn() -> bool) -> bool {
    for _ in 0..polls {
        if done() {
            return true;
        }
        std::thread::sleep(POLL);
    }
    done()
}

fn size(tree: &Keyspace) -> u64 {
    tree.tree.active_memtable().size()
}

fn is_being_written_out(tree: &Keyspace) -> bool {
    tree.sealed_memtable_count() > 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fjall::KeyspaceCreateOptions;

    const FULL: u64 = 10_000;

    /// The engine writes out all that is sealed by then, and has synced its journal for the first.
    #[test]
    fn a_table_is_sealed_only_when_the_one_before_is_written_out() {
        let directory = tempfile::tempdir().unwrap();
        // Nobody writes anything out.
        let database = Database::builder(directory.path()).worker_threads_unchecked(0).open().unwrap();
        let options = || KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
        let all = ["one", "other"].map(|name| database.keyspace(name, options).unwrap());
        let sealing = Sealing::new(FULL);
        let commit = |number: u64| {
            let mut batch = database.batch();
            all.iter().for_each(|tree| batch.insert(tree, number.to_be_bytes(), vec![0; 4000]));
            batch.commit().unwrap();
            sealing.committed(&database, &all, all.iter()).unwrap();
            all.each_ref().map(Keyspace::sealed_memtable_count)
        };
        assert_eq!([commit(0), commit(1), commit(2)], [[0, 0], [0, 0], [1, 1]]);
        assert_eq!([commit(3), commit(4), commit(5)], [[1, 1]; 3], "sealed while one is on its way");
        let write_out = |tree: &Keyspace| tree.tree.flush(&tree.tree.get_flush_lock(), 0).unwrap();
        write_out(&all[0]);
        assert_eq!(commit(6), [1, 1]);
        assert!(size(&all[0]) < FULL && size(&all[1]) > FULL);
        for tree in &all {
            write_out(tree);
        }
        assert_eq!(sealing.seal_all(&all).unwrap(), Sealed::All);
        assert_eq!(all.each_ref().map(size), [0, 0]);
    }
}
