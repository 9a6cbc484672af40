//! Delayed writes whose server is far away: digests follow each other without waiting for answers.

use super::*;
use crate::common::far::Far;
use soda_client::OpenFile;
use std::time::Instant;

const PIECE: usize = 128 << 10;
const DIRS: usize = 50;

const FAR: Duration = Duration::from_millis(100);

async fn far_writer(far: &Far, cell: &Cell) -> Arc<Client> {
    let write = WritePolicy::Behind(WriteBehind::default());
    writer_with(ClientConfig { server: far.addr.to_string(), write, ..cell.client_config() }).await
}

/// What was written with [`write_all`] is there.
async fn assert_all(cell: &Cell, bytes: usize) {
    let b = cell.client().await;
    let file = open(&b, "big").await;
    for at in (0..bytes).step_by(1 << 20) {
        let read = b.read(&file, at as u64, 1 << 20).await.unwrap().to_bytes();
        assert!(read == vec![7; 1 << 20], "at {at}");
    }
}

/// One after the other, each digest would take one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_far_away_does_not_take_a_round_trip_for_each_mebibyte() {
    const BYTES: usize = 24 << 20;
    let cell = Cell::start();
    // So far that it shows on any machine, however busy: what a digest takes of the server there makes the window smaller.
    let far = Far::before(cell.addr, Duration::from_millis(800)).await;
    let a = far_writer(&far, &cell).await;
    let file = file(&a, "big", "x").await;
    a.fsync_file(&file).await.unwrap();
    let (trips, digests) = (far.trips(), far.digests());
    write_all(&a, &file, BYTES).await;
    let (trips, digests) = (far.trips() - trips, far.digests() - digests);
    assert!(digests >= 24 && trips <= digests * 2 / 3, "{digests} digests in {trips} round trips");
    assert_all(&cell, BYTES).await;
    assert_eq!(a.stats().count("digests_refused"), 0);
}

/// One does not get to the server, which applies none of those behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_is_refused_takes_those_behind_it_along_and_all_are_told_again() {
    for errno in [Errno::NoSpace, Errno::Io] {
        let cell = Cell::start();
        let far = Far::before(cell.addr, FAR).await;
        let a = far_writer(&far, &cell).await;
        let file = file(&a, "big", "x").await;
        a.fsync_file(&file).await.unwrap();
        far.refuse(6, errno);
        let dir = mkdir(&a, a.root(), "dir0").await;
        let piece = bytes::Bytes::from(vec![7; PIECE]);
        for at in (0..24 << 20).step_by(PIECE) {
            write(&a, &file, at as u64, piece.clone()).await;
            make(&a, dir, &format!("file{}", at / PIECE), "x").await;
        }
        a.sync_all().await.unwrap_or_else(|error| assert_eq!(error.errno, errno));
        told(&a).await;
        a.sync_all().await.unwrap();
        assert!(far.most_open() >= 2, "{}", far.most_open());
        assert!(a.stats().count("digests_refused") > 0, "{:?}", a.stats());
        assert_eq!(a.stats().count("lost_records"), 0);
        assert_all(&cell, 24 << 20).await;
        let b = cell.client().await;
        for number in 0..(24 << 20) / PIECE {
            assert_eq!(contents(&b, &["dir0", &format!("file{number}")]).await, "x");
        }
    }
}

/// It comes again under its number, so those behind it, for which it is not their turn, do, too: given up, a late copy of one of
/// them could still be applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_is_turned_away_comes_again_with_those_behind_it() {
    let cell = Cell::start();
    let far = Far::before(cell.addr, FAR).await;
    let a = far_writer(&far, &cell).await;
    let file = file(&a, "big", "x").await;
    a.fsync_file(&file).await.unwrap();
    far.turn_away(12);
    write_all(&a, &file, 24 << 20).await;
    assert!(far.has_refused() && far.most_open() >= 2, "{}", far.most_open());
    assert_eq!(a.stats().count("busy_waits"), 1);
    assert_eq!((a.stats().count("digests_refused"), a.stats().count("lost_records")), (0, 0));
    assert_all(&cell, 24 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_under_way_when_the_connection_breaks_are_applied_once() {
    let cell = Cell::start();
    let far = Far::before(cell.addr, FAR).await;
    let a = far_writer(&far, &cell).await;
    let file = file(&a, "big", "x").await;
    a.fsync_file(&file).await.unwrap();
    let writing = tokio::spawn({
        let (a, file) = (Arc::clone(&a), Arc::clone(&file));
        async move { write_all(&a, &file, 32 << 20).await }
    });
    for _ in 0..3 {
        wait_until("several digests", || async { far.open() >= 2 || writing.is_finished() }).await;
        far.cut();
    }
    writing.await.unwrap();
    assert!(a.stats().count("reconnects") >= 3);
    assert_eq!((a.stats().count("lost_records"), a.stats().count("sessions_lost")), (0, 0));
    assert_all(&cell, 32 << 20).await;
}

/// It comes back with what it had at first: those that it had applied, and those that were on the way, are told again.
#[tokio::test(flavor = "multi_thread")]
async fn digests_under_way_when_the_power_of_the_server_goes_are_told_again() {
    let mut cell = Cell::syncing_when_asked();
    let far = Far::before(cell.addr, FAR).await;
    let a = far_writer(&far, &cell).await;
    let file = file(&a, "big", "x").await;
    a.fsync_file(&file).await.unwrap();
    let medium = cell.medium();
    let writing = tokio::spawn({
        let (a, file) = (Arc::clone(&a), Arc::clone(&file));
        async move { write_all(&a, &file, 32 << 20).await }
    });
    wait_until("several digests", || async { far.open() >= 2 && far.digests() > 8 }).await;
    cell.power_cut_since(medium);
    cell.restart();
    writing.await.unwrap();
    assert_eq!((a.stats().count("lost_records"), a.stats().count("sessions_lost")), (0, 0));
    assert_all(&cell, 32 << 20).await;
}

/// It is killed after it has applied some of what is under way, and before the answer of that is here: nothing is lost, so nobody
/// may hear that something was.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_fails_nobody_who_waits_for_what_is_under_way() {
    let mut cell = Cell::start();
    let far = Far::before(cell.addr, FAR).await;
    let write = WritePolicy::Behind(WriteBehind { max_bytes: 8 << 20, ..WriteBehind::default() });
    let a = writer_with(ClientConfig { server: far.addr.to_string(), write, ..cell.client_config() }).await;
    let file = file(&a, "big", "x").await;
    a.fsync_file(&file).await.unwrap();
    let writing = tokio::spawn({
        let (a, file) = (Arc::clone(&a), Arc::clone(&file));
        async move { write_all(&a, &file, 48 << 20).await }
    });
    let fsyncing = tokio::spawn({
        let a = Arc::clone(&a);
        async move {
            for number in 0..40 {
                let small = self::file(&a, &format!("small{number}"), "x").await;
                a.fsync_file(&small).await.unwrap();
            }
        }
    });
    for _ in 0..4 {
        wait_until("several digests", || async { far.open() >= 2 || writing.is_finished() }).await;
        far.cut();
        cell.restart();
    }
    writing.await.unwrap();
    fsyncing.await.unwrap();
    assert_eq!((a.stats().count("lost_records"), a.stats().count("sessions_lost")), (0, 0));
    assert_all(&cell, 48 << 20).await;
}

async fn write_all(client: &Arc<Client>, file: &OpenFile, bytes: usize) {
    let piece = bytes::Bytes::from(vec![7; PIECE]);
    for at in (0..bytes).step_by(PIECE) {
        write(client, file, at as u64, piece.clone()).await;
    }
    client.fsync_file(file).await.unwrap();
}

async fn make_many(client: &Arc<Client>, dirs: usize, files: usize) {
    let data = "x".repeat(4096);
    let mut all = Vec::new();
    for number in 0..dirs {
        all.push(mkdir(client, client.root(), &format!("dir{number}")).await);
    }
    for number in 0..files {
        make(client, all[number % dirs], &format!("file{number}"), &data).await;
    }
    client.sync_all().await.unwrap();
}

/// Prints figures, asserts nothing.
/// `cargo test --release -p soda-client --test main behind::far::pace -- --ignored --nocapture --test-threads 1`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn pace_over_a_distance() {
    for trip in [0, 2, 20] {
        for round in 0..3 {
            let cell = Cell::start();
            let far = Far::before(cell.addr, Duration::from_millis(trip)).await;
            let a = far_writer(&far, &cell).await;
            let file = file(&a, "big", "x").await;
            a.fsync_file(&file).await.unwrap();
            let measured = |what: &str, began: Instant, trips: u64, digests: u64| {
                println!(
                    "{trip:>3} ms, {round}: {what:24} {:>6.0} ms, {:>3} round trips, {:>3} digests, {} at once",
                    began.elapsed().as_secs_f64() * 1e3,
                    far.trips() - trips,
                    far.digests() - digests,
                    far.most_open()
                );
            };
            let (began, trips, digests) = (Instant::now(), far.trips(), far.digests());
            write_all(&a, &file, 64 << 20).await;
            measured("64 MiB and fsync", began, trips, digests);
            let (began, trips, digests) = (Instant::now(), far.trips(), far.digests());
            make_many(&a, DIRS, 5000).await;
            measured("5,000 x 4 KiB and sync", began, trips, digests);
            a.shutdown().await;
        }
    }
}
