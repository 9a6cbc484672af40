//! Sessions: who they are, their slots, what they have open.

pub(crate) mod check;
pub(crate) mod lost;
mod opens;
mod recalled;
mod slots;

pub(crate) use opens::Opens;
pub(crate) use recalled::Recalled;
pub(crate) use slots::{Arrival, Kept, Progress, Slots};

use crate::durability::Durability;
use crate::net::{Account, Outbox};
use crate::records::{SessionRecord, StoredSession};
use crate::rounds::Round;
use soda_lease::numbers::Numbers;
use soda_protocol::{LeaseWait, SessionKey};
use soda_types::SessionId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all connections of a session share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) record: SessionRecord,
    slots: Mutex<Slots<ReplyTo>>,
    recalled: Recalled,
    /// Memory that its requests have.
    pub(crate) account: Arc<Account>,
    numbers: Mutex<Numbers>,
    ended: AtomicBool,
    polls: AtomicBool,
}

/// Where a reply goes.
#[derive(Clone, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) tag: u64,
}

impl Session {
    pub(crate) fn new(id: SessionId, record: SessionRecord, slots: u16) -> Session {
        Session {
            id,
            record,
            slots: Mutex::new(Slots::new(slots)),
            recalled: Recalled::default(),
            account: Arc::default(),
            numbers: Mutex::default(),
            ended: AtomicBool::new(false),
            polls: AtomicBool::new(false),
        }
    }

    pub(crate) fn set_lease_wait(&self, how: LeaseWait) {
        self.polls.store(how == LeaseWait::Polling, Ordering::Relaxed);
    }

    pub(crate) fn lease_wait(&self) -> LeaseWait {
        match self.polls.load(Ordering::Relaxed) {
            true => LeaseWait::Polling,
            false => LeaseWait::Notified,
        }
    }

    /// A session of an earlier run.
    pub(crate) fn restore(stored: StoredSession, slots: u16, durability: &Durability) -> Session {
        let mut restored = Slots::new(slots);
        for (slot, reply) in stored.replies {
            let stored = match durability.is_doubtful(reply.round) {
                true => (reply.durable, Round::default()),
                false => (reply.sequence, reply.round),
            };
            restored.restore(slot, reply, stored);
        }
        Session {
            id: stored.id,
            record: stored.record,
            slots: Mutex::new(restored),
            recalled: Recalled::default(),
            account: Arc::default(),
            numbers: Mutex::new(Numbers::restore(stored.numbers)),
            ended: AtomicBool::new(false),
            polls: AtomicBool::new(false),
        }
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots<ReplyTo>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who hears that what it holds is recalled.
    pub(crate) fn recalled(&self) -> &Recalled {
        &self.recalled
    }

    /// Locked through a change that uses some of them, or of the space that the session has reserved: what is left is stored
    /// with it.
    pub(crate) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn key(&self) -> SessionKey {
        SessionKey { session: self.id, secret: self.record.secret }
    }

    /// Whether the key proves this session. Takes the same time wherever they differ.
    pub(crate) fn is_proved_by(&self, key: &SessionKey) -> bool {
        let pairs = self.record.secret.iter().zip(&key.secret);
        let difference = pairs.fold(0, |difference, (ours, theirs)| difference | (ours ^ theirs));
        self.id == key.session && difference == 0
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Nothing of it may be carried out any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
