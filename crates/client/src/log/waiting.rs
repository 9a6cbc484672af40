//! Those who wait until the server knows what was done here.

use super::Behind;
use super::next::Chosen;
use soda_oplog::{DigestId, Log, Wanted};
use soda_protocol::Lsn;
use soda_types::{Errno, Fid, FsError, FsResult, Monotonic};
use std::time::Duration;
use tokio::sync::oneshot;

/// Who waits for the server's disk while it works for others shares the next digest and the next sync with all who come
/// meanwhile (group commit): most messages are saved so. Where a sync takes longer than this, waiting for it would cost more.
const GATHER: Duration = Duration::from_millis(1);

/// So many who have gone may stay in the list.
const FEW: usize = 16;

/// Those who wait, and for what.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    list: Vec<Waiter>,
    /// When there are so many of them it is looked for those who have gone.
    look_again: usize,
    /// Whether the last digest was one in which somebody may have had his turn.
    by_turns: bool,
    /// The server knows what they waited for; its disk may lack it.
    to_sync: Vec<ToSync>,
    /// Syncs that were asked for along with a digest.
    along: Vec<Along>,
    /// Syncs under way for those who wait for the disk.
    syncs: u32,
    /// Others of them can wait so long for the end of those.
    gather_until: Monotonic,
}

/// Somebody who waits for the server's disk.
#[derive(Debug)]
pub(crate) struct ToSync {
    pub(crate) fid: Fid,
    /// How long he has waited for the server to be told.
    pub(crate) flushed: Duration,
    pub(crate) done: oneshot::Sender<FsResult<()>>,
}

/// A sync that was asked for along with a digest, so that both take one round trip: the server does it when it has applied that.
#[derive(Debug)]
struct Along {
    digest: DigestId,
    /// Those whom it is for, when the digest has its answer.
    who: Vec<ToSync>,
}

/// The sync of who waits for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    NotYet,
    /// Along with his last digest.
    Along,
}

/// What somebody waits for beyond that the server knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Nothing,
    /// That it is on the server's disk. All whom one digest serves share a sync, and nobody has to be woken in between.
    Synced {
        fid: Fid,
        began: Monotonic,
    },
}

#[derive(Debug)]
struct Waiter {
    what: What,
    then: Then,
    /// The digest that brings the last of it, once it is under way.
    last: Option<DigestId>,
    sync: Asked,
    /// The server has no room for all, and this waiter was chosen to see whether it has room for him.
    tried: Tried,
    /// Digests that were for others since he was served last.
    overtaken: u32,
    done: oneshot::Sender<FsResult<()>>,
}

impl Waiter {
    /// Nothing that he waits for is pending, nor in a digest of which he knows.
    fn is_beyond(&mut self, log: &Log) -> bool {
        self.last.is_none() && !self.what.is_pending(log)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tried {
    No,
    Now,
    In(DigestId),
}

#[derive(Debug)]
pub(crate) enum What {
    /// All that was done to these inodes until now.
    Inodes(Wanted),
    /// Everything up to this record.
    UpTo(Lsn),
}

impl What {
    fn is_pending(&mut self, log: &Log) -> bool {
        match self {
            What::Inodes(wanted) => log.has_pending(wanted),
            What::UpTo(lsn) => is_pending_up_to(log, *lsn),
        }
    }

    /// The digest under way that brings the last of it, when nothing of it is pending.
    fn under_way(&self, log: &Log) -> Option<DigestId> {
        let last = match self {
            What::Inodes(wanted) => log.under_way_for(wanted),
            What::UpTo(lsn) => log.under_way_up_to(*lsn),
        };
        // Who finds nothing of his own comes after all there is.
        last.or_else(|| log.under_way())
    }
}

fn is_pending_up_to(log: &Log, lsn: Lsn) -> bool {
    log.first_pending().is_some_and(|first| first <= lsn)
}

impl Waiters {
    /// When the first of those who wait is to be served; `None`: nobody waits for more than is under way.
    pub(crate) fn due_at(&self) -> Option<Monotonic> {
        let due = |waiter: &Waiter| match waiter.then {
            Then::Nothing => Monotonic::ZERO,
            Then::Synced { .. } => self.gather_until,
        };
        self.unserved().map(due).min()
    }

    /// Who is not served by any of the digests under way.
    fn unserved(&self) -> impl Iterator<Item = &Waiter> {
        self.list.iter().filter(|waiter| waiter.last.is_none())
    }

    pub(crate) fn has_unserved(&self) -> bool {
        self.unserved().any(|waiter| !waiter.done.is_closed())
    }

    /// Who waits for inodes: the one whose turn it is, if it is anybody's, and the others. By turns those come first whom one
    /// digest serves, and one whom others have overtaken.
    pub(crate) fn wanted(&mut self, now: Monotonic, log: &Log) -> (Option<&mut Wanted>, Vec<&mut Wanted>) {
        self.list.retain(|waiter| !waiter.done.is_closed());
        let gathers = self.gather_until > now;
        let is_held = |waiter: &Waiter| gathers && matches!(waiter.then, Then::Synced { .. });
        let mut waiters: Vec<(&mut u32, &mut Wanted)> = Vec::new();
        for waiter in self.list.iter_mut().filter(|waiter| waiter.last.is_none() && !is_held(waiter)) {
            if let What::Inodes(wanted) = &mut waiter.what
                && log.has_pending(wanted)
            {
                waiters.push((&mut waiter.overtaken, wanted));
            }
        }
        self.by_turns = !self.by_turns;
        // The first of those who are equal.
        let overtaken = waiters.iter().enumerate().rev().max_by_key(|(_, (overtaken, _))| **overtaken);
        let due = overtaken.filter(|(_, (overtaken, _))| self.by_turns && **overtaken > 0).map(|(at, _)| at);
        let due = due.map(|at| waiters.remove(at));
        let due = due.map(|(overtaken, wanted)| {
            *overtaken = 0;
            wanted
        });
        (due, waiters.into_iter().map(|(_, wanted)| wanted).collect())
    }

    /// Whether somebody who waits for all that came before has been overtaken by who waits for inodes.
    pub(crate) fn has_overtaken_all(&self, log: &Log) -> bool {
        let in_order = |waiter: &Waiter| matches!(waiter.what, What::UpTo(lsn) if is_pending_up_to(log, lsn));
        self.list.iter().any(|waiter| in_order(waiter) && waiter.overtaken > 0 && !waiter.done.is_closed())
    }

    /// What inodes the first one waits for, of those whose records are pending; none, if he waits for all that came before.
    pub(crate) fn wanted_by_one(&mut self, log: &Log) -> Option<&mut Wanted> {
        self.list.retain(|waiter| !waiter.done.is_closed());
        let mut unserved = self.list.iter_mut().filter(|waiter| waiter.last.is_none());
        let waiter = unserved.find_map(|waiter| waiter.what.is_pending(log).then_some(waiter))?;
        waiter.tried = Tried::Now;
        match &mut waiter.what {
            What::Inodes(wanted) => Some(wanted),
            What::UpTo(_) => None,
        }
    }

    /// This digest is for whoever was chosen.
    pub(crate) fn note_sent(&mut self, log: &Log, id: DigestId, chosen: Chosen) {
        for waiter in &mut self.list {
            if waiter.tried == Tried::Now {
                waiter.tried = Tried::In(id);
            }
            match chosen {
                Chosen::Wanted if waiter.last.is_none() && waiter.what.is_pending(log) => {
                    waiter.overtaken += 1
                }
                Chosen::InOrder if matches!(waiter.what, What::UpTo(_)) => waiter.overtaken = 0,
                Chosen::Wanted | Chosen::InOrder | Chosen::Freeing => {}
            }
        }
    }

    fn add(&mut self, mut what: What, then: Then, log: &Log) -> oneshot::Receiver<FsResult<()>> {
        let (done, is_done) = oneshot::channel();
        // What is not pending any more is on its way.
        let last = if what.is_pending(log) { None } else { what.under_way(log) };
        // While nothing can be sent nobody else takes those out who have gone, and whoever has waited for a while asks anew.
        if self.list.len() >= self.look_again {
            self.list.retain(|waiter| !waiter.done.is_closed());
            self.look_again = 2 * self.list.len().max(FEW);
        }
        let sync = Asked::NotYet;
        self.list.push(Waiter { what, then, last, sync, tried: Tried::No, overtaken: 0, done });
        is_done
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// This digest is under way, with what the log does not have any more.
    pub(crate) fn note_taken(&mut self, log: &Log, id: DigestId) {
        for waiter in self.list.iter_mut().filter(|waiter| waiter.last.is_none()) {
            if !waiter.what.is_pending(log) {
                waiter.last = Some(id);
            }
        }
    }

    /// This digest is about to be sent. If it brings the last of what somebody waits for until the server's disk has it, a sync
    /// is to be asked for along with it, for this file; [`Waiters::end_along`] ends it. It serves nobody who comes later: it may
    /// have begun before what he waits for went through.
    pub(crate) fn sync_along(&mut self, now: Monotonic, digest: DigestId) -> Option<Fid> {
        let mut first = None;
        for waiter in self.list.iter_mut().filter(|waiter| waiter.last == Some(digest)) {
            if let Then::Synced { fid, .. } = waiter.then
                && !waiter.done.is_closed()
            {
                waiter.sync = Asked::Along;
                first.get_or_insert(fid);
            }
        }
        if first.is_some() {
            self.along.push(Along { digest, who: Vec::new() });
            self.begin_sync(now);
        }
        first
    }

    /// Such a sync has ended. Returns those to whom that is to be said: none, if the server has not done it, as it did not apply
    /// the digest, or knows it no more. Then one is asked for when it has.
    pub(crate) fn end_along(&mut self, digest: DigestId, result: &FsResult<()>) -> Vec<ToSync> {
        self.note_synced();
        for waiter in self.list.iter_mut().filter(|waiter| waiter.last == Some(digest)) {
            waiter.sync = Asked::NotYet;
        }
        let place = self.along.iter().position(|along| along.digest == digest);
        let mut who = place.map_or_else(Vec::new, |place| self.along.swap_remove(place).who);
        if result.as_ref().is_err_and(|error| error.errno == Errno::TryAgain) {
            self.to_sync.append(&mut who);
        }
        who
    }

    pub(crate) fn note_applied(&mut self, now: Monotonic, id: DigestId) {
        if self.along.iter().any(|along| along.digest == id) {
            self.gather_until = now + GATHER;
        }
        self.wake(|waiter| waiter.last.is_some_and(|last| last <= id), Ok(now));
    }

    /// The server did not take this digest: who waits for others waits on.
    pub(crate) fn note_failed(&mut self, id: DigestId, error: &FsError) {
        let concerned = |waiter: &mut Waiter| waiter.last == Some(id) || waiter.tried == Tried::In(id);
        self.wake(concerned, Err(error));
    }

    /// What was under way or applied is pending again, from this digest on. Who waits for one before it waits on for that: were he
    /// to wait for another one, he would hear of the loss of what is not his.
    pub(crate) fn note_lost(&mut self, from: DigestId) {
        let waiters = self.list.iter_mut().filter(|waiter| waiter.last.is_some_and(|last| last >= from));
        waiters.for_each(|waiter| (waiter.last, waiter.sync) = (None, Asked::NotYet));
    }

    /// Records were lost. Who waited for the last of them waits for nothing: no digest will bring it, so none will wake him.
    pub(crate) fn note_given_up(&mut self, log: &Log) {
        let error = FsError::new(Errno::Io, "delayed writes were lost");
        self.wake(|waiter| waiter.is_beyond(log), Err(&error));
    }

    /// Records were taken out of the log that the server need not be told, and nothing is lost: who waited for the last of them
    /// waits for what is under way and no longer.
    pub(crate) fn note_set_aside(&mut self, now: Monotonic, log: &Log) {
        for waiter in self.list.iter_mut().filter_map(|waiter| waiter.is_beyond(log).then_some(waiter)) {
            waiter.last = waiter.what.under_way(log);
        }
        self.wake(|waiter| waiter.is_beyond(log), Ok(now));
    }

    pub(crate) fn fail_all(&mut self, error: &FsError) {
        self.wake(|_| true, Err(error));
        for ToSync { done, .. } in self.to_sync.drain(..) {
            let _ = done.send(Err(error.clone()));
        }
    }

    /// Those for whom the server is to be asked for a sync now.
    pub(crate) fn take_to_sync(&mut self, now: Monotonic) -> Vec<ToSync> {
        if !self.to_sync.is_empty() {
            self.begin_sync(now);
        }
        std::mem::take(&mut self.to_sync)
    }

    fn begin_sync(&mut self, now: Monotonic) {
        self.syncs += 1;
        self.gather_until = now + GATHER;
    }

    /// Such a sync has ended.
    pub(crate) fn note_synced(&mut self) {
        self.syncs -= 1;
        if self.syncs == 0 {
            self.gather_until = Monotonic::ZERO;
        }
    }

    /// `told`: since when the server knows what these wait for, or why it does not.
    fn wake(&mut self, which: impl FnMut(&mut Waiter) -> bool, told: Result<Monotonic, &FsError>) {
        for Waiter { then, last, sync, done, .. } in self.list.extract_if(.., which) {
            match (then, told) {
                // Nobody waits any more.
                (Then::Synced { .. }, _) if done.is_closed() => {}
                (Then::Synced { fid, began }, Ok(now)) => {
                    let to_sync = ToSync { fid, flushed: now.since(began), done };
                    let along = self.along.iter_mut().find(|along| Some(along.digest) == last);
                    match along.filter(|_| sync == Asked::Along) {
                        Some(along) => along.who.push(to_sync),
                        None => self.to_sync.push(to_sync),
                    }
                }
                (Then::Nothing, Ok(_)) => drop(done.send(Ok(()))),
                (_, Err(error)) => drop(done.send(Err(error.clone()))),
            }
        }
    }
}

impl Behind {
    /// Waits for all that was done to these inodes until now.
    pub(crate) fn wait_for_inodes(&mut self, fids: &[Fid]) -> oneshot::Receiver<FsResult<()>> {
        self.wait_for(self.inodes(fids))
    }

    /// Waits for all that was done to the inode until now, and that it is on the server's disk.
    pub(crate) fn wait_for_synced(&mut self, now: Monotonic, fid: Fid) -> oneshot::Receiver<FsResult<()>> {
        self.waiting.add(self.inodes(&[fid]), Then::Synced { fid, began: now }, &self.log)
    }

    fn inodes(&self, fids: &[Fid]) -> What {
        What::Inodes(Wanted::new(fids.to_vec(), self.log.last_lsn()))
    }

    pub(crate) fn wait_for(&mut self, what: What) -> oneshot::Receiver<FsResult<()>> {
        self.waiting.add(what, Then::Nothing, &self.log)
    }
}
