//! The server loses what was applied and not durable, while operations go through to it.

use super::*;
use soda_client::recover;
use tempfile::TempDir;

/// A server that loses what it was told since, and a client that has told it something. Clients have the server sync every
/// two seconds: then it starts over.
struct Cut {
    cell: Cell,
    a: Arc<Client>,
    dir: Fid,
    fid: Fid,
    medium: TempDir,
    /// Where what the client loses is kept.
    kept: TempDir,
}

async fn a_file_that_may_be_lost() -> Cut {
    let cell = Cell::syncing_when_asked();
    let kept = tempfile::tempdir().unwrap();
    let config = ClientConfig { keep_lost_in: Some(kept.path().to_owned()), ..prompt(&cell) };
    let a = writer_with(config).await;
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    let medium = cell.medium();
    let fid = make(&a, dir, "f", "here").await;
    told(&a).await;
    Cut { cell, a, dir, fid, medium, kept }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_power_cut_took_is_told_again_before_anything_else() {
    let Cut { mut cell, a, fid, medium, .. } = loop {
        let mut cut = a_file_that_may_be_lost().await;
        cut.cell.stop();
        if cut.a.session().backlog.not_durable >= 2 {
            break cut;
        }
    };
    // Through: it waits for the server.
    let large = vec![b'x'; 5000];
    let change = tokio::spawn({
        let (a, large) = (Arc::clone(&a), large.clone());
        async move { a.setxattr(fid, b"user.large", &large, SetXattr::Either, KillPriv::Keep).await }
    });
    wait_until("a change", || async { a.session().waiting > 0 }).await;
    cell.power_cut_since(medium);
    cell.restart();
    change.await.unwrap().expect("the server knows the file again before it is changed");
    let b = cell.client().await;
    assert_eq!(contents(&b, &["d", "f"]).await, "here");
    assert_eq!(b.getxattr(fid, b"user.large").await.unwrap(), large);
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_what_went_through_and_was_lost() {
    let (mut cut, file) = loop {
        let mut cut = a_file_that_may_be_lost().await;
        let a = &cut.a;
        let file = a.open(cut.fid, OpenMode::ReadWrite).await.unwrap();
        // Through, after records of the same inodes: more than so many attributes are the server's.
        let large = vec![b'y'; 60_000];
        for text in ["user.1", "user.2", "user.3", "user.4", "user.large"] {
            a.setxattr(cut.dir, text.as_bytes(), &large, SetXattr::Either, KillPriv::Keep).await.unwrap();
        }
        write(a, &file, 0, "x".repeat(PAST_THE_LOG)).await;
        cut.cell.stop();
        let session = a.session();
        if session.backlog.not_durable >= 2 && session.unsynced >= 2 {
            break (cut, file);
        }
    };
    let (a, dir, fid) = (Arc::clone(&cut.a), cut.dir, cut.fid);
    // On top of that; and beside it.
    write(&a, &file, 2, "on top").await;
    make(&a, dir, "g", "in the same directory").await;
    cut.cell.power_cut_since(cut.medium);
    cut.cell.restart();
    let b = cut.cell.client().await;
    // Until it has heard of the server again it goes on with what its leases say.
    for client in [&b, &a] {
        assert_eq!(find(client, &["d", "f"]).await, Some(fid));
        assert_eq!(client.getattr(fid).await.unwrap().value.size, 4);
        assert_eq!(contents(client, &["d", "f"]).await, "here");
        let large = client.getxattr(dir, b"user.large").await;
        assert_eq!(large.unwrap_err().errno, Errno::NoData);
        assert_eq!(contents(client, &["d", "g"]).await, "in the same directory");
    }
    assert_eq!(a.fsync(fid).await.unwrap_err().errno, Errno::Io, "it is said");
    a.fsync(fid).await.expect("once");
    assert_eq!(a.stats().count("lost_records"), 1, "what was written on top");
    wait_until("it is kept", || async { a.stats().count("kept_logs") == 1 }).await;
    let [log] = &recover::list(cut.kept.path()).unwrap()[..] else { panic!() };
    let shown = log.show().unwrap();
    assert_eq!((shown.len(), shown[0].detail.as_str()), (1, "6 bytes at 2"));
    assert!(log.why.contains("in a power cut"), "{}", log.why);
    // Behind that the client goes on in the same session.
    assert_eq!(a.stats().count("sessions_lost"), 0);
}

/// The same of what is on its way to the server when that dies: it comes again only with what it was done on top of.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_on_its_way_is_done_without_what_was_lost_before_it() {
    let (mut cut, file) = loop {
        let mut cut = a_file_that_may_be_lost().await;
        let a = &cut.a;
        let file = a.open(cut.fid, OpenMode::ReadWrite).await.unwrap();
        a.sync_all().await.unwrap();
        cut.medium = cut.cell.medium();
        write(a, &file, 0, "x".repeat(PAST_THE_LOG)).await;
        cut.cell.stop();
        if a.session().unsynced >= 1 {
            break (cut, file);
        }
    };
    let (a, fid) = (Arc::clone(&cut.a), cut.fid);
    write(&a, &file, 2, "on top").await;
    let told = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.sync_all().await }
    });
    wait_until("a digest", || async { a.session().waiting > 0 }).await;
    cut.cell.power_cut_since(cut.medium);
    cut.cell.restart();
    let b = cut.cell.client().await;
    let _ = told.await.unwrap();
    assert_eq!(contents(&b, &["d", "f"]).await, "here");
    assert_eq!(contents(&a, &["d", "f"]).await, "here");
    assert_eq!(a.fsync(fid).await.unwrap_err().errno, Errno::Io, "it is said");
    assert_eq!(a.stats().count("lost_records"), 1, "what was written on top");
}

/// Such as `soda sync`, which asks for no file.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_all_synced_hears_once_that_something_was_lost() {
    let mut cell = Cell::syncing_when_asked();
    let a = cell.client().await;
    let f = file(&a, "f", "before").await;
    a.sync_all().await.unwrap();
    let medium = cell.medium();
    write(&a, &f, 0, "after!").await;
    cell.power_cut_since(medium);
    cell.restart();
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::Io);
    a.sync_all().await.expect("once");
    assert_eq!(a.fsync_file(&f).await.unwrap_err().errno, Errno::Io, "and who has the file open");
}

/// What was removed under its lease is there again at the server, and nobody holds a lease on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_a_power_cut_took_is_told_again() {
    let (mut cell, a, medium) = loop {
        let mut cell = Cell::syncing_when_asked();
        let a = prompt_writer(&cell).await;
        let dir = mkdir(&a, a.root(), "d").await;
        let file = make(&a, dir, "f", "before").await;
        a.sync_all().await.unwrap();
        a.fsync(file).await.unwrap();
        let medium = cell.medium();
        let open = a.open(file, OpenMode::ReadWrite).await.unwrap();
        write(&a, &open, 0, "after").await;
        drop(open);
        told(&a).await;
        make(&a, dir, "g", "beside").await;
        a.unlink(dir, &name("f")).await.unwrap();
        told(&a).await;
        cell.stop();
        if a.session().backlog.not_durable >= 4 {
            break (cell, a, medium);
        }
    };
    cell.power_cut_since(medium);
    cell.restart();
    let b = cell.client().await;
    assert_eq!(contents(&b, &["d", "g"]).await, "beside");
    assert_eq!(find(&b, &["d", "f"]).await, None);
    assert_eq!(a.stats().count("lost_records"), 0);
}
