//! The client's side of [`Delegations`](super::Delegations): about the locks of which files it decides by itself.
//!
//! *One place of truth.* The right comes with the answer to a request for a lock. Others of this client for the same file may
//! be on their way then, so that the server's table still changes: the client decides only when all of them are answered, and
//! from then on asks the server nothing about the file before it has given the right back. Nobody ever waits for a lock here:
//! who has to wait does so at the server, where all of a circle can be seen.
//!
//! *What was made here.* Nobody else can know a file that the server has not been told of, so the client decides about its locks
//! without a word ([`Delegate::begin_made`]). The digest that tells of the file says so, and the server enters the right under
//! that digest's number before anybody can ask ([`Delegate::tell`], [`Delegate::told`]). What a digest has told of once is never
//! begun so: whoever saw it may have a lock, even if a power cut has taken it from the server again.

use soda_types::{Epoch, Fid, Monotonic};
use std::collections::BTreeMap;
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
    made: Made,
    /// Requests for, and releases of, locks that the server has not answered.
    unanswered: u32,
    /// When a lock was last asked for.
    used: Monotonic,
}

/// What a file that was made here has to do with the right to decide about its locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Made {
    /// Nothing: it was not made here, or the server knows of both.
    #[default]
    No,
    /// The server does not know the file, and this client decides.
    Untold,
    /// It is being told of the file, and that this client decides, in the digest of this number.
    Telling(Epoch),
    /// A server that was started anew has heard of all locks, and decides. The digest with this number may still give the right.
    Over(Option<Epoch>),
}

impl File {
    fn has_right(&self) -> bool {
        self.held.is_some() || matches!(self.made, Made::Untold | Made::Telling(_))
    }

    fn is_forgotten(&self) -> bool {
        self.held.is_none() && self.returning.is_none() && self.made == Made::No && self.unanswered == 0
    }
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
        self.change(fid, |file| file.unanswered += 1);
    }

    /// It is answered, or will never be. `given`: the client may decide from now on.
    pub fn answered(&mut self, now: Monotonic, fid: Fid, given: Option<Epoch>) {
        self.change(fid, |file| {
            file.unanswered = file.unanswered.saturating_sub(1);
            if given.is_some() {
                (file.held, file.used) = (given, now);
            }
        });
    }

    /// The server has never been told of the file, which was made here: this client decides about its locks, and whoever tells of
    /// the file says so. Not if anything about its locks is known here already.
    pub fn begin_made(&mut self, now: Monotonic, fid: Fid) {
        if !self.files.contains_key(&fid) {
            self.change(fid, |file| (file.made, file.used) = (Made::Untold, now));
        }
    }

    /// Whether the file was made here, and the server has not said that it knows it.
    pub fn is_made(&self, fid: Fid) -> bool {
        self.files.get(&fid).is_some_and(|file| file.made != Made::No)
    }

    /// The file is about to be told of, and none of its locks is held: a right that was not used for so long is none any more, so
    /// that nobody has to wait for this client because of it.
    pub fn forget_unused(&mut self, now: Monotonic, fid: Fid, idle: Duration) {
        self.change(fid, |file| {
            if file.made == Made::Untold && now.since(file.used) >= idle {
                file.made = Made::No;
            }
        });
    }

    /// The digest of this number is about to tell of the file. True: it has to say, too, that this client decides about its
    /// locks.
    pub fn tell(&mut self, fid: Fid, epoch: Epoch) -> bool {
        let decides = self.files.get(&fid).is_some_and(|file| file.made == Made::Untold);
        if decides {
            self.change(fid, |file| file.made = Made::Telling(epoch));
        }
        decides
    }

    /// That digest is applied. A right that is not used any more is to be given back.
    pub fn told(&mut self, fid: Fid, epoch: Epoch) -> Option<Return> {
        self.change(fid, |file| match std::mem::take(&mut file.made) {
            Made::Telling(telling) if telling == epoch => {
                file.held = Some(epoch);
                None
            }
            // By the run of the server that decides now, or by the one before.
            Made::Over(Some(telling)) if telling == epoch => {
                file.returning = Some(epoch);
                Some(Return { epoch, truth: Truth::Server })
            }
            Made::No | Made::Over(_) => None,
            made @ (Made::Untold | Made::Telling(_)) => {
                file.made = made;
                None
            }
        })
    }

    /// The server has neither that digest nor any later one.
    pub fn handle_lost(&mut self, from: Epoch) {
        for file in self.files.values_mut() {
            file.made = match file.made {
                Made::Telling(telling) if telling >= from => Made::Untold,
                Made::Over(Some(telling)) if telling >= from => Made::Over(None),
                made => made,
            };
        }
    }

    /// The file is gone before the server heard of it.
    pub fn forget_made(&mut self, fid: Fid) {
        self.change(fid, |file| file.made = Made::No);
    }

    /// Whether a request about locks of the file is decided here, and not sent.
    pub fn decides(&self, fid: Fid) -> bool {
        self.files.get(&fid).is_some_and(|file| file.has_right() && file.unanswered == 0)
    }

    /// Something was decided.
    pub fn used(&mut self, now: Monotonic, fid: Fid) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.used = now;
        }
    }

    /// The server asks for it. `None`: the answer is on its way.
    pub fn recalled(&mut self, fid: Fid, epoch: Epoch) -> Option<Return> {
        self.change(fid, |file| {
            if file.returning == Some(epoch) {
                return None;
            }
            let is_held = file.held == Some(epoch);
            // The answer to the digest is lost, or late.
            let is_told = file.made == Made::Telling(epoch);
            let truth =
                if (is_held || is_told) && file.unanswered == 0 { Truth::Here } else { Truth::Server };
            if is_held {
                file.held = None;
            }
            match file.made {
                _ if is_told => file.made = Made::No,
                Made::Over(Some(telling)) if telling == epoch => file.made = Made::Over(None),
                _ => {}
            }
            file.returning = Some(epoch);
            Some(Return { epoch, truth })
        })
    }

    /// Gives it back unasked. What the server does not know of cannot be given back.
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
        self.change(fid, |file| {
            if file.returning == Some(kept.epoch) {
                file.returning = None;
                if kept.truth == Truth::Here {
                    file.held = Some(kept.epoch);
                }
            }
        });
    }

    /// The server has it back.
    pub fn returned(&mut self, fid: Fid, epoch: Epoch) {
        self.change(fid, |file| file.returning = file.returning.filter(|returning| *returning != epoch));
    }

    /// The session has ended.
    pub fn forget_all(&mut self) {
        self.held = 0;
        self.files.retain(|_, file| {
            (file.held, file.returning, file.made) = (None, None, Made::No);
            file.unanswered > 0
        });
    }

    /// The server was started anew: it has forgotten whom it let decide, and is told of all locks.
    pub fn leave_all(&mut self) {
        self.held = 0;
        self.files.retain(|_, file| {
            (file.held, file.returning) = (None, None);
            file.made = match file.made {
                Made::Untold => Made::Over(None),
                Made::Telling(telling) => Made::Over(Some(telling)),
                made => made,
            };
            !file.is_forgotten()
        });
    }

    /// Files about which nothing was decided for this long, of those that can be given back.
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

    fn change<T>(&mut self, fid: Fid, change: impl FnOnce(&mut File) -> T) -> T {
        let mut file = self.files.get(&fid).copied().unwrap_or_default();
        let had_it = file.has_right();
        let changed = change(&mut file);
        match (had_it, file.has_right()) {
            (false, true) => self.held += 1,
            (true, false) => self.held -= 1,
            (false, false) | (true, true) => {}
        }
        match file.is_forgotten() {
            true => drop(self.files.remove(&fid)),
            false => drop(self.files.insert(fid, file)),
        }
        changed
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
            match next(12) {
                0 | 1 => delegate.asked(fid),
                2 | 3 => delegate.answered(Monotonic::default(), fid, (epoch.0 > 0).then_some(epoch)),
                4 => kept.extend(delegate.recalled(fid, epoch).map(|given_back| (fid, given_back))),
                5 => kept.extend(delegate.give_up(fid).map(|given_back| (fid, given_back))),
                6 => kept.pop().into_iter().for_each(|(fid, given_back)| delegate.keep(fid, given_back)),
                7 => delegate.begin_made(Monotonic::default(), fid),
                8 => drop(delegate.tell(fid, epoch)),
                9 => drop(delegate.told(fid, epoch)),
                10 if next(3) == 0 => delegate.forget_made(fid),
                10 => delegate.handle_lost(epoch),
                _ if next(50) == 0 => delegate.forget_all(),
                _ if next(20) == 0 => delegate.leave_all(),
                _ => delegate.returned(fid, epoch),
            }
            let counted = delegate.files.values().filter(|file| file.has_right()).count();
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
    #[test]
    fn what_was_made_here_is_decided_about_until_asked_back() {
        let mut delegate = Delegate::new();
        delegate.begin_made(Monotonic::default(), FILE);
        assert!(delegate.decides(FILE) && delegate.len() == 1);
        assert_eq!(delegate.give_up(FILE), None, "there is nobody to give it back to");
        assert!(delegate.tell(FILE, Epoch(3)) && !delegate.tell(FILE, Epoch(4)), "it is told once");
        assert_eq!(delegate.recalled(FILE, Epoch(9)).map(|given_back| given_back.truth), Some(Truth::Server));
        delegate.returned(FILE, Epoch(9));
        assert!(delegate.decides(FILE), "another one's epoch");
        assert_eq!(delegate.told(FILE, Epoch(3)), None);
        assert!(delegate.decides(FILE) && !delegate.is_made(FILE));
        assert_eq!(delegate.give_up(FILE), Some(Return { epoch: Epoch(3), truth: Truth::Here }));
    }

    #[test]
    fn a_right_that_was_not_used_for_a_while_is_not_told_with_what_was_made() {
        let at = |seconds| Monotonic::ZERO + Duration::from_secs(seconds);
        let idle = Duration::from_secs(2);
        let mut delegate = Delegate::new();
        delegate.begin_made(at(10), FILE);
        delegate.forget_unused(at(11), FILE, idle);
        assert!(delegate.decides(FILE));
        delegate.used(at(11), FILE);
        delegate.forget_unused(at(12), FILE, idle);
        assert!(delegate.decides(FILE));
        delegate.forget_unused(at(13), FILE, idle);
        assert!(!delegate.decides(FILE) && !delegate.tell(FILE, Epoch(3)) && delegate.is_empty());
        // The server may have it by then.
        delegate.begin_made(at(20), FILE);
        assert!(delegate.tell(FILE, Epoch(4)));
        delegate.forget_unused(at(30), FILE, idle);
        assert!(delegate.decides(FILE));
    }

    /// The answer to the digest is lost, and comes with the next connection, behind the recall.
    #[test]
    fn what_is_asked_back_before_it_is_known_to_be_told_is_not_had_again() {
        let mut delegate = Delegate::new();
        delegate.begin_made(Monotonic::default(), FILE);
        assert!(delegate.tell(FILE, Epoch(3)));
        assert_eq!(
            delegate.recalled(FILE, Epoch(3)),
            Some(Return { epoch: Epoch(3), truth: Truth::Here }),
            "only the client knows of its locks"
        );
        delegate.returned(FILE, Epoch(3));
        assert_eq!(delegate.told(FILE, Epoch(3)), None);
        assert!(!delegate.decides(FILE) && delegate.is_empty());
    }

    #[test]
    fn a_digest_that_was_not_applied_gives_nothing() {
        let mut delegate = Delegate::new();
        delegate.begin_made(Monotonic::default(), FILE);
        assert!(delegate.tell(FILE, Epoch(3)));
        delegate.handle_lost(Epoch(4));
        assert!(!delegate.tell(FILE, Epoch(5)), "it is under way");
        delegate.handle_lost(Epoch(2));
        assert!(delegate.decides(FILE) && delegate.tell(FILE, Epoch(5)));
        assert_eq!(delegate.told(FILE, Epoch(3)), None);
        assert_eq!(delegate.give_up(FILE), None);
        assert_eq!(delegate.told(FILE, Epoch(5)), None);
        assert!(delegate.give_up(FILE).is_some());
    }

    /// It was told of all locks. A digest of before, in doubt, may or may not have given the right in this run.
    #[test]
    fn a_server_that_is_started_anew_decides_about_what_was_made_here() {
        let mut delegate = Delegate::new();
        let other = Fid { ino: Ino(3), ..FILE };
        for fid in [FILE, other] {
            delegate.begin_made(Monotonic::default(), fid);
        }
        assert!(delegate.tell(FILE, Epoch(3)));
        delegate.leave_all();
        delegate.begin_made(Monotonic::default(), other);
        assert!(!delegate.decides(FILE) && !delegate.decides(other) && delegate.is_empty());
        assert!(!delegate.tell(other, Epoch(4)) && delegate.is_made(other));
        assert_eq!(delegate.told(FILE, Epoch(3)), Some(Return { epoch: Epoch(3), truth: Truth::Server }));
        assert_eq!(delegate.recalled(FILE, Epoch(3)), None, "the answer is on its way");
        delegate.returned(FILE, Epoch(3));
        assert_eq!(delegate.told(other, Epoch(4)), None);
        assert!(delegate.files.is_empty());
    }
}
