//! What the server does without being asked: the table's timer, warnings about long waits, sessions that never come back,
//! orphans whose last user has gone, space of what was deleted.

use crate::core::{Admission, Asker, Core, Warned};
use crate::metrics::CallKind;
use crate::server::{OWN_SESSION, Shared};
use crate::{clock, core::Verdict};
use soda_lease::table::{Access, Outcome};
use soda_storage::crash;
use soda_types::{Cause, Fid, FsResult, Monotonic, SessionId};
use soda_volume::Progress;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// How often waits and silent sessions are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The timer's task never runs more often, whatever the table wants.
const SHORTEST: Duration = Duration::from_millis(1);
/// A wait that is worth a line in the log.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Lines about long waits at a time.
const WARNINGS: usize = 16;
/// Orphans that are being deleted, or wait for that, at a time.
const ORPHANS_AT_ONCE: usize = 64;
/// Extents or chunks that are reclaimed at a time.
const RECLAIM_STEP: usize = 1000;

/// Wakes the timer's task before its time.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    /// When it is going to wake by itself, nanoseconds of the lease clock.
    armed: AtomicU64,
    wake: Notify,
}

impl Shared {
    /// The table wants to be called at `time`.
    pub(crate) fn wake_timer_at(&self, time: Monotonic) {
        if time.as_nanos() < self.timer.armed.load(Ordering::Acquire) {
            self.timer.wake.notify_one();
        }
    }
}

pub(crate) async fn run_timer(shared: Arc<Shared>) {
    let mut next_look = clock::monotonic() + LOOK;
    loop {
        let wake = {
            let mut core = shared.core();
            let now = core.now;
            if core.table.poll_timeout().is_some_and(|timeout| timeout <= now) {
                core.table.handle_timeout(now);
                core.settle();
            }
            if next_look <= now {
                next_look = now + LOOK;
                warn_of_waits(&mut core, now);
                forget_the_silent(&shared, &mut core);
                if shared.janitor.space_is_wanted.swap(false, Ordering::AcqRel) {
                    contest_orphans(&mut core);
                }
            }
            let contested = core.contest_waits();
            let table = core.table.poll_timeout();
            let wake = [contested, table].into_iter().flatten().fold(next_look, Monotonic::min);
            shared.timer.armed.store(wake.as_nanos(), Ordering::Release);
            wake
        };
        // tokio's clock stops in suspend, so a wait ends late after one, by `LOOK` at most.
        tokio::select! {
            () = tokio::time::sleep(wake.since(clock::monotonic()).max(SHORTEST)) => {}
            () = shared.timer.wake.notified() => {}
        }
    }
}

/// Says in the log who blocks whom. A few at a time: when a thousand wait, the first ones tell the story.
fn warn_of_waits(core: &mut Core, now: Monotonic) {
    let Core { waiting, table, sessions, .. } = core;
    let name_of = |id: &SessionId| {
        let entry = sessions.get(id);
        entry.map_or_else(|| id.to_string(), |entry| format!("{id} ({})", entry.session.record.name))
    };
    let long = |waiting: &crate::core::Waiting| {
        waiting.warned == Warned::NotYet
            && waiting.session != OWN_SESSION
            && now.since(waiting.since) >= LONG_WAIT
    };
    for (key, waiting) in waiting.iter_mut().filter(|(_, waiting)| long(waiting)).take(WARNINGS) {
        let waited = now.since(waiting.since);
        waiting.warned = Warned::Already;
        let grace = table.grace_left(now);
        for fid in &waiting.objects {
            let Some(wait) = table.waiting(now, *fid).into_iter().find(|wait| wait.op == *key) else {
                continue;
            };
            let blockers: Vec<String> = wait.blocked_by.iter().map(name_of).collect();
            tracing::warn!(session = %name_of(&waiting.session), op = waiting.kind.name(), %fid, ?waited, ?grace,
                blocked_by = blockers.join(", "), at_most = ?wait.at_latest, "an operation waits");
        }
    }
}

/// Ends sessions that nobody was in conflict with, but whose client has been away for too long.
fn forget_the_silent(shared: &Shared, core: &mut crate::core::CoreGuard<'_>) {
    let now = core.now;
    let courtesy = shared.config.courtesy;
    let gone = |since: Option<Monotonic>| since.is_some_and(|since| now.since(since) > courtesy);
    let silent: Vec<SessionId> =
        core.sessions.iter().filter(|(_, entry)| gone(entry.silent_since)).map(|(id, _)| *id).collect();
    for session in silent {
        tracing::info!(%session, ?courtesy, "session forgotten: its client has been away for too long");
        core.table.close_session(now, session);
        core.end_session(session);
        core.settle();
    }
}

/// The disk is full: whoever keeps a removed file and has let its lease run out keeps it no longer.
fn contest_orphans(core: &mut crate::core::CoreGuard<'_>) {
    let now = core.now;
    let kept: Vec<(Fid, SessionId)> =
        core.orphans.iter().flat_map(|fid| core.opens.users(*fid).map(|session| (*fid, session))).collect();
    for (fid, session) in kept {
        // What is left of its lease if it is alive: then the file is in use.
        let _ = core.table.contest(now, session, fid);
    }
    core.settle();
}

/// Inodes to be deleted as soon as nobody uses them.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    queue: Mutex<VecDeque<Fid>>,
    wake: Notify,
    /// Something was refused for want of space.
    space_is_wanted: AtomicBool,
}

impl Janitor {
    pub(crate) fn want_space(&self) {
        self.space_is_wanted.store(true, Ordering::Release);
    }

    pub(crate) fn enqueue(&self, fid: Fid) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(fid);
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Fid> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Deletes orphans. Admitted like any other change; so not before a grace period is over, in which somebody may still say
/// that it has them open.
pub(crate) async fn run_janitor(shared: Arc<Shared>) {
    let left_over: Vec<Fid> = shared.core().orphans.iter().copied().collect();
    for fid in left_over {
        shared.janitor.enqueue(fid);
    }
    let places = Arc::new(Semaphore::new(ORPHANS_AT_ONCE));
    loop {
        while let Some(fid) = shared.janitor.next() {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let shared = shared.clone();
            tokio::spawn(async move {
                if let Err(error) = drop_orphan(&shared, fid).await {
                    tracing::error!(%fid, %error, "an inode without a name could not be deleted; a restart tries again");
                }
                drop(place);
            });
        }
        shared.janitor.wake.notified().await;
    }
}

async fn drop_orphan(shared: &Shared, fid: Fid) -> FsResult<()> {
    let asker = Asker { session: OWN_SESSION, kind: CallKind::Unlink, op: None, tag: 0 };
    let admission = {
        let mut core = shared.core();
        let now = core.now;
        // The server's own session does not expire: it is renewed whenever it is used.
        core.table.open_session(now, OWN_SESSION);
        core.admit(asker, vec![Access::change(fid, Cause::Reclaim).without_lease()])
    };
    let key = match admission {
        Admission::Admitted(key) => key,
        Admission::Waits(key, verdict) => match verdict.await {
            Ok(Verdict::Admitted) => key,
            _ => return Ok(()),
        },
        Admission::SessionEnded => return Ok(()),
    };
    let unused = {
        let core = shared.core();
        core.orphans.contains(&fid) && !core.opens.is_used(fid)
    };
    let result = if unused { delete(shared, fid).await } else { Ok(()) };
    let mut core = shared.core();
    let now = core.now;
    if unused && result.is_ok() {
        core.orphans.remove(&fid);
    }
    core.table.finish(now, key, Outcome::Applied);
    core.settle();
    result
}

async fn delete(shared: &Shared, fid: Fid) -> FsResult<()> {
    let _place = shared.places.enter().await;
    shared.write_ends();
    let mut txn = shared.volume.begin(clock::calendar());
    txn.drop_orphan(fid)?;
    txn.commit()?;
    crash::point("server.orphan-dropped");
    shared.metrics.orphans_dropped.add(1);
    shared.sync.dirty();
    Ok(())
}

/// The thread that gives the space of deleted files back.
pub(crate) fn start_reclaimer(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("soda-reclaim".to_owned()).spawn(move || {
        while !shared.is_stopping() {
            match shared.volume.reclaim_some(RECLAIM_STEP) {
                Ok(Progress::More) => std::thread::yield_now(),
                Ok(Progress::Done) => std::thread::park_timeout(LOOK),
                Err(error) => {
                    tracing::error!(%error, "space of deleted files could not be given back");
                    std::thread::park_timeout(LOOK * 10);
                }
            }
        }
    })
}
