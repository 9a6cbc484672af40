//! Making durable what is committed: chunks before the journal that refers to them, and what was dropped is given back only
//! after that.

use crate::volume::Volume;
use soda_storage::crash;
use soda_types::FsResult;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockWriteGuard};

impl Volume {
    /// Makes everything that was committed before the call durable, and ends the redo records that are there then. Callers at the
    /// same time share the work.
    pub fn sync(&self) -> FsResult<()> {
        self.group_sync.run(|| self.releases.at_sync(|| self.sync_stores()))
    }

    /// As [`Volume::sync`], for who waits: where all data that the medium may lack is in the journal, too, the journal is enough,
    /// and redo records stay ([`Volume::sync_data`]).
    pub fn sync_soon(&self) -> FsResult<()> {
        self.journal_sync.run(|| {
            self.releases.at_sync(|| {
                {
                    let _no_new_chunks = self.no_new_chunks();
                    if !self.owes_data() {
                        return self.sync_journal();
                    }
                }
                self.sync_stores()
            })
        })
    }

    /// Brings the metadata to where the next start finds it without recovering anything. For the end of a server.
    pub fn checkpoint(&self) -> FsResult<()> {
        Ok(self.meta.checkpoint()?)
    }

    /// Makes all chunks durable that were stored before, and ends redo records of them: with the journal's next sync.
    pub fn sync_data(&self) -> FsResult<()> {
        let redo = self.redo.take();
        if let Err(error) = self.data.sync() {
            self.redo.committed(redo);
            return Err(error.into());
        }
        if !redo.is_empty() {
            self.redo.end(&*self.meta, redo);
        }
        Ok(())
    }

    /// Data before the metadata that refers to it: most of it at first, while others commit, and then what little has come since.
    fn sync_stores(&self) -> FsResult<()> {
        self.sync_data()?;
        let _no_new_chunks = self.no_new_chunks();
        // What is stored from here on owes again.
        let owed = self.owes_data.swap(false, Ordering::SeqCst);
        if let Err(error) = self.data.sync() {
            self.owes_data.fetch_or(owed, Ordering::SeqCst);
            return Err(error.into());
        }
        crash::point("volume.sync.data-done");
        self.sync_journal()
    }

    fn sync_journal(&self) -> FsResult<()> {
        self.meta.sync()?;
        crash::point("volume.sync.done");
        Ok(())
    }

    /// What is committed while the journal is synced may become durable with it, so commits that refer to new chunks wait.
    fn no_new_chunks(&self) -> RwLockWriteGuard<'_, ()> {
        self.chunks_committed.write().unwrap_or_else(PoisonError::into_inner)
    }
}
