//! What is done here while others, on this machine or another, work with the same files.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_above_is_not_moved_by_others_before_a_move_here_is_told() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let (l, m) = (mkdir(&a, a.root(), "l").await, mkdir(&a, a.root(), "m").await);
    let (x, y) = (mkdir(&a, l, "x").await, mkdir(&a, m, "y").await);
    let (w, z) = (mkdir(&a, x, "w").await, mkdir(&a, y, "z").await);
    a.sync_all().await.unwrap();
    let before = a.stats().count("here");
    a.rename(l, &name("x"), z, &name("x"), RenameHow::Plain).await.unwrap();
    assert_eq!(a.stats().count("here"), before + 1, "{:?}", a.stats());
    // With x below z, which is below y, this would put y below itself. It touches nothing that the move above did.
    let looped = b.rename(m, &name("y"), w, &name("y"), RenameHow::Plain).await;
    assert_eq!(looped.unwrap_err().errno, Errno::Invalid);
    a.sync_all().await.unwrap();
    assert_eq!(find(&b, &["m", "y", "z", "x", "w"]).await, Some(w));
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_not_given_back_unasked_before_what_they_covered_is_durable() {
    let each = Cell::syncing_when_asked().without_deep_leases();
    let deep = Cell::syncing_when_asked().with_deep_leases();
    // Who reads one reads the others next; of a tree, after a few.
    for (cell, reads) in [(each, 1), (deep, 10)] {
        let (a, b) = (prompt_writer(&cell).await, cell.client().await);
        let dir = mkdir(&a, a.root(), "d").await;
        for number in 0..50 {
            make(&a, dir, &number.to_string(), "x").await;
        }
        told(&a).await;
        for number in 0..reads {
            assert_eq!(contents(&b, &["d", &number.to_string()]).await, "x");
        }
        wait_until("neighbours", || async { a.stats().count("leases_lowered") > 0 }).await;
        assert_eq!(a.session().backlog.not_durable, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_what_is_written_all_the_time_gets_it() {
    let cell = Cell::start();
    let mut config = patient(&cell);
    config.cache.memory_bytes = 1 << 20;
    let a = writer_with(config).await;
    let fid = make(&a, a.root(), "log", "").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    for _ in 0..4 {
        a.write_all(&file, WriteAt::End, vec![b'x'; 1 << 20].into(), KillPriv::Keep).await.unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let (a, done) = (Arc::clone(&a), Arc::clone(&done));
        async move {
            let mut written = 0;
            while !done.load(Ordering::Relaxed) {
                a.write_all(&file, WriteAt::End, "line\n".into(), KillPriv::Keep).await.unwrap();
                written += 1;
                tokio::task::yield_now().await;
            }
            written
        }
    });
    let reader = a.open(fid, OpenMode::Read).await.unwrap();
    for offset in (0..4).map(|block| block << 20) {
        let read = tokio::time::timeout(Duration::from_secs(10), a.read(&reader, offset, 1000)).await;
        assert_eq!(read.expect("it never comes to it").unwrap().to_bytes(), vec![b'x'; 1000]);
    }
    done.store(true, Ordering::Relaxed);
    assert!(writing.await.unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_replaced_here_and_through_at_once_loses_nothing() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let (mine, shared) = (mkdir(&a, a.root(), "mine").await, mkdir(&a, a.root(), "shared").await);
    make(&a, mine, "t", "first").await;
    let replacing = tokio::spawn({
        let a = Arc::clone(&a);
        async move {
            for number in 0..300 {
                let fid = make(&a, mine, "n", "here").await;
                let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
                let moved = a.rename(mine, &name("n"), mine, &name("t"), RenameHow::Plain).await;
                if let Err(error) = moved {
                    assert_eq!(error.errno, Errno::Stale, "{number}");
                    a.unlink(mine, &name("n")).await.unwrap();
                    continue;
                }
                a.write_all(&file, WriteAt::End, "more".into(), KillPriv::Keep).await.unwrap();
            }
        }
    });
    let mut number = 0;
    while !replacing.is_finished() {
        let text = format!("s{number}");
        make(&a, shared, &text, "through").await;
        // Another machine has looked: moves out of it go through.
        find(&b, &["shared", &text]).await;
        let moved = a.rename(shared, &name(&text), mine, &name("t"), RenameHow::Plain).await;
        if let Err(error) = moved {
            assert_eq!(error.errno, Errno::Stale);
        }
        number += 1;
    }
    replacing.await.unwrap();
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
    assert!(find(&b, &["mine", "t"]).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_recall_costs_is_counted() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let f = make(&a, a.root(), "f", "x").await;
    a.sync_all().await.unwrap();
    let before = a.stats();
    let count = |what: &str| a.stats().count(what) - before.count(what);
    // The second name is in a directory that the server does not know, nor what else is in it.
    let e = mkdir(&a, a.root(), "e").await;
    make(&a, e, "other", "y").await;
    a.link(f, e, &name("second")).await.unwrap();
    assert_eq!(count("here"), 4, "{:?}", a.stats());
    assert_eq!(b.getattr(f).await.unwrap().value.nlink, 2);
    let recalls = ["recalls_for_reading", "recalls_flushed", "recall_records", "recall_collateral"];
    assert_eq!(recalls.map(count), [1, 1, 1, 1], "{:?}", a.stats());
    assert!(count("recall_flush_nanos") > 0 && a.stats().count("recall_flush_nanos_max") > 0);
    assert_eq!(a.session().backlog.records, 2, "the other file was not asked for");
    a.fsync(e).await.unwrap();
    assert!(count("fsync_flush_nanos") > 0);
    make(&a, e, "third", "z").await;
    let large = a.open(find(&a, &["e", "third"]).await.unwrap(), OpenMode::ReadWrite).await.unwrap();
    a.write_all(&large, WriteAt::End, vec![1; PAST_THE_LOG].into(), KillPriv::Keep).await.unwrap();
    assert!(count("through_flush_nanos") > 0 && count("through_large") == 1, "{:?}", a.stats());
}

/// As in Strata with leases: who is refused a lease asks again after a while.
#[tokio::test(flavor = "multi_thread")]
async fn two_who_poll_for_a_lease_write_by_turns() {
    let cell = Cell::start();
    let config = ClientConfig { lease_poll: Some(Duration::from_millis(2)), ..patient(&cell) };
    let (a, b) = (writer_with(config.clone()).await, writer_with(config).await);
    let fid = make(&a, a.root(), "log", "").await;
    for turn in 0..40 {
        let writer = [&a, &b][turn % 2];
        let file = writer.open(fid, OpenMode::ReadWrite).await.unwrap();
        assert_eq!(read(writer, &file).await.len(), turn * 5);
        writer.write_all(&file, WriteAt::End, "line\n".into(), KillPriv::Keep).await.unwrap();
    }
    for client in [&a, &b] {
        assert!(client.stats().count("lease_polls") > 0, "{:?}", client.stats());
        assert_eq!(client.stats().count("lost_records"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_polls_gets_the_lease_of_who_is_silent_when_its_term_is_over() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let silent = writer_at(&cell, proxy.addr).await;
    let polling = ClientConfig { lease_poll: Some(Duration::from_millis(10)), ..cell.client_config() };
    let polling = Client::connect(polling, Box::new(NoKernel)).await.unwrap();
    make(&silent, silent.root(), "f", "before").await;
    silent.sync_all().await.unwrap();
    proxy.set(Weather::Cut);
    let file = open(&polling, "f").await;
    polling.write_all(&file, WriteAt::Offset(0), "after!".into(), KillPriv::Keep).await.unwrap();
    assert!(polling.stats().count("lease_polls") > 10, "{:?}", polling.stats());
    proxy.set(Weather::Fine);
    assert_eq!(contents(&silent, &["f"]).await, "after!");
}

/// Whoever looked at the directory is gone, and it is known.
async fn changes_go_here(client: &Arc<Client>, dir: Fid) {
    for number in 0.. {
        let before = client.stats().count("here");
        mkdir(client, dir, &format!("probe{number}")).await;
        if client.stats().count("here") > before {
            return;
        }
        assert!(number < 2000, "{:?}", client.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_does_not_go_into_one_that_was_moved_below_it_untold() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let (p, x) = (mkdir(&a, a.root(), "p").await, mkdir(&a, a.root(), "x").await);
    let (t, s) = (mkdir(&a, p, "t").await, mkdir(&a, x, "s").await);
    let u = mkdir(&a, s, "u").await;
    make(&a, u, "f", "read by both").await;
    assert_eq!(contents(&b, &["x", "s", "u", "f"]).await, "read by both");
    for dir in [x, s, t] {
        changes_go_here(&a, dir).await;
    }
    a.sync_all().await.unwrap();
    let before = a.stats().count("here");
    a.rename(x, &name("s"), t, &name("s"), RenameHow::Plain).await.unwrap();
    assert_eq!(a.stats().count("here"), before + 1);
    // Through, as the other machine reads that directory: the server does not know yet that it lies below.
    let into_itself = a.rename(a.root(), &name("p"), u, &name("p"), RenameHow::Plain).await;
    assert_eq!(into_itself.unwrap_err().errno, Errno::Invalid);
    assert_eq!(contents(&b, &["p", "t", "s", "u", "f"]).await, "read by both");
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_above_both_places_of_a_directory_need_not_be_known_to_move_it() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let top = mkdir(&a, a.root(), "top").await;
    let x = mkdir(&a, top, "x").await;
    let (y, d) = (mkdir(&a, x, "y").await, mkdir(&a, x, "d").await);
    let e = mkdir(&a, d, "e").await;
    a.sync_all().await.unwrap();
    // Another machine changes what is above.
    make(&b, top, "theirs", "x").await;
    let before = a.stats();
    a.rename(x, &name("d"), x, &name("renamed"), RenameHow::Plain).await.unwrap();
    a.rename(x, &name("renamed"), y, &name("moved"), RenameHow::Plain).await.unwrap();
    let grown = |what: &str| a.stats().count(what) - before.count(what);
    assert_eq!((grown("here"), grown("msg_rename")), (2, 0), "{:?}", a.stats());
    let into_itself = a.rename(x, &name("y"), e, &name("y"), RenameHow::Plain).await;
    assert_eq!(into_itself.unwrap_err().errno, Errno::Invalid);
    assert_eq!(find(&b, &["top", "x", "y", "moved", "e"]).await, Some(e));
    assert_eq!(a.stats().count("lost_records"), 0);
}
