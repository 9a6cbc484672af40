//! Waiting for the medium, unless somebody waits for the session meanwhile.

use crate::places::Places;
use crate::session::Recalled;
use crate::sync::{Asked, GroupSync};
use soda_types::FsResult;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::oneshot::error::TryRecvError;

/// How a wait ended.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Waited {
    Synced(FsResult<()>),
    /// There is another way.
    Instead,
    /// Nobody syncs any more: the server stops.
    Left,
}

/// Waits until the medium has all that it was told before, without a place; `asked`: it was asked for that already. `instead` is
/// asked, in a place, whether there is another way: at first, whenever something of the session is recalled, and each time `look`
/// has passed, for what stood in that other way may be gone.
pub(super) async fn wait(
    (sync, mut asked): (&GroupSync, Option<Asked>),
    places: &Places,
    recalled: &Recalled,
    look: Duration,
    mut instead: impl FnMut() -> bool,
) -> Waited {
    match asked.as_mut().map(Asked::try_recv) {
        Some(Ok(result)) => return Waited::Synced(result),
        Some(Err(TryRecvError::Closed)) => return Waited::Left,
        Some(Err(TryRecvError::Empty)) | None => {}
    }
    let (wake, mut woken) = mpsc::unbounded_channel();
    // Before the first look: nothing is missed.
    let _hears = recalled.hear(move || {
        // Who has gone another way does not listen.
        let _ = wake.send(());
    });
    loop {
        {
            let _place = places.enter().await;
            if instead() {
                return Waited::Instead;
            }
        }
        tokio::select! {
            biased;
            over = asked.get_or_insert_with(|| sync.ask()) => return over.map_or(Waited::Left, Waited::Synced),
            Some(()) = woken.recv() => {}
            () = tokio::time::sleep(look) => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use soda_types::{Errno, FsError};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Mutex, PoisonError};

    const NEVER: Duration = Duration::from_secs(3600);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// One whose rounds end when they are let, with what they are given; and which says that they have begun.
    fn held_up() -> (GroupSync, Receiver<()>, Sender<FsResult<()>>) {
        let (started, rounds) = channel();
        let (go, gate) = channel();
        let gate = Mutex::new(gate);
        let sync = GroupSync::start(
            "test",
            NEVER,
            |_, _| {},
            move || {
                started.send(()).unwrap();
                gate.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE).unwrap_or(Ok(()))
            },
        );
        (sync.unwrap(), rounds, go)
    }

    /// [`super::wait`], on a thread that does nothing else.
    fn wait(sync: &GroupSync, recalled: &Recalled, look: Duration, instead: impl FnMut() -> bool) -> Waited {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(super::wait((sync, None), &Places::new(4), recalled, look, instead))
    }

    #[test]
    fn who_is_asked_meanwhile_goes_another_way_at_once() {
        let (sync, rounds, go) = held_up();
        let (recalled, may) = (Recalled::default(), AtomicBool::new(false));
        let looks = AtomicUsize::new(0);
        let instead = || {
            looks.fetch_add(1, Ordering::SeqCst);
            may.load(Ordering::SeqCst)
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&sync, &recalled, NEVER, instead));
            rounds.recv_timeout(PATIENCE).unwrap();
            // Asked, but there is no room: it waits on.
            recalled.note();
            while looks.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished());
            may.store(true, Ordering::SeqCst);
            recalled.note();
            assert_eq!(waiting.join().unwrap(), Waited::Instead, "the medium is still at work");
        });
        recalled.note();
        assert_eq!(wait(&sync, &recalled, NEVER, || true), Waited::Instead, "it does not even begin");
        go.send(Ok(())).unwrap();
    }

    #[test]
    fn who_has_no_room_looks_again() {
        let (sync, _rounds, go) = held_up();
        let mut looks = 0;
        let instead = || {
            looks += 1;
            looks == 3
        };
        assert_eq!(wait(&sync, &Recalled::default(), Duration::from_millis(1), instead), Waited::Instead);
        go.send(Ok(())).unwrap();
    }

    #[test]
    fn who_waits_hears_what_became_of_the_sync_or_that_there_is_none() {
        let (sync, rounds, go) = held_up();
        let recalled = Recalled::default();
        let wait = || wait(&sync, &recalled, NEVER, || false);
        let failed = Err(FsError::new(Errno::Io, "of the test"));
        for result in [Ok(()), failed] {
            go.send(result.clone()).unwrap();
            assert_eq!(wait(), Waited::Synced(result));
            rounds.recv().unwrap();
        }
        std::thread::scope(|scope| {
            let first = scope.spawn(wait);
            rounds.recv_timeout(PATIENCE).unwrap();
            let stopping = scope.spawn(|| sync.stop());
            go.send(Ok(())).unwrap();
            assert_eq!(first.join().unwrap(), Waited::Synced(Ok(())));
            stopping.join().unwrap();
        });
        assert_eq!(wait(), Waited::Left);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (asked, places) = ((&sync, Some(sync.ask())), Places::new(4));
        let waited = super::wait(asked, &places, &recalled, NEVER, || false);
        assert_eq!(runtime.block_on(waited), Waited::Left, "asked ahead");
    }
}
