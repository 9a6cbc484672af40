//! Renewal of the session, and what else has to be done now and then.

use crate::cache::inode::Origin;
use crate::cache::unsynced::SYNC_ABOVE;
use crate::call::Order;
use crate::config::Consistency;
use crate::inner::{Inner, Phase};
use crate::log::disk::DiskLog;
use soda_protocol::Call;
use soda_types::{Fid, InUse, Mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TICK: Duration = Duration::from_secs(1);
/// Between two looks for idle leases: a part of the time after which one is idle, but a look goes over all of them, and none is
/// urgent.
const LOOKS: u32 = 4;
const SHORTEST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// Runs until the client is closed.
pub(crate) async fn keep_house(inner: Arc<Inner>) {
    let mut phase = inner.phase.subscribe();
    let renewing = Arc::new(AtomicBool::new(false));
    let syncing = Arc::new(AtomicBool::new(false));
    let catching_up = Arc::new(AtomicBool::new(false));
    let mut said = None;
    loop {
        let renew_at = crate::lock(&inner.state).holder.renew_at();
        let pause = renew_at.since(inner.now()).clamp(Duration::from_millis(10), TICK);
        let closed = tokio::time::timeout(pause, phase.wait_for(|phase| *phase == Phase::Closed)).await;
        if closed.is_ok() {
            return;
        }
        let renews = renew_at <= inner.now();
        if renews {
            // Said once more: a server that was restarted has not heard it.
            said = None;
        }
        inner.report_backlog(&mut said);
        if renews {
            once(&inner, &renewing, Call::Renew);
        }
        let unsynced = crate::lock(&inner.state).unsynced.len();
        if unsynced > SYNC_ABOVE
            && let Some(root) = inner.root.get()
        {
            inner.sync_in_background(*root, &syncing);
        }
        let disk = crate::lock(&inner.state).behind.disk().cloned();
        if let Some(disk) = disk {
            inner.catch_up(&disk, &catching_up);
            inner.keep_what_was_lost(&disk);
        }
        inner.register_opens();
        inner.release_idle_reservation();
        inner.return_idle_locks();
    }
}

/// Runs until the client is closed. Gives leases back that were not used for a while.
pub(crate) async fn watch_idle(inner: Arc<Inner>) {
    let mut phase = inner.phase.subscribe();
    let idle = inner.config.cache.idle;
    let closed = phase.wait_for(|phase| *phase == Phase::Closed);
    tokio::pin!(closed);
    // What the kernel was told before a take-over this client does not know: it cannot give it back.
    tokio::select! {
        () = inner.gate.opened() => {}
        _ = &mut closed => return,
    }
    while tokio::time::timeout(look_every(idle), &mut closed).await.is_err() {
        inner.release_idle(idle);
    }
}

fn look_every(idle: Duration) -> Duration {
    (idle / LOOKS).clamp(SHORTEST_LOOK, LONGEST_LOOK)
}

/// Runs until the client is closed. A thread that was stopped while it handed an answer on has given the kernel a time-out
/// that began too late.
pub(crate) async fn watch_overruns(inner: Arc<Inner>) {
    let mut phase = inner.phase.subscribe();
    loop {
        tokio::select! {
            () = inner.answers.overrun.notified() => {
                tracing::info!("stopped while answering: the kernel's caches are dropped");
                inner.drop_all_kernel_caches();
            }
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
        }
    }
}

/// Sends the call unless the last one of its kind is still on the way.
fn once(inner: &Arc<Inner>, on_the_way: &Arc<AtomicBool>, call: Call) {
    if on_the_way.swap(true, Ordering::AcqRel) {
        return;
    }
    let ticket = crate::lock(&inner.state).holder.begin_request(inner.now());
    let done = Arc::clone(on_the_way);
    drop(inner.send(Order::question(call, ticket), move |_, result| {
        done.store(false, Ordering::Release);
        result.map(|_| ())
    }));
}

impl Inner {
    /// Tells the server of open inodes that no lease of the session's covers any more: their data must stay.
    pub(crate) fn register_opens(self: &Arc<Inner>) {
        let now = self.now();
        let mut state = crate::lock(&self.state);
        let mut orders = Vec::new();
        for fid in state.open_files() {
            let covered = self.config.consistency == Consistency::Lease
                && state.holder.valid_until(now, fid, Mode::Read).is_some();
            let inode = state.inode(fid);
            if inode.log.origin == Origin::Here {
                continue;
            }
            if !covered && inode.uses.open_at_server == InUse::No {
                inode.uses.open_at_server = InUse::Yes;
                let ticket = state.holder.begin_request(now);
                orders.push((fid, Order::question(Call::Opened { fid }, ticket)));
            }
        }
        drop(state);
        for (fid, order) in orders {
            drop(self.send(order, move |arrived, result| {
                arrived.state.told_open(fid);
                if let Err(error) = &result {
                    tracing::debug!(%fid, %error, "an open file is gone at the server");
                }
                result.map(|_| ())
            }));
        }
    }

    /// A disk may hang for longer than a session lasts that is not renewed meanwhile.
    fn catch_up(&self, disk: &Arc<DiskLog>, catching_up: &Arc<AtomicBool>) {
        if catching_up.swap(true, Ordering::AcqRel) {
            return;
        }
        let (disk, done) = (Arc::clone(disk), Arc::clone(catching_up));
        drop(self.runtime.spawn_blocking(move || {
            disk.catch_up();
            done.store(false, Ordering::Release);
        }));
    }

    fn sync_in_background(self: &Arc<Inner>, root: Fid, syncing: &Arc<AtomicBool>) {
        if syncing.swap(true, Ordering::AcqRel) {
            return;
        }
        let done = Arc::clone(syncing);
        let mut state = crate::lock(&self.state);
        let (ticket, mark) = (state.holder.begin_request(self.now()), state.unsynced.mark());
        drop(state);
        let sync = Call::Sync { fid: root, after: None };
        drop(self.send(Order::question(sync, ticket), move |arrived, result| {
            done.store(false, Ordering::Release);
            result.map(|_| arrived.state.unsynced.synced(mark))
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_leases_are_looked_for_as_often_as_their_time_needs() {
        let every = |millis: u64| look_every(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 100, 1000, 2000, 600_000].map(every), [50, 50, 250, 500, 10_000]);
    }
}
