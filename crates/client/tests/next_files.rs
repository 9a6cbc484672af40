//! Who reads the small files of a directory one after the other does not wait for each of them, and what was fetched ahead is as
//! good as what is asked for.

use crate::common::delayed::{make, mkdir};
use crate::common::far::Far;
use crate::common::*;
use soda_client::{Client, ClientConfig, Consistency, OpenMode};
use soda_types::Fid;
use soda_types::ObjectTerm;
use std::sync::Arc;
use std::time::Duration;

const FILES: usize = 300;
const TRIP: Duration = Duration::from_millis(20);

fn content(number: usize) -> String {
    format!("{number:4096}")
}

/// A directory of files that a client has made which is gone.
async fn filled(cell: &Cell) {
    let client = cell.client().await;
    let dir = mkdir(&client, client.root(), "dir").await;
    for number in 0..FILES {
        make(&client, dir, &format!("{number:04}"), &content(number)).await;
    }
    client.shutdown().await;
}

/// The files, by number, as a client that has cached nothing lists them.
async fn list(client: &Arc<Client>) -> Vec<Fid> {
    let dir = client.lookup(client.root(), &name("dir")).await.unwrap().node.unwrap().fid;
    let open = client.open_dir(dir).await.unwrap();
    let entries = client.read_dir(&open, 0, FILES + 1).await.unwrap();
    assert_eq!(entries.len(), FILES);
    entries.into_iter().map(|entry| entry.fid).collect()
}

async fn read_one(client: &Arc<Client>, fid: Fid) -> String {
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    String::from_utf8(read(client, &file).await.to_vec()).unwrap()
}

async fn assert_reads(client: &Arc<Client>, files: &[Fid], order: impl IntoIterator<Item = usize>) {
    for number in order {
        assert!(read_one(client, files[number]).await == content(number), "file {number}");
    }
}

fn reads(client: &Client) -> u64 {
    client.stats().count("msg_read")
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_that_are_read_in_order_far_away_do_not_take_a_round_trip_each() {
    let cell = Cell::with_term(Duration::from_secs(60));
    filled(&cell).await;
    let far = Far::before(cell.addr, TRIP).await;
    let config = ClientConfig { server: far.addr.to_string(), ..cell.client_config() };
    let client = Client::connect(config, Box::new(soda_client::NoKernel)).await.unwrap();
    let files = list(&client).await;
    let before = far.trips();
    assert_reads(&client, &files, 0..FILES).await;
    let trips = far.trips() - before;
    assert!(trips <= FILES as u64 / 4, "{trips} round trips for {FILES} files");
    assert_eq!(reads(&client), FILES as u64, "each is fetched once");
    let stats = client.stats();
    assert_eq!(stats.count("next_files"), stats.count("next_files_read"), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_in_no_order_or_without_leases_has_nothing_fetched() {
    let cell = Cell::start();
    filled(&cell).await;
    let client = cell.client().await;
    let files = list(&client).await;
    assert_reads(&client, &files, (0..FILES).map(|at| at * 127 % FILES)).await;
    assert_eq!((client.stats().count("next_files"), reads(&client)), (0, FILES as u64));
    let default = cell.client_config();
    for config in [
        ClientConfig { lease_term: Some(ObjectTerm::None), ..default.clone() },
        ClientConfig { consistency: Consistency::Verify, ..default.clone() },
        ClientConfig { consistency: Consistency::Ttl(Duration::from_secs(60)), ..default },
    ] {
        let mode = format!("{:?} {:?}", config.consistency, config.lease_term);
        let client = Client::connect(config, Box::new(soda_client::NoKernel)).await.unwrap();
        let files = list(&client).await;
        assert_reads(&client, &files, 0..50).await;
        assert_eq!(client.stats().count("next_files"), 0, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_fetched_for_nothing_than_was_read() {
    let cell = Cell::start();
    filled(&cell).await;
    let client = cell.client().await;
    let files = list(&client).await;
    // Three or ten in order, then somewhere else.
    for (at, run) in [(0, 3), (100, 10), (60, 3), (200, 10), (30, 3)] {
        assert_reads(&client, &files, at..at + run).await;
    }
    let wasted = client.stats().count("next_files") - client.stats().count("next_files_read");
    assert!(wasted <= 29, "{wasted} for 29 that were read");
    assert!(client.stats().count("next_files_read") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_of_an_order_counts_as_metadata_and_needs_room() {
    let cell = Cell::with_term(Duration::from_secs(60));
    filled(&cell).await;
    for (room, is_enough) in [(1 << 30, true), (2 << 20, false)] {
        let mut config = cell.client_config();
        config.cache.metadata_bytes = room;
        let client = Client::connect(config, Box::new(soda_client::NoKernel)).await.unwrap();
        let files = list(&client).await;
        let before = client.session().metadata_bytes;
        assert_reads(&client, &files, 0..20).await;
        let more = client.session().metadata_bytes.saturating_sub(before);
        assert_eq!(more >= FILES as u64 * 50, is_enough, "{more} bytes more with {room} in all");
        assert_eq!(client.stats().count("next_files") > 0, is_enough, "{room}: {:?}", client.stats());
    }
}

// SEMANTICS 1
#[tokio::test(flavor = "multi_thread")]
async fn what_another_machine_writes_to_a_file_that_was_fetched_ahead_is_seen() {
    let cell = Cell::start();
    filled(&cell).await;
    let (a, b) = (cell.client().await, cell.client().await);
    let files = list(&a).await;
    for round in 0..8 {
        let first = 30 * round;
        assert_reads(&a, &files, first..first + 10).await;
        let next = first + 11;
        assert!(a.stats().count("next_files") > a.stats().count("next_files_read"), "it is ahead");
        let file = b.open(files[next], OpenMode::ReadWrite).await.unwrap();
        // By turns while it is on its way and when it has long been here.
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        write(&b, &file, 0, format!("another {round}")).await;
        let text = read_one(&a, files[next]).await;
        assert!(text.starts_with(&format!("another {round}")), "round {round}: {text:.20}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_little_memory_all_is_read_once_or_twice_at_most() {
    let cell = Cell::start();
    filled(&cell).await;
    for memory_bytes in [0, 6_000, 40_000, 200_000] {
        let mut config = cell.client_config();
        config.cache.memory_bytes = memory_bytes;
        let client = Client::connect(config, Box::new(soda_client::NoKernel)).await.unwrap();
        let files = list(&client).await;
        assert_reads(&client, &files, 0..FILES).await;
        let wasted = client.stats().count("next_files") - client.stats().count("next_files_read");
        assert!(wasted <= FILES as u64 / 10, "{wasted} with {memory_bytes} bytes");
    }
}

/// Prints figures, asserts nothing.
/// `cargo test --release -p soda-client --test main next_files::pace -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn pace_of_cold_small_files() {
    const MANY: usize = 5000;
    let cell = Cell::start();
    let writer = cell.client().await;
    let dir = mkdir(&writer, writer.root(), "many").await;
    for number in 0..MANY {
        make(&writer, dir, &format!("{number:04}"), &content(number)).await;
    }
    let mut writer = Some(writer);
    for (trip, files) in [(20, 1000), (0, MANY)] {
        for round in 0..3 {
            let far = Far::before(cell.addr, Duration::from_millis(trip)).await;
            let server = if trip == 0 { cell.addr } else { far.addr };
            let config = ClientConfig { server: server.to_string(), ..cell.client_config() };
            let client = Client::connect(config, Box::new(soda_client::NoKernel)).await.unwrap();
            let open = client.open_dir(dir).await.unwrap();
            let entries = client.read_dir(&open, 0, MANY).await.unwrap();
            let (began, trips) = (std::time::Instant::now(), far.trips());
            for entry in &entries[..files] {
                client.stat(entry.fid).await.unwrap();
                read_one(&client, entry.fid).await;
            }
            let (took, trips) = (began.elapsed().as_secs_f64(), far.trips() - trips);
            let whose = if writer.is_some() { "just written by another" } else { "quiet" };
            println!(
                "{trip:>3} ms, {whose}, {round}: {files} files {:>7.1} ms, {trips} round trips",
                took * 1e3
            );
            client.shutdown().await;
            if let Some(writer) = writer.take() {
                writer.shutdown().await;
            }
        }
    }
}
