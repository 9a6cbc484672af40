//! Data that a full server has no room for, of a file that is about to be removed: it need not be told first. But another machine
//! may have opened the file before this one got the lease. Only the server knows, and
//! [`Unlink::Untold`](soda_protocol::Unlink::Untold) removes nothing then: all is taken back.

use crate::cache::State;
use crate::inner::Inner;
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
        let only_it =
            |record: &Record| record.change.touches().iter().all(|(object, _)| *object == Object::Inode(fid));
        last && quiet
            && self.holder.is_exclusive(fid)
            && !self.behind.is_under_way(inode.log.told_in)
            && self.behind.log.pending_of(fid).all(only_it)
    }

    /// Whether the server has no room for what is still to be told of a file, and may never need to be told. In the log its
    /// removal would stand behind that.
    pub(super) fn need_not_be_told(&self, fid: Fid, in_use: InUse) -> bool {
        let full = self.behind.room != ServerRoom::Enough && in_use == InUse::No;
        full && self.is_ahead(&[fid]) && self.goes_with_its_name(fid)
    }

    /// Takes what is still to be told of a file out of the log, before it is removed. The log on the disk keeps it until it is
    /// known whether it was. Returns under which number it is found again.
    pub(crate) fn set_data_aside(&mut self, now: Monotonic, fid: Fid) -> Option<Lsn> {
        if !self.is_ahead(&[fid]) {
            return None;
        }
        let records = self.behind.log.take_out(fid)?;
        let first = records.first()?.lsn;
        let inode = self.inode(fid);
        inode.log.records = inode.log.records.saturating_sub(records.len() as u32);
        self.repin(fid);
        self.behind.aside.insert(first, records);
        self.behind.waiting.note_set_aside(now, &self.behind.log);
        self.behind.news.notify_one();
        Some(first)
    }

    /// The file was removed, and what was set aside went with it.
    pub(crate) fn forget_data_aside(&mut self, fid: Fid, aside: Option<Lsn>) {
        if let Some(records) = self.behind.take_aside(aside) {
            self.memory.clear(fid);
            self.not_on_disk_any_more(&records);
            self.behind.note_less();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::plain_attr;
    use crate::config::{CacheConfig, Consistency, WriteBehind, WritePolicy};
    use crate::hooks::NoKernel;
    use crate::log::next::UnderWay;
    use soda_oplog::{Applied, Change, DigestLimits};
    use soda_types::{Epoch, Grant, Ino, Mode, Scope, SessionId, Term, Timestamp, VolumeId};
    use std::time::Duration;

    const FILES: u64 = 10_000;

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn write(state: &mut State, fid: Fid) {
        let change = Change::Write { fid, offset: 0, data: b"x".as_slice().into(), kill_suid_sgid: false };
        let moment = state.moment(Timestamp::new(1, 0), &[]);
        state.log_change(Monotonic::ZERO, moment, change);
    }

    /// Many files, all of them written to, of a server that is full.
    fn full() -> State {
        let (policy, now) = (WritePolicy::Behind(WriteBehind::default()), Monotonic::ZERO);
        let cache = CacheConfig::default();
        let mut state = State::new(&cache, Consistency::Lease, policy, Arc::default(), Arc::new(NoKernel));
        state.holder.start_session(now, now, SessionId(7), Duration::from_secs(30));
        for ino in 1..=FILES {
            let fid = fid(ino);
            let ticket = state.holder.begin_request(now);
            let grant =
                Grant { fid, scope: Scope::Node, mode: Mode::Write, epoch: Epoch(ino), term: Term::Session };
            state.holder.handle_reply(now, ticket, &[grant]);
            state.inode(fid).attr = Some(plain_attr(fid));
            write(&mut state, fid);
        }
        state.behind.room = ServerRoom::Short;
        state
    }

    #[test]
    fn to_remove_a_file_only_what_is_pending_of_it_is_looked_at() {
        let mut state = full();
        let (first, last, before) = (fid(1), fid(FILES), state.behind.log.looked_at());
        for fid in [first, last] {
            assert!(state.need_not_be_told(fid, InUse::No));
            let aside = state.set_data_aside(Monotonic::ZERO, fid);
            assert!(aside.is_some() && !state.is_ahead(&[fid]));
            assert_eq!(state.to_tell_first([fid].into_iter()), [fid], "it may come back");
            state.forget_data_aside(fid, aside);
            assert_eq!(state.to_tell_first([fid].into_iter()), []);
        }
        assert!(state.behind.log.looked_at() - before < 20, "{}", state.behind.log.looked_at() - before);
        assert_eq!(state.behind.log.pending_count() as u64, FILES - 2);
    }

    #[test]
    fn when_nothing_is_left_of_what_a_full_server_did_not_take_it_may_have_room() {
        let room = |state: &State| (state.behind.log.pending_count() as u64, state.behind.room);
        let mut state = full();
        state.lose_log(Applied::Kept);
        assert_eq!(room(&state), (0, ServerRoom::Enough));
        let mut state = full();
        state.holder.handle_session_lost(Monotonic::ZERO);
        state.give_up_uncovered(None);
        assert_eq!(room(&state), (0, ServerRoom::Enough));
        let mut state = full();
        for ino in 1..=FILES {
            assert_eq!(room(&state), (FILES + 1 - ino, ServerRoom::Short));
            let aside = state.set_data_aside(Monotonic::ZERO, fid(ino));
            assert_eq!(room(&state), (FILES - ino, ServerRoom::Short), "it may come back");
            state.forget_data_aside(fid(ino), aside);
        }
        assert_eq!(room(&state), (0, ServerRoom::Enough));
    }

    #[test]
    fn what_is_under_way_of_a_file_may_have_to_be_told() {
        let mut state = full();
        assert!(state.need_not_be_told(fid(1), InUse::No));
        let one = DigestLimits { records: 1, bytes: u64::MAX };
        let id = state.behind.log.take(one).unwrap().id;
        state.behind.under_way.push_back(UnderWay { id, ..UnderWay::default() });
        state.inode(fid(1)).log.told_in = id;
        write(&mut state, fid(1));
        assert!(!state.need_not_be_told(fid(1), InUse::No) && state.need_not_be_told(fid(2), InUse::No));
        state.digests_lost(Monotonic::ZERO, id);
        assert!(state.need_not_be_told(fid(1), InUse::No), "the server has not got it");
    }
}
