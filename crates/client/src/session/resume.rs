//! What a new control connection has to restore, and what is lost with a session.

use crate::behind::loss::{Keep, Lost};
use crate::cache::State;
use crate::cache::inode::Inode;
use crate::connection::link::Current;
use crate::connection::{ConnId, FrameReader, Writer};
use crate::inner::Inner;
use crate::session::Joinable;
use crate::session::handshake::{HandshakeError, exchange};
use soda_oplog::Applied;
use soda_protocol::{
    Answer, Call, Lock, Lsn, Note, Reclaim, ReclaimStep, SessionKey, SessionWelcome, Standing,
};
use soda_types::{Errno, Fid, FsError, Grant, Monotonic, Version};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// Leases, opens or locks in one message.
const RECLAIM_BATCH: usize = 8192;
/// How long the kernel may take to drop what was refused.
const KERNEL_PATIENCE: Duration = Duration::from_secs(2);

/// Brings the session to where requests can follow.
pub(crate) async fn restore(
    inner: &Arc<Inner>,
    reader: &mut FrameReader,
    writer: &Writer,
    welcome: &SessionWelcome,
    sent_at: Monotonic,
    restarted: Restarted,
) -> Result<(), HandshakeError> {
    inner.max_io.store(welcome.max_io.clamp(4096, soda_protocol::MAX_IO), Ordering::Relaxed);
    let _ = inner.root.set(welcome.root);
    crate::lock(&inner.state).behind.window.begin_connection(inner.now().since(sent_at));
    match welcome.standing {
        Standing::New => begin_session(inner, welcome, sent_at, restarted),
        Standing::Resumed => {
            let given_back = {
                let mut state = crate::lock(&inner.state);
                state.holder.start_session(inner.now(), sent_at, welcome.key.session, welcome.term);
                state.holder.given_back()
            };
            // The word of that may have been lost with the connection before: ahead of all that is told on this one, or what is
            // made below would count as covered.
            if !given_back.is_empty() {
                inner.note(&Note::Release(given_back));
            }
        }
        Standing::Reclaim => {
            // What is not claimed others get, and the kernel may have it still from the process that had the session before. But
            // not longer than to the end of the session as it is known here: that one knew of no later one. The server waits
            // for longer than that.
            let told_until = crate::lock(&inner.state).holder.session_valid_until();
            let _ = tokio::time::timeout(told_until.since(inner.now()), inner.gate.opened()).await;
            crate::lock(&inner.state).holder.start_session(
                inner.now(),
                sent_at,
                welcome.key.session,
                welcome.term,
            );
            let changed = notice_lost_changes(inner, welcome);
            inner.restore_digests(welcome);
            inner.forget_lost_changes(changed).await;
            reclaim(inner, reader, writer).await?;
            inner.give_up_uncovered();
        }
    }
    Ok(())
}

/// Whether the server is another process than the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restarted {
    No,
    Yes,
}

/// What can only be asked when requests may be sent.
pub(crate) fn after_restore(inner: &Arc<Inner>, standing: Standing) {
    let closed = crate::lock(&inner.state).take_told_closed();
    if standing == Standing::Resumed {
        inner.closed(closed);
    }
    inner.register_opens();
    inner.pump();
}

fn begin_session(inner: &Arc<Inner>, welcome: &SessionWelcome, sent_at: Monotonic, restarted: Restarted) {
    let now = inner.now();
    let mut state = crate::lock(&inner.state);
    let had_session = state.holder.session().is_some();
    let why = why_ended(restarted, now, state.holder.session_valid_until());
    state.holder.start_session(now, sent_at, welcome.key.session, welcome.term);
    if !had_session {
        drop(state);
        inner.slots.start_session(welcome.slots);
        inner.begin_disk_log(welcome, Keep::AtOnce);
        return;
    }
    let server = &inner.config.server;
    tracing::warn!(server, why, "the session was lost: all leases and file locks are gone");
    inner.stats.sessions_lost.one();
    if restarted == Restarted::Yes {
        // Nobody can say any more what it kept.
        let concerned = state.unsynced.lose();
        tracing::warn!(
            concerned,
            "changes that were not synced may be lost; fsync of the files concerned will fail once"
        );
    } else if let Some(slots) = inner.slots.digest_slots() {
        state.note_undurable(slots.first);
    }
    let applied = if restarted == Restarted::Yes { Applied::MayBeLost } else { Applied::Kept };
    let promised = state.behind.has_promised();
    let lost = state.lose_log(applied);
    state.unsynced.start_session();
    let loss = inner.losses.fetch_add(1, Ordering::SeqCst) + 1;
    state.delegate.forget_all();
    for fid in state.locks.lose_all() {
        state.note_lost_locks(fid, loss);
    }
    state.nothing_told_open();
    let cached: Vec<Fid> = state.inodes().map(|(fid, _)| *fid).collect();
    let generation = inner.slots.start_session(welcome.slots);
    let unanswered = inner.link.take_lost(generation, |old| {
        state.holder.fail_request(old);
        state.holder.begin_request(now)
    });
    drop(state);
    drop(inner.drop_kernel_caches(cached));
    for (_, pending) in unanswered {
        let error = FsError::new(
            Errno::Io,
            "the session ended before the server answered: it may or may not be done",
        );
        inner.complete(pending.ticket, pending.completion, Err(error));
    }
    // The disk may hang, and nobody else reads the connection.
    match lost {
        Lost { records, disk: Some(disk), .. } if promised && records.is_empty() => {
            inner.remove_when_durable(disk)
        }
        lost => inner.report_loss(lost, &why, Keep::Aside),
    }
    inner.begin_disk_log(welcome, Keep::Aside);
}

/// Why a session has ended, as far as can be told here: the server does not say.
fn why_ended(restarted: Restarted, now: Monotonic, valid_until: Monotonic) -> String {
    let why = if restarted == Restarted::Yes {
        "the server has restarted, and does not know it any more".to_owned()
    } else if now > valid_until {
        let since = now.since(valid_until).as_secs_f64();
        format!(
            "this client was stopped, suspended or cut off from the server for longer than its term (by {since:.1} s), and \
             the server let others go ahead of it"
        )
    } else {
        "the server ended it before its term was over, as it does when it gets no answer to a recall"
            .to_owned()
    };
    format!("the session has ended: {why}")
}

/// Lets requests follow: at once, or, if the server has to be told again what it lost, after that.
pub(super) fn let_go_on(inner: &Arc<Inner>, id: ConnId, key: SessionKey, joinable: &watch::Sender<Joinable>) {
    let (restoring, disk) = {
        let (mut state, now) = inner.locked();
        state.behind.window.open(now);
        (state.behind.is_restoring(), state.behind.disk().cloned())
    };
    let slots = inner.slots.digest_slots().filter(|_| restoring);
    // Digests that had no connection go now: of those, too, it is noted before.
    let to_write = disk.filter(|disk| !disk.is_written());
    if slots.is_none() && to_write.is_none() {
        inner.link.control_ready(id);
        joinable.send_replace(Some(key));
        return;
    }
    joinable.send_replace(None);
    let (inner, joinable) = (Arc::clone(inner), joinable.clone());
    tokio::spawn(async move {
        // The disk may hang: recalls on this connection are answered meanwhile.
        if let Some(disk) = to_write {
            let _ = disk.write_in_turn().await;
        }
        if let Some(slots) = slots {
            inner.link.control_restoring(id, slots);
            inner.restored().await;
        }
        if inner.link.control_ready(id) == Current::Yes {
            joinable.send_replace(Some(key));
        }
    });
}

/// After a power cut the server may have less than it acknowledged; what was synced it has. Returns the inodes that have lost
/// changes which had gone through to it.
fn notice_lost_changes(inner: &Arc<Inner>, welcome: &SessionWelcome) -> Vec<(Fid, Lsn)> {
    let mut state = crate::lock(&inner.state);
    let changed = state.unsynced.lose_after(|slot| welcome.stored_in(slot));
    if changed.is_empty() {
        return changed;
    }
    // Versions will be used again, for other data.
    state.memory.clear_all();
    state.forget_versions();
    drop(state);
    if let Some(disk) = inner.disk.get() {
        disk.forget_all();
    }
    tracing::error!(
        concerned = changed.len(),
        "the server lost acknowledged changes that were not synced; fsync of the files concerned will fail once"
    );
    changed
}

async fn reclaim(
    inner: &Arc<Inner>,
    reader: &mut FrameReader,
    writer: &Writer,
) -> Result<(), HandshakeError> {
    let (leases, open, locks) = {
        let mut state = crate::lock(&inner.state);
        state.holder.fall_back_to_nodes();
        // From here on the server decides: it hears of all locks now.
        state.delegate.leave_all();
        state.hold_what_is_there_again();
        let mut grants = state.holder.reclaim_list(inner.now());
        grants.extend(state.told_ahead());
        let versioned = |grant: Grant| {
            // With nothing cached any version would do; the newest seen is the likeliest to be taken. Of what was changed here
            // the server has another one than the caches.
            let known = |inode: &mut Inode| {
                let is_ahead = inode.attr.is_some() || inode.log.records > 0;
                if is_ahead { inode.told } else { inode.seen }
            };
            let version = state.existing(grant.fid).map_or(Version(0), known);
            (grant, version)
        };
        let leases: Vec<(Grant, Version)> = grants.into_iter().map(versioned).collect();
        state.drop_flocks_given_up();
        (leases, state.open_files(), state.locks.all())
    };
    let (mut leases, mut open, mut locks) = (leases.as_slice(), open.as_slice(), locks.as_slice());
    let mut all_sent = false;
    loop {
        let batch = take(&mut leases);
        let reclaim = Reclaim {
            leases: batch.to_vec(),
            open: take(&mut open).to_vec(),
            locks: take(&mut locks).to_vec(),
            step: ReclaimStep::More,
        };
        // The last one is empty: with it the server may let others go on, so the kernel must have dropped what was refused.
        let last = std::mem::replace(&mut all_sent, leases.is_empty() && open.is_empty() && locks.is_empty());
        let step = if last { ReclaimStep::Last } else { ReclaimStep::More };
        let (registered, asked) =
            (reclaim.open.clone(), batch.iter().map(|(grant, _)| *grant).collect::<Vec<_>>());
        let ticket = crate::lock(&inner.state).holder.begin_request(inner.now());
        let answer = exchange(inner, reader, writer, Call::Reclaim(Reclaim { step, ..reclaim })).await;
        let refused = {
            let now = inner.now();
            let mut state = crate::lock(&inner.state);
            let answers = match answer {
                Ok((Answer::Reclaimed { leases, refused_locks }, _)) => {
                    lose_locks(inner, &mut state, &refused_locks);
                    leases
                }
                Ok(_) => Vec::new(),
                Err(error) => {
                    state.holder.fail_request(ticket);
                    return Err(error);
                }
            };
            registered.into_iter().for_each(|fid| state.told_open(fid));
            state.holder.handle_reclaimed(now, ticket, &asked, &answers)
        };
        inner.stats.reclaimed.add((asked.len() - refused.len()) as u64);
        inner.stats.reclaim_refused.add(refused.len() as u64);
        let dropped = inner.drop_kernel_caches(refused);
        let _ = tokio::time::timeout(KERNEL_PATIENCE, dropped).await;
        if last {
            return Ok(());
        }
    }
}

/// Others have what excludes these: nobody here may go on as if they were held.
fn lose_locks(inner: &Inner, state: &mut State, refused: &[(Fid, Lock)]) {
    if refused.is_empty() {
        return;
    }
    tracing::error!(
        locks = refused.len(),
        "the server restarted and gave others locks that exclude these: they are lost"
    );
    let loss = inner.losses.fetch_add(1, Ordering::SeqCst) + 1;
    for (fid, lock) in refused {
        if !state.locks.overlaps(*fid, *lock) {
            continue;
        }
        state.locks.release(*fid, *lock);
        state.note_lost_locks(*fid, loss);
    }
}

/// Cuts a batch off the front.
fn take<'a, T>(rest: &mut &'a [T]) -> &'a [T] {
    let (batch, after) = rest.split_at(rest.len().min(RECLAIM_BATCH));
    *rest = after;
    batch
}
