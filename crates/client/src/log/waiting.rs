//! Those who wait until the server knows what was done here.

use super::Behind;
use soda_oplog::{DigestId, Log, Wanted};
use soda_protocol::Lsn;
use soda_types::{Errno, Fid, FsError, FsResult};
use tokio::sync::oneshot;

/// Those who wait, and for what.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Waiter>);

#[derive(Debug)]
struct Waiter {
    what: What,
    /// The digest that brings the last of it, once it is under way.
    last: Option<DigestId>,
    /// The server has no room for all, and this waiter was chosen to see whether it has room for him.
    tried: Tried,
    done: oneshot::Sender<FsResult<()>>,
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
    fn is_pending(&self, log: &Log) -> bool {
        match self {
            What::Inodes(wanted) => log.has_pending(wanted),
            What::UpTo(lsn) => log.first_pending().is_some_and(|first| first <= *lsn),
        }
    }
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What inodes somebody waits for.
    pub(crate) fn wanted(&mut self) -> Vec<Wanted> {
        self.0.retain(|waiter| !waiter.done.is_closed());
        let wanted = |waiter: &Waiter| match &waiter.what {
            What::Inodes(wanted) => Some(wanted.clone()),
            What::UpTo(_) => None,
        };
        self.0.iter().filter_map(wanted).collect()
    }

    /// What inodes the first one waits for, of those whose records are pending; none, if he waits for all that came before.
    pub(crate) fn wanted_by_one(&mut self, log: &Log) -> Vec<Wanted> {
        self.0.retain(|waiter| !waiter.done.is_closed());
        let mut pending = self.0.iter_mut().filter(|waiter| waiter.last.is_none());
        let Some(waiter) = pending.find(|waiter| waiter.what.is_pending(log)) else { return Vec::new() };
        waiter.tried = Tried::Now;
        match &waiter.what {
            What::Inodes(wanted) => vec![wanted.clone()],
            What::UpTo(_) => Vec::new(),
        }
    }

    /// This digest is for whoever was chosen.
    pub(crate) fn note_sent(&mut self, id: DigestId) {
        for waiter in self.0.iter_mut().filter(|waiter| waiter.tried == Tried::Now) {
            waiter.tried = Tried::In(id);
        }
    }

    fn add(&mut self, what: What, log: &Log) -> oneshot::Receiver<FsResult<()>> {
        let (done, is_done) = oneshot::channel();
        // What is not pending any more is on its way.
        let last = if what.is_pending(log) { None } else { log.under_way() };
        self.0.push(Waiter { what, last, tried: Tried::No, done });
        is_done
    }

    /// This digest is under way, with what the log does not have any more.
    pub(crate) fn note_taken(&mut self, log: &Log, id: DigestId) {
        for waiter in self.0.iter_mut().filter(|waiter| waiter.last.is_none()) {
            if !waiter.what.is_pending(log) {
                waiter.last = Some(id);
            }
        }
    }

    pub(crate) fn note_applied(&mut self, id: DigestId) {
        self.wake(|waiter| waiter.last.is_some_and(|last| last <= id), &Ok(()));
    }

    /// The server did not take this digest: who waits for others waits on.
    pub(crate) fn note_failed(&mut self, id: DigestId, error: &FsError) {
        let concerned = |waiter: &Waiter| waiter.last == Some(id) || waiter.tried == Tried::In(id);
        self.wake(concerned, &Err(error.clone()));
    }

    /// What was under way or applied is pending again.
    pub(crate) fn note_lost(&mut self) {
        self.0.iter_mut().for_each(|waiter| waiter.last = None);
    }

    /// Records were lost. Who waited for the last of them waits for nothing: no digest will bring it, so none will wake him.
    pub(crate) fn note_given_up(&mut self, log: &Log) {
        let error = FsError::new(Errno::Io, "delayed writes were lost");
        self.wake(|waiter| waiter.last.is_none() && !waiter.what.is_pending(log), &Err(error));
    }

    /// Records were taken out of the log that the server need not be told, and nothing is lost: who waited for the last of them
    /// waits for what is under way and no longer.
    pub(crate) fn note_set_aside(&mut self, log: &Log) {
        let concerned = |waiter: &Waiter| waiter.last.is_none() && !waiter.what.is_pending(log);
        match log.under_way() {
            Some(id) => {
                self.0.iter_mut().filter(|waiter| concerned(waiter)).for_each(|waiter| waiter.last = Some(id));
            }
            None => self.wake(concerned, &Ok(())),
        }
    }

    pub(crate) fn fail_all(&mut self, error: &FsError) {
        self.wake(|_| true, &Err(error.clone()));
    }

    fn wake(&mut self, which: impl Fn(&Waiter) -> bool, result: &FsResult<()>) {
        let (served, rest): (Vec<Waiter>, _) =
            std::mem::take(&mut self.0).into_iter().partition(|waiter| which(waiter));
        self.0 = rest;
        for waiter in served {
            let _ = waiter.done.send(result.clone());
        }
    }
}

impl Behind {
    /// Waits for all that was done to these inodes until now.
    pub(crate) fn wait_for_inodes(&mut self, fids: &[Fid]) -> oneshot::Receiver<FsResult<()>> {
        self.wait_for(What::Inodes(Wanted { fids: fids.to_vec(), up_to: self.log.last_lsn() }))
    }

    pub(crate) fn wait_for(&mut self, what: What) -> oneshot::Receiver<FsResult<()>> {
        self.waiting.add(what, &self.log)
    }
}
