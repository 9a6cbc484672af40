//! flock(2), fcntl(2) and OFD locks. The client decides, or asks the server to; nothing is granted by the kernel alone.
//!
//! The kernel names owners by the hash of an address: of the open file for flock and OFD locks, of the process's table of
//! files for record locks. It tells of the end of an open file when that is gone already, and the next one may have got the
//! same address, and a lock, before we hear of it. So a flock's owner is here the handle, which is never used again, and a
//! handle's end releases only the record locks that were last set through it.

use super::Inner;
use super::leaving::{Noted, Wait};
use crate::handles::FileHandle;
use crate::unpoisoned::Unpoisoned;
use crate::wire::abi::lock as abi_lock;
use crate::wire::{Header, LockRequest, Reply};
use soda_client::LockWait;
use soda_types::{Errno, Fid, FsResult, Lock, LockFamily, LockMode, LockOwner};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

/// Through which handle an owner last set a record lock on an inode, if no FLUSH has named the owner since: OFD locks, which
/// the kernel gives up without a word when the handle is released, and record locks until the first close.
#[derive(Debug, Default)]
pub(crate) struct RecordOwners(Mutex<BTreeMap<(Fid, LockOwner), Through>>);

#[derive(Debug)]
enum Through {
    Handle(u64),
    /// One that is being released, until the sender is gone. Who sets a lock meanwhile is the next of that name, and would lose
    /// it.
    Ending(watch::Receiver<()>),
}

/// The end of a handle, until the locks that end with it are released.
#[derive(Debug)]
struct Ending<'a> {
    all: &'a RecordOwners,
    owners: Vec<(Fid, LockOwner)>,
    _over: watch::Sender<()>,
}

impl RecordOwners {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<(Fid, LockOwner), Through>> {
        self.0.lock().unpoisoned()
    }

    async fn set(&self, fid: Fid, owner: LockOwner, handle: u64) {
        loop {
            let mut over = match self.locked().entry((fid, owner)) {
                Entry::Occupied(mut known) => match known.get() {
                    Through::Ending(over) => over.clone(),
                    Through::Handle(_) => {
                        known.insert(Through::Handle(handle));
                        return;
                    }
                },
                Entry::Vacant(unknown) => {
                    unknown.insert(Through::Handle(handle));
                    return;
                }
            };
            // Nothing is ever sent: the error says that it is over.
            let _ = over.changed().await;
        }
    }

    /// For a process that takes the mount over: no handle is being released.
    pub(super) fn hand_over(&self) -> Vec<(Fid, LockOwner, u64)> {
        let all = self.locked();
        let through = |((fid, owner), through): (&(Fid, LockOwner), &Through)| match through {
            Through::Handle(handle) => Some((*fid, *owner, *handle)),
            Through::Ending(_) => None,
        };
        all.iter().filter_map(through).collect()
    }

    pub(super) fn take_over(&self, owners: Vec<(Fid, LockOwner, u64)>) {
        let through = |(fid, owner, handle)| ((fid, owner), Through::Handle(handle));
        self.locked().extend(owners.into_iter().map(through));
    }

    fn flushed(&self, fid: Fid, owner: LockOwner) {
        if let Entry::Occupied(known) = self.locked().entry((fid, owner))
            && let Through::Handle(_) = known.get()
        {
            known.remove();
        }
    }

    /// Whose locks end with the handle.
    fn released(&self, fid: Fid, handle: u64) -> Ending<'_> {
        let (over, is_over) = watch::channel(());
        let mut owners = Vec::new();
        let of_file = (fid, LockOwner(0))..=(fid, LockOwner(u64::MAX));
        for (owner, through) in self.locked().range_mut(of_file) {
            if matches!(through, Through::Handle(it) if *it == handle) {
                *through = Through::Ending(is_over.clone());
                owners.push(*owner);
            }
        }
        Ending { all: self, owners, _over: over }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut all = self.all.locked();
        for owner in &self.owners {
            all.remove(owner);
        }
    }
}

impl Inner {
    pub(super) async fn lock_test(
        self: Arc<Self>,
        file: Arc<FileHandle>,
        request: LockRequest,
        reply: Reply,
    ) {
        let Some(lock) = lock_of(&request) else { return reply.error(Errno::Invalid) };
        match self.client.lock_test(file.fid(), lock).await {
            Ok(Some(other)) => {
                let kind = match other.mode {
                    LockMode::Shared => abi_lock::READ,
                    LockMode::Exclusive => abi_lock::WRITE,
                };
                reply.lock(other.start, other.end.min(abi_lock::END), kind, other.pid);
            }
            Ok(None) => reply.lock(request.span.start, request.span.end, abi_lock::UNLOCK, 0),
            Err(error) => self.fail("getlk", &error, reply),
        }
    }

    pub(super) async fn lock_set(self: Arc<Self>, file: Arc<FileHandle>, request: LockRequest, reply: Reply) {
        let result = match lock_of(&request) {
            Some(lock) => {
                self.note_record_owner(&file, &request, &lock).await;
                self.client.lock_set(&file.open, lock, LockWait::No).await
            }
            None => self.unlock(&file, &request).await,
        };
        self.finish("setlk", result, reply);
    }

    /// F_SETLKW. After a signal the answer is EINTR, and nothing is held, or the lock was granted just then. If the mount is
    /// being handed over there is no answer: whoever serves it next asks for the lock again.
    pub(super) async fn lock_wait(
        self: Arc<Self>,
        header: Header,
        file: Arc<FileHandle>,
        request: LockRequest,
        signal: Arc<Notify>,
        reply: Reply,
    ) {
        let Some(lock) = lock_of(&request) else {
            let result = self.unlock(&file, &request).await;
            return self.finish("setlkw", result, reply);
        };
        loop {
            let is_left = AtomicBool::new(false);
            let mut interrupted = pin!(async {
                tokio::select! {
                    biased;
                    () = signal.notified() => {}
                    () = self.leaving.begun() => is_left.store(true, Ordering::Relaxed),
                }
            });
            let result = tokio::select! {
                biased;
                () = self.note_record_owner(&file, &request, &lock) => {
                    self.client.lock_until(&file.open, lock, interrupted).await
                }
                () = &mut interrupted => Err(Errno::Interrupted.into()),
            };
            let is_interrupted = matches!(&result, Err(error) if error.errno == Errno::Interrupted);
            if !is_interrupted || !is_left.load(Ordering::Relaxed) {
                return self.finish("setlkw", result, reply);
            }
            // The kernel tells of a signal once: also of one that came while the server was asked.
            let has_signal = tokio::select! {
                biased;
                () = signal.notified() => true,
                () = std::future::ready(()) => false,
            };
            if has_signal {
                return self.finish("setlkw", result, reply);
            }
            // Too late, it is asked for again here.
            if self.leaving.note(Wait { header, request }) == Noted::Yes {
                return reply.none();
            }
        }
    }

    /// Before it is set: whoever goes away meanwhile has it released with the handle.
    async fn note_record_owner(&self, file: &FileHandle, request: &LockRequest, lock: &Lock) {
        if lock.family == LockFamily::Record {
            self.record_owners.set(file.fid(), lock.owner, request.handle).await;
        }
    }

    async fn unlock(&self, file: &FileHandle, request: &LockRequest) -> FsResult<()> {
        let range = Lock { mode: LockMode::Exclusive, ..range_of(request) };
        self.client.lock_release(file.fid(), range).await
    }

    /// close(2): POSIX gives up all record locks that the process has on the file.
    pub(super) async fn flush(self: Arc<Self>, file: Arc<FileHandle>, owner: u64, reply: Reply) {
        let owner = LockOwner(owner);
        self.record_owners.flushed(file.fid(), owner);
        let released = self.client.lock_release_owner(file.fid(), LockFamily::Record, owner).await;
        // close(2) is the last chance to say so to a program that does not call fsync.
        let result = released.and(self.client.check_loss_at_close(&file.open));
        self.finish("flush", result, reply);
    }

    /// The last reference to the open file is gone.
    pub(super) async fn release(self: Arc<Self>, file: Arc<FileHandle>, handle: u64, reply: Reply) {
        let ending = self.record_owners.released(file.fid(), handle);
        let records = ending.owners.iter().map(|(_, owner)| (LockFamily::Record, *owner));
        for (family, owner) in records.chain([(LockFamily::Flock, LockOwner(handle))]) {
            if let Err(error) = self.client.lock_release_owner(file.fid(), family, owner).await {
                tracing::warn!(%error, fid = %file.fid(), "locks of a closed file were not released");
            }
        }
        drop(ending);
        // close(2) has returned already: there is nobody to tell an error.
        drop(file);
        reply.done();
    }
}

fn range_of(request: &LockRequest) -> Lock {
    let (family, owner) = match request.is_flock {
        true => (LockFamily::Flock, request.handle),
        false => (LockFamily::Record, request.owner),
    };
    let span = request.span;
    let end = if span.end >= abi_lock::END { u64::MAX } else { span.end };
    Lock { family, owner: LockOwner(owner), pid: span.pid, start: span.start, end, mode: LockMode::Shared }
}

/// `None`: to be released.
fn lock_of(request: &LockRequest) -> Option<Lock> {
    let mode = match request.span.kind {
        abi_lock::READ => LockMode::Shared,
        abi_lock::WRITE => LockMode::Exclusive,
        _ => return None,
    };
    Some(Lock { mode, ..range_of(request) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::LockSpan;

    #[tokio::test]
    async fn the_next_open_file_at_an_address_keeps_its_locks() {
        let span = LockSpan { start: 0, end: abi_lock::END, kind: abi_lock::WRITE, pid: 1 };
        let flock = |handle| lock_of(&LockRequest { handle, owner: 7, span, is_flock: true }).unwrap();
        assert_ne!(flock(1).owner, flock(2).owner, "two open files are two owners of flocks");
        let (owners, fid) = (RecordOwners::default(), Fid::new(soda_types::VolumeId(1), soda_types::Ino(5)));
        owners.set(fid, LockOwner(7), 1).await;
        owners.set(fid, LockOwner(7), 2).await;
        assert_eq!(owners.released(fid, 1).owners, []);
        let ending = owners.released(fid, 2);
        assert_eq!(ending.owners, [(fid, LockOwner(7))]);
        let mut next = std::pin::pin!(owners.set(fid, LockOwner(7), 3));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(next.as_mut().poll(&mut context).is_pending(), "its lock would be released with those");
        drop(ending);
        next.await;
        assert_eq!(owners.released(fid, 3).owners, [(fid, LockOwner(7))]);
    }

    #[test]
    fn a_range_without_end_stays_one() {
        let span = LockSpan { start: 3, end: abi_lock::END, kind: abi_lock::WRITE, pid: 1 };
        let request = LockRequest { handle: 1, owner: 2, span, is_flock: false };
        let lock = lock_of(&request).unwrap();
        assert_eq!((lock.start, lock.end, lock.mode), (3, u64::MAX, LockMode::Exclusive));
        let unlock = LockRequest { span: LockSpan { kind: abi_lock::UNLOCK, ..span }, ..request };
        assert!(lock_of(&unlock).is_none());
    }
}
