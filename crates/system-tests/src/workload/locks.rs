//! Operations on locks: flock by descriptor, record and OFD locks by process.

use super::actor::Actor;
use super::layout::{lock_name, ranges_name};
use super::locker::{Locker, Owner};
use crate::linear::object::{Answer, Operation};
use rustix::fs::{self, FlockOperation, OFlags};
use rustix::io::{Errno, Result};
use std::os::fd::AsRawFd;

impl Actor {
    pub(super) fn lock(&mut self, file: u16, operation: &Operation) -> Result<Answer> {
        if *operation == Operation::TryLock {
            let descriptor = self.open(&lock_name(file), OFlags::RDWR)?;
            return match fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    self.locked.insert(file, (descriptor, self.called()));
                    Ok(Answer::Done)
                }
                Err(Errno::WOULDBLOCK) => Ok(Answer::Busy),
                Err(errno) => Err(errno),
            };
        }
        let Some((descriptor, since)) = self.locked.remove(&file) else { return Ok(Answer::Done) };
        // What the lock was for. A client that lost it with its session must hear so here, at the latest.
        let work = rustix::io::pwrite(&descriptor, b"x", 0);
        let result = work.and_then(|_| fs::flock(&descriptor, FlockOperation::Unlock));
        if result.is_err() {
            self.locked.insert(file, (descriptor, since));
        }
        result.map(|()| Answer::Done)
    }

    pub(super) fn range(&mut self, file: u16, operation: &Operation) -> Result<Answer> {
        if !self.lockers.contains_key(&file) {
            // Through the descriptor: it leads to the same mount also when that is not at its place any more.
            let root = self.root()?.as_raw_fd();
            let path = format!("/proc/{}/fd/{root}/{}", std::process::id(), ranges_name(file));
            let owner = if self.client.is_multiple_of(2) { Owner::Process } else { Owner::OpenFile };
            self.lockers.insert(file, Locker::start(&path, owner)?);
            self.start_clock();
        }
        let called = self.called();
        let Some(locker) = self.lockers.get_mut(&file) else { return Err(Errno::NOTCONN) };
        match operation {
            Operation::TryRange { from, to, mode, .. } => {
                let answer = locker.lock(*from, *to, *mode)?;
                if answer == Answer::Done {
                    self.ranges.extend((*from..*to).map(|part| ((file, part), called)));
                }
                Ok(answer)
            }
            Operation::UnlockRange { from, to, .. } => {
                let answer = locker.unlock(*from, *to)?;
                self.ranges.retain(|(of, part), _| *of != file || !(*from..*to).contains(part));
                Ok(answer)
            }
            _ => Err(Errno::INVAL),
        }
    }
}
