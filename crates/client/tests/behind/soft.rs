//! With `soft` operations fail after a time. What others are promised does not end with that time.

use super::*;
use crate::common::relay::{Relay, Way};
use soda_client::{Fsync, Retry};
use soda_protocol::Call;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Long enough for an operation that nothing holds up, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// When whoever went by that has given up.
const LATER: Duration = Duration::from_secs(5);

fn soft(cell: &Cell, server: SocketAddr, behind: WriteBehind) -> ClientConfig {
    let config = ClientConfig { server: server.to_string(), ..cell.client_config() };
    ClientConfig { write: WritePolicy::Behind(behind), retry: Retry::Soft { timeout: PATIENCE }, ..config }
}

// SEMANTICS 52
#[tokio::test(flavor = "multi_thread")]
async fn what_fsync_was_content_with_this_machine_for_is_durable_before_others_see_it() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let is_holding = Arc::<AtomicBool>::default();
    let hold = Arc::clone(&is_holding);
    let look = move |call: &Call| match call {
        Call::Sync { .. } if hold.load(Ordering::SeqCst) => Way::Waits,
        _ => Way::Passes,
    };
    let relay = Relay::before(cell.addr, look).await;
    let cache = tempfile::tempdir().unwrap();
    let max_age = Duration::from_secs(3600);
    let behind = WriteBehind { max_age, fsync: Fsync::Local, ..WriteBehind::default() };
    let mut config = soft(&cell, relay.addr, behind);
    config.cache.dir = Some(cache.path().to_owned());
    let (a, b) = (writer_with(config).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "promised").await;
    is_holding.store(true, Ordering::SeqCst);
    a.fsync(fid).await.unwrap();
    assert_eq!(a.stats().count("fsyncs_local"), 1);
    let reading = tokio::spawn({
        let b = Arc::clone(&b);
        async move { contents(&b, &["f"]).await }
    });
    tokio::time::sleep(LATER).await;
    assert!(!reading.is_finished(), "the server's disk does not have it");
    is_holding.store(false, Ordering::SeqCst);
    relay.let_go();
    assert_eq!(reading.await.unwrap(), "promised");
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_ahead_of_what_is_to_be_told_again() {
    let is_holding = Arc::<AtomicBool>::default();
    let passed = Arc::<Mutex<Vec<&'static str>>>::default();
    let (mut cell, relay, a, medium) = loop {
        let mut cell = Cell::syncing_when_asked();
        let (hold, seen) = (Arc::clone(&is_holding), Arc::clone(&passed));
        let look = move |call: &Call| match call {
            Call::Digest { .. } if hold.load(Ordering::SeqCst) => Way::Waits,
            Call::StatFs { .. } => {
                seen.lock().unwrap().push("a question");
                Way::Passes
            }
            _ => Way::Passes,
        };
        let relay = Relay::before(cell.addr, look).await;
        let behind = WriteBehind { max_age: Duration::from_millis(10), ..WriteBehind::default() };
        let a = writer_with(soft(&cell, relay.addr, behind)).await;
        let medium = cell.medium();
        make(&a, a.root(), "f", "here").await;
        told(&a).await;
        cell.stop();
        // Else the server was asked to make it durable just then.
        if a.session().backlog.not_durable >= 2 {
            break (cell, relay, a, medium);
        }
    };
    is_holding.store(true, Ordering::SeqCst);
    cell.power_cut_since(medium);
    cell.restart();
    assert_eq!(a.statfs().await.unwrap_err().errno, Errno::Io, "operations fail");
    tokio::time::sleep(LATER).await;
    assert_eq!(*passed.lock().unwrap(), [""; 0]);
    is_holding.store(false, Ordering::SeqCst);
    relay.let_go();
    wait_until("the server", || async { a.statfs().await.is_ok() }).await;
    assert_eq!(contents(&cell.client().await, &["f"]).await, "here");
    assert_eq!(a.stats().count("lost_records"), 0);
}
