//! Large writes: in the log as small ones are, seen whole, told once; past the log where their writer is ahead of the server.

use super::*;
use crate::common::far::Far;
use soda_client::OpenFile;

const MIB: usize = 1 << 20;

fn block(fill: u8) -> Vec<u8> {
    vec![fill; MIB]
}

async fn made(client: &Arc<Client>, text: &str) -> Arc<OpenFile> {
    let fid = make(client, client.root(), text, "").await;
    client.open(fid, OpenMode::ReadWrite).await.unwrap()
}

async fn all_of(client: &Arc<Client>, text: &str) -> Vec<u8> {
    let file = open(client, text).await;
    let size = client.getattr(file.fid()).await.unwrap().value.size as usize;
    let mut all = Vec::new();
    while all.len() < size {
        all.extend_from_slice(&client.read(&file, all.len() as u64, MIB as u32).await.unwrap().to_bytes());
    }
    all
}

// SEMANTICS 6
#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_a_mebibyte_is_told_later_and_seen_whole() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let file = made(&a, "f").await;
    let before = sent(&a);
    write(&a, &file, 0, block(1)).await;
    assert_eq!(sent(&a), before, "{:?}", a.stats());
    assert!(a.session().backlog.bytes >= MIB as u64);
    for round in 2..10 {
        let seen = all_of(&b, "f").await;
        assert!(seen == block(round - 1), "round {round}: {} bytes", seen.len());
        write(&a, &file, 0, block(round)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_overwritten_before_somebody_asks_travel_once() {
    let cell = Cell::start();
    let far = Far::before(cell.addr, Duration::from_millis(1)).await;
    let a = writer_at(&cell, far.addr).await;
    let file = made(&a, "f").await;
    a.fsync_file(&file).await.unwrap();
    let (digests, stats) = (far.digests(), a.stats());
    for round in 0..40 {
        write(&a, &file, 0, block(round)).await;
    }
    assert_eq!(far.digests(), digests, "nobody has asked");
    a.fsync_file(&file).await.unwrap();
    let grown = |name: &str| a.stats().count(name) - stats.count(name);
    assert_eq!((grown("msg_write"), far.digests() - digests), (0, 1), "{:?}", a.stats());
    assert_eq!((grown("digested"), grown("coalesced")), (40, 39));
    assert!(all_of(&cell.client().await, "f").await == block(39));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_overwrites_more_than_may_wait_waits_and_most_of_it_is_never_told() {
    const ROUNDS: u64 = 200;
    let cell = Cell::start();
    let far = Far::before(cell.addr, Duration::from_millis(1)).await;
    let a = writer_at(&cell, far.addr).await;
    let file = made(&a, "f").await;
    a.fsync_file(&file).await.unwrap();
    let (digests, writes) = (far.digests(), a.stats().count("msg_write"));
    for round in 0..ROUNDS {
        write(&a, &file, 0, block(round as u8)).await;
        let backlog = a.session().backlog;
        assert!(backlog.bytes <= 65 << 20, "{backlog:?}");
    }
    a.fsync_file(&file).await.unwrap();
    let told = far.digests() - digests;
    assert!(told <= ROUNDS / 20, "{told} digests");
    assert_eq!(a.stats().count("msg_write"), writes, "{:?}", a.stats());
    assert!(all_of(&cell.client().await, "f").await == block(ROUNDS as u8 - 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_small_writes_and_truncations_are_told_in_their_order() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let file = made(&a, "f").await;
    let before = sent(&a);
    let mut expected: Vec<u8> = Vec::new();
    let steps: [(usize, Vec<u8>); 6] = [
        (0, block(1)),
        (100, vec![2; 5000]),
        (MIB / 2, block(3)),
        (3 * MIB, block(4)),
        (3 * MIB - 7, vec![5; 14]),
        (10, block(6)),
    ];
    for (number, (offset, data)) in steps.into_iter().enumerate() {
        let end = offset + data.len();
        expected.resize(expected.len().max(end), 0);
        expected[offset..end].copy_from_slice(&data);
        write(&a, &file, offset as u64, data).await;
        if number == 2 {
            let size = 600_000;
            expected.truncate(size);
            let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            a.setattr(file.fid(), set).await.unwrap();
        }
    }
    assert_eq!(sent(&a), before, "{:?}", a.stats());
    assert!(all_of(&a, "f").await == expected, "as it is known here");
    assert!(all_of(&cell.client().await, "f").await == expected);
}

/// Two blocks may wait, and are not told before somebody asks.
async fn writer_of_streams(cell: &Cell) -> Arc<Client> {
    let (max_age, max_bytes) = (Duration::from_secs(3600), 8 << 20);
    let behind = WriteBehind { max_age, max_bytes, digest_bytes: u64::MAX, ..WriteBehind::default() };
    writer_with(ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() }).await
}

/// As Linux hands on what does not begin at a page: in two.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_does_not_wait_for_what_is_left_of_each_write() {
    const BLOCKS: usize = 20;
    let cell = Cell::start();
    let a = writer_of_streams(&cell).await;
    let file = made(&a, "f").await;
    let before = a.stats();
    for number in 0..BLOCKS {
        let (at, rest) = (number * MIB, MIB - 4096);
        write(&a, &file, at as u64, block(number as u8)[..rest].to_vec()).await;
        write(&a, &file, (at + rest) as u64, block(number as u8)[rest..].to_vec()).await;
    }
    let grown = |name: &str| a.stats().count(name) - before.count(name);
    assert!(grown("msg_digest") <= 4, "only what came before it was a stream: {:?}", a.stats());
    let expected: Vec<u8> = (0..BLOCKS).flat_map(|number| block(number as u8)).collect();
    assert!(all_of(&cell.client().await, "f").await == expected);
}

/// Past the log each block would take one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_far_away_does_not_take_a_round_trip_for_each_block() {
    const BLOCKS: usize = 16;
    let cell = Cell::start();
    // So far that it shows on any machine, however busy.
    let far = Far::before(cell.addr, Duration::from_millis(800)).await;
    let (max_bytes, digest_bytes) = (8 << 20, 1 << 20);
    let behind = WriteBehind { max_bytes, digest_bytes, ..WriteBehind::default() };
    let write_policy = WritePolicy::Behind(behind);
    let config = ClientConfig { server: far.addr.to_string(), write: write_policy, ..cell.client_config() };
    let a = writer_with(config).await;
    let file = made(&a, "f").await;
    a.fsync_file(&file).await.unwrap();
    let (trips, before) = (far.trips(), a.stats());
    for number in 0..BLOCKS {
        write(&a, &file, (number * MIB) as u64, block(number as u8)).await;
    }
    a.fsync_file(&file).await.unwrap();
    let grown = |name: &str| a.stats().count(name) - before.count(name);
    assert_eq!(grown("through_large"), 0, "{:?}", a.stats());
    let trips = far.trips() - trips;
    assert!(trips <= BLOCKS as u64 * 2 / 3, "{trips} round trips");
    let expected: Vec<u8> = (0..BLOCKS).flat_map(|number| block(number as u8)).collect();
    assert!(all_of(&cell.client().await, "f").await == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_past_the_log_when_it_is_ahead_of_the_server() {
    const BLOCKS: usize = 10;
    let cell = Cell::start();
    let a = writer_of_streams(&cell).await;
    let file = made(&a, "f").await;
    let before = a.stats();
    for number in 0..BLOCKS {
        write(&a, &file, (number * MIB) as u64, block(number as u8)).await;
        let backlog = a.session().backlog;
        assert!(backlog.bytes <= (2 << 20) + 4096, "{backlog:?}");
    }
    let grown = |name: &str| a.stats().count(name) - before.count(name);
    assert_eq!((grown("here"), grown("through_large")), (2, 8), "{:?}", a.stats());
    let expected: Vec<u8> = (0..BLOCKS).flat_map(|number| block(number as u8)).collect();
    assert!(all_of(&cell.client().await, "f").await == expected);
    let other = made(&a, "other").await;
    let before = a.stats().count("msg_write");
    write(&a, &other, 0, block(1)).await;
    assert_eq!(a.stats().count("msg_write"), before, "no stream yet: {:?}", a.stats());
}
