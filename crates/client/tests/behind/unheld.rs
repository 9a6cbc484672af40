//! What only one machine knows, and who asks holds no lease on.
//!
//! The same machine: it was cut off for longer than a term, and nobody needed what it holds, so its session goes on. Another one:
//! it wants what it does not hold on the server's disk.

use super::*;

/// A client with untold changes of names whose leases have run out, in a directory that it cannot reach.
struct CutOff {
    cell: Cell,
    proxy: Arc<Proxy>,
    a: Arc<Client>,
    dir: Fid,
    /// Renamed, made, and removed here.
    renamed: Fid,
    made: Fid,
}

async fn cut_off() -> CutOff {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let a = writer_at(&cell, proxy.addr).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let renamed = make(&a, dir, "before", "renamed").await;
    make(&a, dir, "removed", "x").await;
    a.sync_all().await.unwrap();
    a.rename(dir, &name("before"), dir, &name("after"), RenameHow::Plain).await.unwrap();
    a.unlink(dir, &name("removed")).await.unwrap();
    let made = make(&a, dir, "made", "x").await;
    let records = a.session().backlog.records;
    proxy.set(Weather::Cut);
    let held = || a.cached(dir, &name("removed")).is_some();
    wait_until("the end of the lease", || async { !held() }).await;
    assert_eq!(a.session().backlog.records, records, "nothing is told");
    CutOff { cell, proxy, a, dir, renamed, made }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_after_the_lease_has_run_out_does_not_show_names_of_before() {
    let CutOff { cell, proxy, a, dir, renamed, made } = cut_off().await;
    let look_up = |text: &'static str| {
        let a = Arc::clone(&a);
        begun(async move { a.lookup(dir, &name(text)).await.unwrap().node.map(|node| node.fid) })
    };
    let names = [("after", Some(renamed)), ("before", None), ("made", Some(made)), ("removed", None)];
    let mut asked = Vec::new();
    for (text, _) in names {
        asked.push(look_up(text).await);
    }
    proxy.set(Weather::Fine);
    for (found, (text, expected)) in asked.into_iter().zip(names) {
        assert_eq!(found.await.unwrap(), expected, "{text}");
    }
    let b = cell.client().await;
    for (text, expected) in names {
        assert_eq!(find(&a, &["d", text]).await, expected, "{text}");
        assert_eq!(find(&b, &["d", text]).await, expected, "{text}");
    }
    assert_eq!((a.stats().count("lost_records"), a.stats().count("sessions_lost")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_names_after_the_lease_has_run_out_find_what_was_made_here() {
    let CutOff { cell, proxy, a, dir, renamed, .. } = cut_off().await;
    let [first, second, third, fourth] = std::array::from_fn(|_| Arc::clone(&a));
    let unlink = begun(async move { first.unlink(dir, &name("made")).await }).await;
    let (old, new) = (name("after"), name("later"));
    let rename = begun(async move { second.rename(dir, &old, dir, &new, RenameHow::Plain).await }).await;
    let link = begun(async move { third.link(renamed, dir, &name("removed")).await }).await;
    let list = begun(async move {
        let open = fourth.open_dir(dir).await.unwrap();
        fourth.read_dir(&open, 0, 100).await.unwrap()
    })
    .await;
    proxy.set(Weather::Fine);
    unlink.await.unwrap().expect("it is there");
    rename.await.unwrap().expect("it is there");
    link.await.unwrap().expect("the name is free");
    let listed = list.await.unwrap();
    assert!(listed.iter().all(|entry| entry.name != name("before")), "{listed:?}");
    for client in [&a, &cell.client().await] {
        for (text, expected) in [("later", Some(renamed)), ("removed", Some(renamed)), ("made", None)] {
            assert_eq!(find(client, &["d", text]).await, expected, "{text}");
        }
    }
    assert_eq!((a.stats().count("lost_records"), a.stats().count("sessions_lost")), (0, 0));
}

/// Writes until that is done here: the first time may go through, for the lease.
async fn write_here(client: &Arc<Client>, file: &soda_client::OpenFile, data: &'static str) {
    for number in 0.. {
        let before = client.stats().count("here");
        write(client, file, 0, data).await;
        if client.stats().count("here") > before {
            break;
        }
        assert!(number < 100, "{:?}", client.stats());
    }
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn an_fsync_makes_durable_what_another_machine_has_written_and_not_told() {
    let mut cell = Cell::syncing_when_asked();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "before").await;
    a.sync_all().await.unwrap();
    let theirs = b.open(fid, OpenMode::ReadWrite).await.unwrap();
    let mine = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write_here(&a, &mine, "before").await;
    // Only this machine knows.
    write_here(&a, &mine, "after!").await;
    b.fsync_file(&theirs).await.unwrap();
    let medium = cell.medium();
    // Both machines lose their power with the server's.
    drop((mine, theirs));
    cell.power_cut_since(medium);
    drop((a, b));
    cell.restart();
    assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "after!");
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn an_fsync_of_a_directory_makes_names_durable_that_another_machine_has_not_told() {
    let mut cell = Cell::syncing_when_asked();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    let before = a.stats().count("here");
    make(&a, dir, "f", "x").await;
    assert!(a.stats().count("here") > before && a.session().backlog.records > 0);
    b.fsync(dir).await.unwrap();
    let medium = cell.medium();
    cell.power_cut_since(medium);
    drop((a, b));
    cell.restart();
    assert!(find(&cell.client().await, &["d", "f"]).await.is_some());
}
