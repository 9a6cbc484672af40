//! What the server does without being asked: the table's timer, warnings about long waits, sessions that never come back,
//! orphans whose last user has gone, space of what was deleted, threads that are stuck.

use crate::call::ancestry::ancestors;
use crate::clock;
use crate::core::{Core, OWN_SESSION, Verdict, Waiting};
use crate::guard::{Admission, Asker, CoreGuard};
use crate::link::Warned;
use crate::metrics::CallKind;
use crate::shared::Shared;
use soda_lease::table::{Access, LeaseTable, Outcome};
use soda_storage::crash;
use soda_types::{Cause, Fid, FsResult, Monotonic, SessionId};
use soda_volume::Progress;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

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
/// How long the reclaimer rests after each of these where there is room, in what it took.
const RESTS: u32 = 4;
/// What has to be free for that beside what clients were promised, bytes.
const PLENTY: u64 = 1 << 30;
/// Work on the store that takes longer has its thread stuck.
const STUCK: Duration = Duration::from_millis(100);

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
                if shared.janitor.take_want_of_space() {
                    contest_orphans(&mut core);
                    core.contest_reservations();
                }
            }
            let contested = core.contest_waits();
            let table = core.table.poll_timeout();
            let wake = [contested, table].into_iter().flatten().fold(next_look, Monotonic::min);
            shared.timer.arm(wake);
            wake
        };
        for (what, more) in shared.troubles.left_out(clock::monotonic()) {
            tracing::warn!(more, "{what}, of which the log does not say each");
        }
        // tokio's clock stops in suspend, so a wait ends late after one, by `LOOK` at most.
        tokio::select! {
            () = tokio::time::sleep(wake.since(clock::monotonic()).max(SHORTEST)) => {}
            () = shared.timer.woken() => {}
        }
    }
}

/// Says in the log who blocks whom. A few at a time: when a thousand wait, the first ones tell the story.
fn warn_of_waits(core: &mut Core, now: Monotonic) {
    let Core { waiting, table, sessions, lock_calls, delegations, .. } = core;
    let name_of = |id: &SessionId| {
        let entry = sessions.get(id);
        entry.map_or_else(|| id.to_string(), |entry| format!("{id} ({})", entry.session.record.name))
    };
    let long = |waiting: &Waiting| {
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
            // Who is there and does not answer is waited for longer than who is gone, which nobody knows yet.
            let if_gone = wait.at_latest.and_then(|_| left_of(table, now, &wait.blocked_by));
            tracing::warn!(session = %name_of(&waiting.session), op = waiting.kind.name(), %fid, ?waited, ?grace,
                blocked_by = blockers.join(", "), if_gone = if_gone.map(tracing::field::debug),
                at_most = wait.at_latest.map(tracing::field::debug), "an operation waits");
        }
    }
    for (fid, call, waited) in lock_calls.warn_of(now, LONG_WAIT).take(WARNINGS) {
        let session = call.session();
        let decides = delegations.other(fid, session).as_ref().map_or_else(String::new, name_of);
        tracing::warn!(session = %name_of(&session), op = call.kind.name(), %fid, ?waited, blocked_by = decides,
            "a lock cannot be decided about until a session has told of those that it took by itself");
    }
}

/// When the last of these sessions ends unless it is renewed.
fn left_of(table: &LeaseTable, now: Monotonic, sessions: &[SessionId]) -> Option<Duration> {
    let all = table.sessions(now).into_iter();
    all.filter(|info| sessions.contains(&info.session)).map(|info| info.left).max()
}

/// Ends sessions that nobody was in conflict with, but whose client has been away for too long.
fn forget_the_silent(shared: &Shared, core: &mut CoreGuard<'_>) {
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
fn contest_orphans(core: &mut CoreGuard<'_>) {
    let now = core.now;
    let kept: Vec<(Fid, SessionId)> =
        core.orphans.iter().flat_map(|fid| core.opens.users(*fid).map(|session| (*fid, session))).collect();
    for (fid, session) in kept {
        // What is left of its lease if it is alive: then the file is in use.
        let _ = core.table.contest(now, session, fid);
    }
    core.settle();
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
        while let Some(deletion) = shared.janitor.next(clock::monotonic()) {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let shared = shared.clone();
            tokio::spawn(async move {
                if let Err(error) = drop_orphan(&shared, deletion.fid).await {
                    let again_in = shared.janitor.put_off(clock::monotonic(), deletion);
                    tracing::error!(fid = %deletion.fid, %error, ?again_in, "an inode without a name could not be deleted");
                }
                drop(place);
            });
        }
        let due = shared.janitor.next_due().map(|due| due.since(clock::monotonic()));
        tokio::select! {
            () = shared.janitor.woken() => {}
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {}
        }
    }
}

async fn drop_orphan(shared: &Shared, fid: Fid) -> FsResult<()> {
    let asker = Asker { session: OWN_SESSION, kind: CallKind::Unlink, op: None, tag: 0 };
    // Who comes back says what it has open. Its lease on that is not asked for: it may have things to tell under it.
    loop {
        let Some(left) = shared.core().grace_left() else { break };
        tokio::time::sleep(left.max(SHORTEST)).await;
    }
    let mut access = Access::change(fid, Cause::Reclaim).without_lease();
    if let Some(as_of) = shared.tree_version() {
        access.ancestors = ancestors(&shared.volume, as_of, fid);
    }
    let admission = {
        let mut core = shared.core();
        if core.opens.is_used(fid) {
            return Ok(());
        }
        let now = core.now;
        // The server's own session does not expire: it is renewed whenever it is used.
        core.table.open_session(now, OWN_SESSION);
        core.admit(asker, vec![access])
    };
    let key = match admission {
        Admission::Admitted(key) => key,
        Admission::Waits(key, verdict) => match verdict.await {
            Ok(Verdict::Admitted) => key,
            _ => return Ok(()),
        },
        Admission::SessionEnded | Admission::NotHeld(_) | Admission::Unplaced => return Ok(()),
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
        core.table.forget_holes_of(fid);
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

/// The thread that gives the space of deleted files back. It punches holes into files that others append to, who wait for
/// each; and what waits to be given back may become one hole with its neighbours meanwhile. So it takes its time where there
/// is room.
pub(crate) fn start_reclaimer(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("soda-reclaim".to_owned()).spawn(move || {
        while !shared.is_stopping() {
            let began = Instant::now();
            match shared.volume.reclaim_some(RECLAIM_STEP) {
                Ok(Progress::More) if has_plenty(&shared) => {
                    std::thread::park_timeout(began.elapsed().saturating_mul(RESTS).min(LOOK));
                }
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

fn has_plenty(shared: &Shared) -> bool {
    let spoken_for = shared.space.spoken_for().saturating_add(PLENTY);
    shared.free_space().is_ok_and(|free| free >= spoken_for)
}

/// Whoever of the runtime's threads handles events of sockets goes on to the work they bring; if that gets stuck, the other
/// threads sleep on. Waking one of them makes it look after the sockets.
pub(crate) fn start_watch(shared: Arc<Shared>, runtime: Handle) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("soda-watch".to_owned()).spawn(move || {
        let mut left_before = 0;
        while !shared.is_stopping() {
            std::thread::park_timeout(STUCK);
            let progress = shared.places.progress();
            if progress.is_at_work && progress.left == left_before {
                drop(runtime.spawn(async {}));
            }
            left_before = progress.left;
        }
    })
}
