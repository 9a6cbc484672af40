//! The client's side of [`Delegations`](super::Delegations): about the locks of which files it decides by itself.
//!
//! *One place of truth.* The right comes with the answer to a request for a lock. Others of this client for the same file may
//! be on their way then, so that the server's table still changes: the client decides only when all of them are answered, and
//! from then on asks the server nothing about the file before it has given the right back. Nobody ever waits for a lock here:
//! who has to wait does so at the server, where all of a circle can be seen.

use soda_types::{Epoch, Fid, Monotonic};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Delegate {
    files: BTreeMap<Fid, File>,
    /// Of these with the right to decide: asked for with each request.
    held: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct File {
    held: Option<Epoch>,
    /// Given back; the server may not have heard of it.
    returning: Option<Epoch>,
    /// Requests for, and releases of, locks that the server has not answered.
    unanswered: u32,
    /// When a lock was last asked for.
    used: Monotonic,
}

/// What is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Return {
    pub epoch: Epoch,
    pub truth: Truth,
}

/// Who knows which locks this client has on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truth {
    /// The client: all of its locks have to be told.
    Here,
    /// The server, as nothing was decided here yet.
    Server,
}

impl Delegate {
    pub fn new() -> Delegate {
        Delegate::default()
    }

    /// A request that changes locks of the file goes to the server.
    pub fn asked(&mut self, fid: Fid) {
        self.files.entry(fid).or_default().unanswered += 1;
    }

    /// It is answered, or will never be. `given`: the client may decide from now on.
    pub fn answered(&mut self, now: Monotonic, fid: Fid, given: Option<Epoch>) {
        let file = self.files.entry(fid).or_default();
        file.unanswered = file.unanswered.saturating_sub(1);
        if given.is_some() {
            self.held += usize::from(file.held.is_none());
            file.held = given;
            file.used = now;
        }
        self.tidy(fid);
    }

    /// Whether a request about locks of the file is decided here, and not sent.
    pub fn decides(&self, fid: Fid) -> bool {
        self.files.get(&fid).is_some_and(|file| file.held.is_some() && file.unanswered == 0)
    }

    /// Something was decided.
    pub fn used(&mut self, now: Monotonic, fid: Fid) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.used = now;
        }
    }

    /// The server asks for it. `None`: the answer is on its way.
    pub fn recalled(&mut self, fid: Fid, epoch: Epoch) -> Option<Return> {
        let file = self.files.entry(fid).or_default();
        if file.returning == Some(epoch) {
            return None;
        }
        let truth = match file.held {
            Some(held) if held == epoch && file.unanswered == 0 => Truth::Here,
            _ => Truth::Server,
        };
        if file.held == Some(epoch) {
            file.held = None;
            self.held -= 1;
        }
        file.returning = Some(epoch);
        Some(Return { epoch, truth })
    }

    /// Gives it back unasked.
    pub fn give_up(&mut self, fid: Fid) -> Option<Return> {
        let epoch = self.files.get(&fid).filter(|file| file.unanswered == 0)?.held?;
        self.recalled(fid, epoch)
    }

    /// Gives it back before anything was decided.
    pub fn decline(&mut self, fid: Fid) -> Option<Return> {
        let given_back = self.give_up(fid)?;
        Some(Return { truth: Truth::Server, ..given_back })
    }

    /// It could not be given back after all: nothing was sent.
    pub fn keep(&mut self, fid: Fid, kept: Return) {
        if let Some(file) = self.files.get_mut(&fid)
            && file.returning == Some(kept.epoch)
        {
            file.returning = None;
            if kept.truth == Truth::Here {
                self.held += usize::from(file.held.is_none());
                file.held = Some(kept.epoch);
            }
        }
        self.tidy(fid);
    }

    /// The server has it back.
    pub fn returned(&mut self, fid: Fid, epoch: Epoch) {
        if let Some(file) = self.files.get_mut(&fid)
            && file.returning == Some(epoch)
        {
            file.returning = None;
        }
        self.tidy(fid);
    }

    /// The server has forgotten whom it let decide, or the session has ended.
    pub fn forget_all(&mut self) {
        self.held = 0;
        self.files.retain(|_, file| {
            (file.held, file.returning) = (None, None);
            file.unanswered > 0
        });
    }

    /// Files about which nothing was decided for this long.
    pub fn idle(&self, now: Monotonic, idle: Duration) -> Vec<Fid> {
        let is_idle =
            |file: &File| file.held.is_some() && file.unanswered == 0 && now.since(file.used) >= idle;
        self.files.iter().filter(|(_, file)| is_idle(file)).map(|(fid, _)| *fid).collect()
    }

    /// Number of files about which the client decides, or is about to.
    pub fn len(&self) -> usize {
        self.held
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn tidy(&mut self, fid: Fid) {
        if let Entry::Occupied(file) = self.files.entry(fid) {
            let File { held, returning, unanswered, .. } = file.get();
            if held.is_none() && returning.is_none() && *unanswered == 0 {
                file.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    const FILE: Fid = Fid { volume: VolumeId(1), ino: Ino(2), generation: 0 };

    #[test]
    fn what_cannot_be_given_back_is_kept() {
        let mut delegate = Delegate::new();
        delegate.asked(FILE);
        delegate.answered(Monotonic::default(), FILE, Some(Epoch(7)));
        let given_back = delegate.recalled(FILE, Epoch(7)).expect("it is held");
        assert_eq!(given_back, Return { epoch: Epoch(7), truth: Truth::Here });
        assert!(!delegate.decides(FILE) && delegate.recalled(FILE, Epoch(7)).is_none());
        delegate.keep(FILE, given_back);
        assert!(delegate.decides(FILE));
        assert_eq!(delegate.give_up(FILE), Some(given_back));
        delegate.returned(FILE, Epoch(7));
        assert!(delegate.is_empty());

        delegate.keep(FILE, given_back);
        assert!(delegate.is_empty(), "it has been given back by now");
    }

    #[test]
    fn files_are_counted_whatever_comes() {
        let mut delegate = Delegate::new();
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut kept = Vec::new();
        for _ in 0..20_000 {
            let (fid, epoch) = (Fid { ino: Ino(next(4)), ..FILE }, Epoch(next(5)));
            match next(8) {
                0 | 1 => delegate.asked(fid),
                2 | 3 => delegate.answered(Monotonic::default(), fid, (epoch.0 > 0).then_some(epoch)),
                4 => kept.extend(delegate.recalled(fid, epoch).map(|given_back| (fid, given_back))),
                5 => kept.extend(delegate.give_up(fid).map(|given_back| (fid, given_back))),
                6 => kept.pop().into_iter().for_each(|(fid, given_back)| delegate.keep(fid, given_back)),
                _ if next(50) == 0 => delegate.forget_all(),
                _ => delegate.returned(fid, epoch),
            }
            let counted = delegate.files.values().filter(|file| file.held.is_some()).count();
            assert_eq!(delegate.len(), counted);
        }
    }

    #[test]
    fn what_was_not_begun_can_be_declined() {
        let mut delegate = Delegate::new();
        delegate.asked(FILE);
        assert_eq!(delegate.decline(FILE), None);
        delegate.answered(Monotonic::default(), FILE, Some(Epoch(7)));
        assert_eq!(delegate.decline(FILE), Some(Return { epoch: Epoch(7), truth: Truth::Server }));
        assert!(!delegate.decides(FILE));
    }
}
