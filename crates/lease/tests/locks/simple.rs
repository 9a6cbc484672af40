//! Locks as they would be kept if they were few: in one list for each file, all of which is looked at each time.

use soda_lease::locks::{HeldLock, IfBusy, LockAnswer, WaitKey};
use soda_types::{Fid, Lock, LockFamily, LockMode, LockOwner, SessionId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct SimpleTable {
    files: BTreeMap<Fid, File>,
    granted: Vec<WaitKey>,
}

#[derive(Debug, Default)]
struct File {
    held: Vec<HeldLock>,
    /// First come first.
    waiting: Vec<(WaitKey, HeldLock)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// All that are in the way and start first.
    Busy(Vec<HeldLock>),
    Deadlock,
    BadRange,
}

fn owner(held: &HeldLock) -> (SessionId, LockOwner) {
    (held.session, held.lock.owner)
}

fn is_same_owner(one: &HeldLock, other: &HeldLock) -> bool {
    owner(one) == owner(other) && one.lock.family == other.lock.family
}

fn overlap(one: &HeldLock, other: &HeldLock) -> bool {
    one.lock.start <= other.lock.end && other.lock.start <= one.lock.end
}

fn conflict(one: &HeldLock, other: &HeldLock) -> bool {
    let shared = one.lock.mode == LockMode::Shared && other.lock.mode == LockMode::Shared;
    one.lock.family == other.lock.family && !shared && !is_same_owner(one, other) && overlap(one, other)
}

impl File {
    fn in_the_way(&self, asked: &HeldLock) -> Vec<HeldLock> {
        self.held.iter().filter(|held| conflict(held, asked)).copied().collect()
    }

    fn firsts_in_the_way(&self, asked: &HeldLock) -> Vec<HeldLock> {
        let all = self.in_the_way(asked);
        let first = all.iter().map(|held| held.lock.start).min();
        all.into_iter().filter(|held| Some(held.lock.start) == first).collect()
    }

    fn cut(&mut self, range: &HeldLock) {
        let (start, end) = (range.lock.start, range.lock.end);
        let mut rest = Vec::new();
        self.held.retain(|held| {
            if !is_same_owner(held, range) || !overlap(held, range) {
                return true;
            }
            if held.lock.start < start {
                rest.push(HeldLock { lock: Lock { end: start - 1, ..held.lock }, ..*held });
            }
            if held.lock.end > end {
                rest.push(HeldLock { lock: Lock { start: end + 1, ..held.lock }, ..*held });
            }
            false
        });
        self.held.extend(rest);
    }

    fn put(&mut self, new: HeldLock) {
        self.cut(&new);
        let mut joined = new;
        self.held.retain(|held| {
            let touches = held.lock.end.checked_add(1) == Some(joined.lock.start)
                || joined.lock.end.checked_add(1) == Some(held.lock.start);
            let same = is_same_owner(held, &new) && held.lock.mode == new.lock.mode;
            if same && touches {
                joined.lock.start = joined.lock.start.min(held.lock.start);
                joined.lock.end = joined.lock.end.max(held.lock.end);
            }
            !(same && touches)
        });
        self.held.push(joined);
    }

    /// Grants what can be granted, first come first, again and again.
    fn serve(&mut self) -> Vec<WaitKey> {
        let mut granted = Vec::new();
        while let Some(at) = self.waiting.iter().position(|(_, asked)| self.in_the_way(asked).is_empty()) {
            let (key, asked) = self.waiting.remove(at);
            self.put(asked);
            granted.push(key);
        }
        granted
    }
}

impl SimpleTable {
    pub(crate) fn set(
        &mut self,
        fid: Fid,
        session: SessionId,
        lock: Lock,
        if_busy: IfBusy,
    ) -> Result<LockAnswer, Refused> {
        if lock.end < lock.start {
            return Err(Refused::BadRange);
        }
        let asked = HeldLock { session, lock };
        let conflicts = self.firsts_in_the_way(fid, &asked);
        if conflicts.is_empty() {
            self.change(fid, |file| file.put(asked));
            return Ok(LockAnswer::Granted);
        }
        if lock.family == LockFamily::Flock {
            self.change(fid, |file| file.cut(&asked));
        }
        let IfBusy::Wait(key) = if_busy else { return Err(Refused::Busy(conflicts)) };
        if lock.family == LockFamily::Record && self.closes_circle(fid, &asked) {
            return Err(Refused::Deadlock);
        }
        self.change(fid, |file| file.waiting.push((key, asked)));
        Ok(LockAnswer::Waits)
    }

    pub(crate) fn firsts_in_the_way(&self, fid: Fid, asked: &HeldLock) -> Vec<HeldLock> {
        self.files.get(&fid).map(|file| file.firsts_in_the_way(asked)).unwrap_or_default()
    }

    pub(crate) fn release(&mut self, fid: Fid, session: SessionId, lock: Lock) {
        self.change(fid, |file| file.cut(&HeldLock { session, lock }));
    }

    pub(crate) fn release_session(&mut self, session: SessionId) {
        for fid in self.files.keys().copied().collect::<Vec<_>>() {
            self.change(fid, |file| {
                file.held.retain(|held| held.session != session);
                file.waiting.retain(|(_, asked)| asked.session != session);
            });
        }
    }

    pub(crate) fn cancel(&mut self, key: WaitKey) -> bool {
        let before = self.waiting_count();
        self.files.values_mut().for_each(|file| file.waiting.retain(|(waiting, _)| *waiting != key));
        self.waiting_count() < before
    }

    pub(crate) fn take_granted(&mut self) -> Vec<WaitKey> {
        std::mem::take(&mut self.granted)
    }

    /// By session, owner and range.
    pub(crate) fn locks(&self, fid: Fid) -> Vec<HeldLock> {
        let mut held = self.files.get(&fid).map(|file| file.held.clone()).unwrap_or_default();
        held.sort_by_key(|held| (held.session, held.lock.family, held.lock.owner, held.lock.start));
        held
    }

    pub(crate) fn count_of(&self, session: SessionId) -> usize {
        self.files.values().flat_map(|file| &file.held).filter(|held| held.session == session).count()
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.files.values().map(|file| file.waiting.len()).sum()
    }

    fn change(&mut self, fid: Fid, change: impl FnOnce(&mut File)) {
        let file = self.files.entry(fid).or_default();
        change(file);
        self.granted.extend(file.serve());
    }

    fn closes_circle(&self, fid: Fid, asked: &HeldLock) -> bool {
        let in_the_way = |fid, asked: &HeldLock| {
            let file: Option<&File> = self.files.get(fid);
            file.map(|file| file.in_the_way(asked)).unwrap_or_default()
        };
        let mut seen = BTreeSet::new();
        let mut next = in_the_way(&fid, asked);
        while let Some(held) = next.pop() {
            if owner(&held) == owner(asked) {
                return true;
            }
            if !seen.insert(owner(&held)) {
                continue;
            }
            for (fid, file) in &self.files {
                let theirs = file.waiting.iter().filter(|(_, waiting)| owner(waiting) == owner(&held));
                next.extend(theirs.flat_map(|(_, waiting)| in_the_way(fid, waiting)));
            }
        }
        false
    }
}
