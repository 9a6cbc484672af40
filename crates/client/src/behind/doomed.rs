//! Data that a full server has no room for, of a file that is about to be removed: it need not be told first. But another machine
//! may have opened the file before this one got the lease. Only the server knows, and
//! [`Unlink::Untold`](soda_protocol::Unlink::Untold) removes nothing then: all is taken back.

use crate::cache::State;
use crate::inner::Inner;
use crate::log::Behind;
use crate::log::next::ServerRoom;
use soda_oplog::segments::Entry;
use soda_oplog::{Lsn, Object, Record};
use soda_types::semantics::Moment;
use soda_types::{Errno, Fid, FileKind, FsError, FsResult, InUse, Monotonic};
use std::sync::{Arc, MutexGuard};

/// Attempts to have the rest told.
const ATTEMPTS: u32 = 10;

impl State {
    /// Whether the file goes with the name that it is about to lose, and the server knows all but data and attributes of it.
    fn goes_with_its_name(&self, fid: Fid) -> bool {
        let Some(inode) = self.peek(fid) else { return false };
        let last = inode.attr.is_some_and(|attr| attr.kind == FileKind::File && attr.nlink == 1);
        let quiet = inode.uses.opens == 0 && inode.kernel.recalling == 0 && inode.changes.unanswered == 0;
        let of_it = |record: &&Record| Behind::inodes_of(&record.change).any(|touched| touched == fid);
        let only_it =
            |record: &Record| record.change.touches().iter().all(|(object, _)| *object == Object::Inode(fid));
        last && quiet
            && self.holder.is_exclusive(fid)
            && !self.behind.log.under_way_records().any(|record| of_it(&record))
            && self.behind.log.pending().filter(of_it).all(only_it)
    }

    /// Whether the server has no room for what is still to be told of a file, and may never need to be told. In the log its
    /// removal would stand behind that.
    pub(super) fn need_not_be_told(&self, fid: Fid, in_use: InUse) -> bool {
        let full = self.behind.room != ServerRoom::Enough && in_use == InUse::No;
        full && self.is_ahead(&[fid]) && self.goes_with_its_name(fid)
    }

    /// Takes what is still to be told of a file out of the log, before it is removed. The log on the disk keeps it until it is
    /// known whether it was. Returns under which number it is found again.
    pub(crate) fn set_data_aside(&mut self, fid: Fid) -> Option<Lsn> {
        if !self.is_ahead(&[fid]) {
            return None;
        }
        let records = self.behind.log.give_up(&[fid]);
        self.count_records();
        let first = records.first()?.lsn;
        self.behind.aside.insert(first, records);
        self.behind.waiting.note_set_aside(&self.behind.log);
        self.behind.news.notify_one();
        Some(first)
    }

    /// The file was removed, and what was set aside went with it.
    pub(crate) fn forget_data_aside(&mut self, fid: Fid, aside: Option<Lsn>) {
        if let Some(records) = self.behind.take_aside(aside) {
            self.memory.clear(fid);
            self.not_on_disk_any_more(&records);
        }
    }

    /// The file was not removed: it is told after all. But not if the session has ended meanwhile: then it was lost with all the
    /// rest.
    pub(crate) fn take_data_back(&mut self, now: Monotonic, fid: Fid, aside: Option<Lsn>) {
        let Some(records) = self.behind.take_aside(aside) else { return };
        if self.is_open(fid) {
            // Who opened it meanwhile may have brought in what the server has instead.
            self.memory.clear(fid);
        }
        self.not_on_disk_any_more(&records);
        for Record { at, change, .. } in records {
            let moment = Moment::logged(at, self.behind.reserve.first_version());
            self.log_change(now, moment, change);
        }
    }

    fn not_on_disk_any_more(&mut self, records: &[Record]) {
        if let Some(disk) = &self.behind.disk {
            disk.push(Entry::GivenUp { lsns: records.iter().map(|record| record.lsn).collect() });
        }
    }
}

impl Inner {
    /// As [`Inner::settled`], for a name that is removed. Where the server has no room for the file's data, that is left out.
    ///
    /// # Errors
    /// As [`Inner::settled`].
    pub(crate) async fn settled_to_remove(
        self: &Arc<Inner>,
        dir: Fid,
        fid: Fid,
        in_use: InUse,
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        for _ in 0..ATTEMPTS {
            let full = {
                let (state, _) = self.locked();
                state.behind.room != ServerRoom::Enough
                    && in_use == InUse::No
                    && state.goes_with_its_name(fid)
            };
            let first = if full { &[dir][..] } else { &[dir, fid] };
            match self.settled(first).await {
                Ok((state, now)) if !state.is_ahead(&[fid]) || full && state.goes_with_its_name(fid) => {
                    return Ok((state, now));
                }
                // Something was done to it meanwhile; or it is to be seen now that there is no room.
                Ok(_) => {}
                Err(error) if error.errno == Errno::NoSpace && !full => {}
                Err(error) => return Err(error),
            }
        }
        Err(FsError::new(Errno::NoSpace, "the server has no room for what was written to the file"))
    }
}
