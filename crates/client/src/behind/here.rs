//! What may be done here.

use super::moves::moved_by;
use crate::cache::State;
use crate::cache::inode::{Inode, Origin, XattrList, Xattrs};
use crate::cache::names::Known;
use crate::config::WritePolicy;
use crate::crash;
use crate::inner::Inner;
use crate::log::Behind;
use crate::log::disk::OnDisk;
use crate::log::next::ServerRoom;
use crate::why::Why;
use soda_oplog::reserve::Room;
use soda_oplog::{Change, Record};
use soda_protocol::{Lsn, space_for, space_for_lists};
use soda_types::semantics::{Moment, is_access_list};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, Monotonic, Name, Timestamp, Version};
use std::sync::Arc;

/// Why an operation is not carried out here.
#[derive(Debug)]
pub(crate) enum NotHere {
    /// The server has to do it.
    Through(Why),
    /// It fails, as it would at the server.
    Fails(FsError),
    /// Later: the log is full.
    Full,
    /// Later: the log has no room even for what frees space, and who does that need not hear that there is no other.
    Overfull,
}

pub(crate) type Here<T> = Result<T, NotHere>;

impl From<Why> for NotHere {
    fn from(why: Why) -> NotHere {
        NotHere::Through(why)
    }
}

impl From<Errno> for NotHere {
    fn from(errno: Errno) -> NotHere {
        NotHere::Fails(errno.into())
    }
}

impl State {
    /// Whether anything may be done here.
    pub(crate) fn writes_behind(&self) -> bool {
        self.behind.policy != WritePolicy::Through
    }

    /// Whether changes of the inode may be made here now.
    pub(crate) fn may_change_here(&self, now: Monotonic, fid: Fid) -> Result<(), Why> {
        if self.behind.policy == WritePolicy::Through || !self.caches_under_leases() {
            return Err(Why::Policy);
        }
        if self.behind.disk.as_ref().is_some_and(|disk| !disk.has_room()) {
            return Err(Why::LocalDisk);
        }
        let inode = self.peek(fid).ok_or(Why::Unknown)?;
        if inode.kernel.recalling > 0 {
            return Err(Why::Recalled);
        }
        if inode.changes.unanswered > 0 || inode.log.going_through > 0 {
            return Err(Why::Contended);
        }
        let covered = match inode.log.origin {
            Origin::Here => self.holder.session_valid_until() > now,
            Origin::Told => return Err(Why::Recalled),
            Origin::AtServer => self.holder.may_delay_changes(now, fid),
        };
        if covered { Ok(()) } else { Err(Why::NoLease) }
    }

    /// Attributes of an inode that may be changed here.
    pub(super) fn attr_here(&mut self, now: Monotonic, fid: Fid) -> Here<Attr> {
        self.may_change_here(now, fid)?;
        let attr = self.peek_attr(now, fid).ok_or(Why::Unknown)?;
        // Without a name, and nobody who keeps it: the server may have deleted it.
        if attr.nlink == 0 && !self.is_open(fid) { Err(Why::Kind.into()) } else { Ok(attr) }
    }

    /// What a name means in a directory whose names may be changed here.
    pub(super) fn name_here(&mut self, now: Monotonic, dir: Fid, name: &Name) -> Here<Known> {
        let known = self.peek_name(now, dir, name);
        Ok(known.ok_or(Why::Unknown)?)
    }

    /// All extended attributes of an inode.
    pub(super) fn xattrs_here(&self, fid: Fid) -> Here<XattrList> {
        match &self.peek(fid).ok_or(Why::Unknown)?.xattrs {
            Xattrs::Unknown => Err(Why::Unknown.into()),
            Xattrs::None => Ok(XattrList::default()),
            Xattrs::All(list) => Ok(Arc::clone(list)),
        }
    }

    /// Whether the server would have to be asked for the extended attributes of an inode that may be changed here.
    pub(crate) fn lacks_xattrs(&self, now: Monotonic, fid: Fid) -> bool {
        let unknown = |inode: &Inode| matches!(inode.xattrs, Xattrs::Unknown);
        self.may_change_here(now, fid).is_ok() && self.peek(fid).is_some_and(unknown)
    }

    /// There is room in the log, and was set aside by the server, for a change with so many bytes of data or names. What frees
    /// space asks for [`State::room_to_free`] instead.
    pub(super) fn room_here(&mut self, now: Monotonic, bytes: usize) -> Here<()> {
        self.space_here(now, space_for(bytes))
    }

    /// The same for what may take so many bytes of the server's space.
    pub(super) fn space_here(&mut self, now: Monotonic, space: u64) -> Here<()> {
        self.behind.reserve.note_needed(now);
        let stalled =
            self.behind.stalled_until > Monotonic::ZERO && self.behind.log.first_pending().is_some();
        let refused = stalled || self.behind.room != ServerRoom::Enough;
        if refused || self.behind.room_for(space) == Room::None {
            return Err(Why::Reservation.into());
        }
        if self.behind.is_full(space) { Err(NotHere::Full) } else { Ok(()) }
    }

    /// There is room in memory for a change that frees space. It waits for a server that takes nothing, and is not refused for
    /// want of space: at a server that has no room it goes through, after what that has to be told before.
    pub(super) fn room_to_free(&self) -> Here<()> {
        match self.behind.room {
            _ if !self.behind.is_overfull() => Ok(()),
            ServerRoom::Enough => Err(NotHere::Overfull),
            ServerRoom::Short | ServerRoom::None => Err(Why::Reservation.into()),
        }
    }

    /// The moment of a change here: later than all before, and than what these inodes show.
    pub(super) fn moment(&mut self, calendar: Timestamp, touched: &[&Attr]) -> Moment {
        let shown = touched.iter().map(|attr| attr.ctime.successor()).max();
        let at = calendar.max(self.behind.last_at.successor());
        let at = shown.map_or(at, |shown| at.max(shown));
        self.behind.last_at = at;
        Moment::logged(at, self.behind.reserve.first_version())
    }

    /// Logs a change that the caches show already.
    pub(super) fn log_change(&mut self, now: Monotonic, moment: Moment, change: Change) {
        let was_empty = self.behind.log.pending_count() == 0;
        let mut told = Vec::new();
        for fid in Behind::inodes_of(&change) {
            let inode = self.inode(fid);
            if inode.log.records == 0 && inode.log.origin == Origin::AtServer && inode.told > Version(0) {
                told.push((fid, inode.told));
            }
            inode.log.records += 1;
            inode.log.through = None;
            inode.changes.count += 1;
            self.repin(fid);
        }
        let moved = moved_by(&change);
        let for_disk = self.behind.disk.clone().map(|disk| (disk, change.clone()));
        let space = change.space() + space_for_lists(self.lists_beside(&change));
        let lsn = self.behind.log.append_with(now, moment.time(), change, space);
        if let Some((disk, change)) = for_disk {
            disk.push_record(told.into_iter(), Record { lsn, at: moment.time(), change });
        }
        self.begin_moves(lsn, &moved);
        if was_empty {
            self.behind.news.notify_one();
        }
    }

    /// Bytes of the lists that are stored with a change and are not in its record, as they are once it is made: those that are
    /// inherited, and one that follows the permission bits.
    fn lists_beside(&self, change: &Change) -> usize {
        let fid = match change {
            Change::SetAttr { fid, set } if set.perm.is_some() => Some(*fid),
            change => change.creates(),
        };
        let Some(Xattrs::All(list)) = fid.and_then(|fid| Some(&self.peek(fid)?.xattrs)) else { return 0 };
        let lists = list.iter().filter(|(name, _)| is_access_list(name));
        lists.map(|(name, list)| name.len() + list.len()).sum()
    }

    /// A change of the inode is not made here. What is not known at all has nowhere to keep that.
    fn note_through(&mut self, fid: Fid, why: Why) {
        if self.peek(fid).is_some() {
            self.inode(fid).log.through = Some(why);
        }
    }

    /// New attributes of an inode that was changed here.
    pub(super) fn set_attr_here(&mut self, now: Monotonic, fid: Fid, attr: Attr) {
        let inode = self.inode(fid);
        inode.attr = Some(attr);
        inode.fetched = now;
        inode.seen = inode.seen.max(attr.version);
    }
}

impl Inner {
    /// Carries an operation out here, if that can be: `None` if the server has to do it. `about`: the inode that it changes, of
    /// names their directory.
    ///
    /// # Errors
    /// As the operation.
    pub(crate) async fn here<T>(
        self: &Arc<Inner>,
        about: Fid,
        work: impl Fn(&mut State, Monotonic, Timestamp) -> Here<T> + Send + Sync,
    ) -> FsResult<Option<T>> {
        loop {
            let (outcome, due, disk, lsns) = {
                let (mut state, now) = self.locked();
                if state.behind.policy == WritePolicy::Through {
                    return Ok(None);
                }
                let before = state.behind.last_lsn();
                let outcome = work(&mut state, now, self.calendar());
                if let Err(NotHere::Through(why)) = outcome {
                    state.note_through(about, why);
                }
                let lsns = (before, state.behind.last_lsn());
                let mut due = state.behind.wants_attention(now);
                if due && state.behind.is_much() {
                    state.behind.news.notify_one();
                    due = false;
                }
                (outcome, due, state.behind.disk.clone(), lsns)
            };
            if due {
                self.pump();
            }
            match outcome {
                Ok(done) => {
                    self.stats.here.one();
                    // Should this machine crash, somebody has it.
                    crash::point("client.record-queued");
                    if let Some(disk) = disk
                        && disk.write_in_turn().await == OnDisk::No
                    {
                        self.tell_at_once(lsns).await?;
                    }
                    crash::point("client.record-written");
                    return Ok(Some(done));
                }
                Err(NotHere::Through(why)) => {
                    self.stats.through(why);
                    return Ok(None);
                }
                Err(NotHere::Fails(error)) => return Err(error),
                Err(NotHere::Full) => self.wait_for_room().await?,
                Err(NotHere::Overfull) => match self.wait_for_room().await {
                    // Now that this is known, it goes through.
                    Err(error) if error.errno == Errno::NoSpace => {}
                    waited => waited?,
                },
            }
        }
    }
    /// The local disk has no room for what was done here, after one record and up to another: the server is told, before anybody
    /// hears that it is done.
    async fn tell_at_once(self: &Arc<Inner>, (after, up_to): (Lsn, Lsn)) -> FsResult<()> {
        let touched = || crate::lock(&self.state).behind.log.touched_by(after, up_to);
        match self.flush(&touched().into_iter().collect::<Vec<_>>()).await {
            // It is done all the same, and in the log in memory; what comes next goes through, and fails. Not so if it was lost
            // meanwhile.
            Err(error) if !touched().is_empty() => {
                tracing::warn!(
                    %error,
                    "neither the local disk nor the server takes a change: a crash of this machine would lose it"
                );
                Ok(())
            }
            told => told,
        }
    }
}
