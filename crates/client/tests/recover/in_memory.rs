//! Clients whose log is in memory only: what they lose is kept at the moment of the loss.

use super::*;
use crate::common::proxy::{Proxy, Weather};
use soda_client::ClientConfig;
use soda_client::recover::LogState;
use soda_types::Fid;
use std::path::Path;

/// Nothing is told before somebody asks; what is lost is kept in `dir`.
fn logging_in_memory(cell: &Cell, proxy: &Proxy, dir: &Path) -> ClientConfig {
    let mut config = caching(cell, proxy.addr, dir);
    config.keep_lost_in = config.cache.dir.take();
    config
}

/// A client that is cut off with a change of `f`, which is `after!` with it, another one of the attributes of `g`, and a new
/// file `h` in `d`.
struct CutOff {
    cell: Cell,
    proxy: Arc<Proxy>,
    a: Arc<Client>,
    b: Arc<Client>,
    fid: Fid,
    state: TempDir,
}

async fn cut_off(keep_in: impl FnOnce(&Path) -> std::path::PathBuf) -> CutOff {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let state = tempfile::tempdir().unwrap();
    let config = logging_in_memory(&cell, &proxy, &keep_in(state.path()));
    let (a, b) = (writer_with(&cell, config).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "before").await;
    let other = make(&a, a.root(), "g", "before").await;
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "after!").await;
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    a.setattr(other, set).await.unwrap();
    make(&a, dir, "h", "made").await;
    proxy.set(Weather::Cut);
    CutOff { cell, proxy, a, b, fid, state }
}

impl CutOff {
    /// Somebody else needs the files: the session ends.
    async fn lose(&self) {
        assert_eq!(contents(&self.b, &["f"]).await, "before");
        self.proxy.set(Weather::Fine);
        wait_until("loss", || async { self.a.stats().count("lost_records") > 0 }).await;
        assert_eq!(self.a.fsync(self.fid).await.unwrap_err().errno, Errno::Io);
    }
}

async fn kept(client: &Arc<Client>, dir: &Path) -> KeptLog {
    wait_until("what is lost is kept", || async { client.stats().count("kept_logs") > 0 }).await;
    let [log] = &recover::list(dir).unwrap()[..] else { panic!("{:?}", recover::list(dir)) };
    log.clone()
}

// SEMANTICS 51
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_log_on_a_disk_that_is_fenced_alive_keeps_what_it_loses() {
    let cut = cut_off(Path::to_owned).await;
    cut.lose().await;
    let CutOff { cell, a, b, state, .. } = cut;
    let log = kept(&a, state.path()).await;
    assert!(log.why.starts_with("the session has ended: ") && log.why.contains("its term"), "{}", log.why);
    assert_eq!((log.state, log.records as u64), (LogState::Kept, a.stats().count("lost_records")));
    assert_eq!((log.server, log.volume), (a.session().server, cell.client_config().volume));
    let log = recover::list(state.path()).unwrap().remove(0);
    let shown: Vec<(String, String)> =
        log.show().unwrap().into_iter().map(|record| (record.operation, record.detail)).collect();
    assert!(shown.contains(&("write".to_owned(), "6 bytes at 0".to_owned())), "{shown:?}");
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::Io, "of the others, too");
    // The next session goes on beside it.
    warm_up(&a, cell.addr).await;
    make(&a, a.root(), "later", "on").await;
    let report = log.apply(&b, |_| ()).await.unwrap();
    assert!(report.iter().all(|applied| applied.outcome == Outcome::Done), "{report:#?}");
    for client in [&a, &b] {
        assert_eq!(contents(client, &["f"]).await, "after!");
        assert_eq!(perm(client, "g").await, 0o600);
        assert_eq!(contents(client, &["d", "h"]).await, "made");
        assert_eq!(contents(client, &["later"]).await, "on");
    }
    assert_eq!(recover::list(state.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_has_changed_since_is_told_from_what_he_has_not() {
    let cut = cut_off(Path::to_owned).await;
    cut.lose().await;
    let CutOff { a, b, state, .. } = cut;
    let log = kept(&a, state.path()).await;
    make(&b, b.root(), "f", "theirs").await;
    let report = log.apply(&b, |_| ()).await.unwrap();
    let failed: Vec<_> = report.iter().filter(|applied| !applied.outcome.is_done()).collect();
    let [one] = failed[..] else { panic!("{report:#?}") };
    assert!(matches!(one.outcome, Outcome::Conflict(_)) && one.record.operation == "write", "{one:#?}");
    assert_eq!(contents(&a, &["f"]).await, "theirs");
    assert_eq!(contents(&a, &["d", "h"]).await, "made");
    let [log] = &recover::list(state.path()).unwrap()[..] else { panic!("it stays") };
    assert_eq!(log.records, 1);
    log.remove().unwrap();
    assert_eq!(recover::list(state.path()).unwrap(), []);
}

/// The digest was applied, and the client never hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_in_a_digest_of_doubtful_fate_is_kept_and_has_been_done_already() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let state = tempfile::tempdir().unwrap();
    let a = writer_with(&cell, logging_in_memory(&cell, &proxy, state.path())).await;
    let fid = make(&a, a.root(), "f", "before").await;
    a.sync_all().await.unwrap();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "after!").await;
    let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    a.setattr(fid, mode).await.unwrap();
    proxy.set(Weather::RepliesLost);
    let telling = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.sync_all().await }
    });
    let held_back = proxy.held_back();
    wait_until("an answer", || async { proxy.held_back() > held_back }).await;
    // Not in a digest yet.
    write(&a, &file, 6, " more").await;
    proxy.set(Weather::Cut);
    let b = cell.client().await;
    // It needs the file.
    make(&b, b.root(), "g", "mine").await;
    wait_until("the digest", || async { contents(&b, &["f"]).await == "after!" }).await;
    proxy.set(Weather::Fine);
    assert_eq!(telling.await.unwrap().unwrap_err().errno, Errno::Io);
    let log = kept(&a, state.path()).await;
    assert_eq!(log.records, 3);
    let report = log.apply(&b, |_| ()).await.unwrap();
    let outcomes: Vec<&Outcome> = report.iter().map(|applied| &applied.outcome).collect();
    assert_eq!(outcomes, [&Outcome::Already, &Outcome::Already, &Outcome::Done], "{report:#?}");
    assert_eq!(contents(&a, &["f"]).await, "after! more");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_gone_and_said_to_be_lost() {
    let not_a_directory = |state: &Path| {
        std::fs::write(state.join("file"), "x").unwrap();
        state.join("file/below")
    };
    let cut = cut_off(not_a_directory).await;
    cut.lose().await;
    // The end waits for what is being written.
    assert!(cut.a.shutdown().await.lost == 0);
    assert_eq!(cut.a.stats().count("kept_logs"), 0);
}

/// What a client loses at its end, and has just lost, is kept when it has ended.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_client_without_its_server_keeps_what_it_loses() {
    let CutOff { cell: _cell, a, b, proxy, state, .. } = cut_off(Path::to_owned).await;
    let lost = a.shutdown_unless(std::future::ready(())).await.lost;
    proxy.set(Weather::Fine);
    let [log] = &recover::list(state.path()).unwrap()[..] else { panic!() };
    assert!(lost > 0 && log.records as u64 == lost);
    let report = log.apply(&b, |_| ()).await.unwrap();
    assert!(report.iter().all(|applied| applied.outcome == Outcome::Done), "{report:#?}");
    assert_eq!(contents(&b, &["f"]).await, "after!");
    assert_eq!(contents(&b, &["d", "h"]).await, "made");

    let cut = cut_off(Path::to_owned).await;
    cut.lose().await;
    cut.a.shutdown().await;
    assert_eq!(recover::list(cut.state.path()).unwrap().len(), 1, "it was under way");
}
