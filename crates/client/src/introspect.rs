//! What `soda status` and `soda lease` show of a client.

use crate::cache::State;
use crate::cache::names::Known;
use crate::client::Client;
use crate::config::Locks;
use crate::inner::{Inner, Phase};
use crate::why::Why;
use serde::{Deserialize, Serialize};
use soda_lease::holder::HeldState;
use soda_types::{Fid, Grant, InUse, Mode, Monotonic, Name, Scope, SessionId};
use std::time::Duration;

/// A lease that this client holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldLease {
    pub grant: Grant,
    /// What is left of it; zero: run out, may come back with the session.
    pub left: Duration,
    /// How often the caches were used under it since the last recall.
    pub uses: u32,
    /// Whether the server has asked for it.
    pub recalling: bool,
    pub in_use: InUse,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionView {
    pub server: String,
    pub volume: String,
    pub session: Option<SessionId>,
    pub standing: ClientStanding,
    /// What is left of the session's lease.
    pub left: Duration,
    pub connections: usize,
    /// Requests without a reply.
    pub waiting: usize,
    pub leases: usize,
    pub cached_inodes: usize,
    pub cached_bytes: u64,
    /// What metadata take that nobody needs, and all names and extended attributes, roughly.
    pub metadata_bytes: u64,
    pub open_files: usize,
    pub locks: usize,
    /// Files whose locks are taken and released without asking.
    pub delegated_locks: usize,
    /// Inodes with changes that are not known to be on the server's disk.
    pub unsynced: usize,
    /// Whether changes were lost of which nobody has heard ([`Client::check_all_losses`]); a client of an older version does not
    /// say.
    #[serde(default)]
    pub unheard_losses: bool,
    pub backlog: BacklogView,
}

/// What the server has not heard of yet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct BacklogView {
    /// Changes, and what they weigh in bytes.
    pub records: u64,
    pub bytes: u64,
    /// How long the oldest has been waiting.
    pub age: Duration,
    /// Changes that the server has applied and may lose in a power cut; they are kept here until it cannot.
    pub not_durable: u64,
}

/// How changes of an inode reach the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangesView {
    pub told: Told,
    /// Changes of it that the server has not heard of.
    pub waiting: u32,
    /// Why the last change of it that a program asked for went to the server at once; `None`: it did not, or nobody remembers.
    pub last_at_once: Option<Why>,
    /// This client's own lease that covers it.
    pub lease: Option<OwnLease>,
    /// Who decides about its file locks.
    pub locks: LocksView,
    /// The client's session, as the server names it.
    pub session: Option<SessionId>,
}

/// A lease of this client, as it covers one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnLease {
    /// [`Scope::Subtree`]: a deep one, of a directory above or of itself.
    pub scope: Scope,
    /// What it allows there.
    pub mode: Mode,
}

/// Who decides about the locks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocksView {
    /// This client, until the server asks for that back.
    Here,
    /// The server is asked, which may let this client decide from then on.
    Server,
    /// The server, each time (`locks=server`).
    ServerAlways,
}

/// When the server hears of the next change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    Later,
    AtOnce(Why),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientStanding {
    Connected,
    Disconnected,
    Closed,
}

fn leases(inner: &Inner) -> Vec<HeldLease> {
    let now = inner.now();
    let state = crate::lock(&inner.state);
    let held = state.holder.snapshot(now);
    let opens = |fid: Fid| state.peek(fid).map_or(0, |inode| inode.uses.opens);
    held.into_iter()
        .map(|info| HeldLease {
            grant: info.grant,
            left: info.left,
            uses: info.uses,
            recalling: info.state == HeldState::Recalling,
            in_use: if opens(info.grant.fid) > 0 { InUse::Yes } else { InUse::No },
        })
        .collect()
}

fn session(inner: &Inner) -> SessionView {
    let now = inner.now();
    let standing = match *inner.phase.borrow() {
        Phase::Connected => ClientStanding::Connected,
        Phase::Disconnected => ClientStanding::Disconnected,
        Phase::Closed => ClientStanding::Closed,
    };
    let (connections, waiting) = (inner.link.connections(), inner.link.waiting());
    let state = crate::lock(&inner.state);
    let backlog = state.behind.backlog(now);
    SessionView {
        server: inner.config.server.clone(),
        volume: inner.config.volume.clone(),
        session: state.holder.session(),
        standing,
        left: state.holder.session_valid_until().since(now),
        connections,
        waiting,
        leases: state.holder.len(),
        cached_inodes: state.len(),
        cached_bytes: state.memory.bytes(),
        metadata_bytes: state.metadata_bytes(),
        open_files: state.open_files().len(),
        locks: state.locks.len(),
        delegated_locks: state.delegate.len(),
        unsynced: state.unsynced.len(),
        unheard_losses: state.unsynced.has_unheard(),
        backlog: BacklogView {
            records: backlog.records,
            bytes: backlog.bytes,
            age: backlog.age,
            not_durable: backlog.not_durable,
        },
    }
}

/// The one that allows most; the deep one where both allow the same.
fn own_lease(state: &State, now: Monotonic, fid: Fid) -> Option<OwnLease> {
    let valid = |mode: Mode| state.holder.valid_until(now, fid, mode).is_some();
    let mode = [Mode::Write, Mode::Read].into_iter().find(|mode| valid(*mode))?;
    let is_deep = state.holder.covered_deep(fid).is_some_and(|deep| deep >= mode);
    Some(OwnLease { scope: if is_deep { Scope::Subtree } else { Scope::Node }, mode })
}

impl Client {
    /// Leases held, by inode.
    pub fn leases(&self) -> Vec<HeldLease> {
        leases(&self.inner)
    }

    /// How the client stands with its server.
    pub fn session(&self) -> SessionView {
        session(&self.inner)
    }

    /// Whether changes of the inode are told to the server later.
    ///
    /// # Errors
    /// Why they are not. For a single change there may be further reasons, such as its size.
    pub fn write_behind_standing(&self, fid: Fid) -> Result<(), Why> {
        let (state, now) = self.inner.locked();
        state.may_change_here(now, fid)
    }

    /// How changes of what a path means reach the server. Only the caches are asked: of what they do not know nothing can
    /// be done later. Once the session's lease has run out it is what the path meant before.
    pub fn changes_of(&self, path: &[Name]) -> ChangesView {
        let known = self.cached_path(path);
        let (state, now) = self.inner.locked();
        let unknown = || Err(if state.writes_behind() { Why::Unknown } else { Why::Policy });
        let here = known.map_or_else(unknown, |fid| state.may_change_here(now, fid));
        let inode = known.and_then(|fid| state.peek(fid));
        let decides = known.is_some_and(|fid| state.delegate.decides(fid));
        ChangesView {
            told: here.map_or_else(Told::AtOnce, |()| Told::Later),
            waiting: inode.map_or(0, |inode| inode.log.records),
            last_at_once: inode.and_then(|inode| inode.log.through),
            lease: known.and_then(|fid| own_lease(&state, now, fid)),
            locks: match self.inner.config.locks() {
                Locks::Delegated if decides => LocksView::Here,
                Locks::Delegated => LocksView::Server,
                Locks::AtServer => LocksView::ServerAlways,
            },
            session: state.holder.session(),
        }
    }

    fn cached_path(&self, path: &[Name]) -> Option<Fid> {
        let (mut state, now) = self.inner.locked();
        let is_covered = state.holder.session_valid_until() > now;
        let mut meaning = |dir, name| match is_covered {
            true => state.peek_name(now, dir, name),
            false => state.last_known_name(dir, name),
        };
        path.iter().try_fold(self.root(), |dir, name| match meaning(dir, name)? {
            Known::Present { fid, .. } => Some(fid),
            Known::Absent => None,
        })
    }
}
