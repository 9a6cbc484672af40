//! Digests without an answer that a killed client leaves: whether the server has applied them its successor cannot know.

use crate::common::delayed::*;
use crate::common::far::Far;
use crate::common::proxy::{Proxy, Weather};
use crate::common::script::{Peer, pipes};
use crate::common::*;
use crate::replay::{kept, only_log, work};
use soda_client::{BootClock, Client, NoKernel};
use soda_oplog::segments;
use soda_protocol::{Answer, Call, Failure, Standing};
use std::sync::Arc;
use std::time::Duration;

/// Some of them are on the way for as long as the one who sent them has been dead.
#[tokio::test(flavor = "multi_thread")]
async fn digests_that_a_killed_client_had_under_way_are_done_once_and_in_order() {
    const BYTES: usize = 24 << 20;
    for restarts in [0, 1] {
        let mut cell = Cell::start();
        let far = Far::before(cell.addr, Duration::from_millis(100)).await;
        let victim = Victim::start_at(&cell, far.addr).await;
        victim
            .run(|client| async move {
                let file = file(&client, "big", "x").await;
                for number in 0..=255u8 {
                    for at in (0..BYTES as u64 / 256).step_by(32 << 10) {
                        let data = vec![number; 32 << 10];
                        write(&client, &file, u64::from(number) * (BYTES as u64 / 256) + at, data).await;
                    }
                }
            })
            .await;
        wait_until("several digests", || async { far.open() >= 2 }).await;
        let cache = victim.kill();
        let found = segments::read(&only_log(cache.path())).unwrap().unwrap();
        assert!(found.sent.len() >= 2, "{}", found.sent.len());
        for _ in 0..restarts {
            cell.restart();
        }
        let a = Client::connect(caching(&cell, far.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
        assert!(kept(cache.path()).is_empty());
        let b = cell.client().await;
        let file = open(&b, "big").await;
        for number in 0..=255u8 {
            let (at, len) = (usize::from(number) * (BYTES / 256), BYTES / 256);
            let read = b.read(&file, at as u64, len as u32).await.unwrap().to_bytes();
            assert!(read == vec![number; len], "{number}");
        }
        assert!(a.stats().count("replayed") > 0);
    }
}

/// Its store has the answer to the digest that is in doubt, which says nothing of what the answer was.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refused_just_before_it_started_anew_is_not_taken_for_done() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let victim = Victim::start_at(&cell, proxy.addr).await;
    victim.run(|client| async move { work(&client).await }).await;
    proxy.set(Weather::RepliesLost);
    let client = Arc::clone(&victim.client);
    let syncing = victim.runtime.spawn(async move { client.sync_all().await });
    wait_until("a digest", || async { victim.client.session().waiting > 0 }).await;
    let cache = victim.kill();
    drop(syncing);
    let found = segments::read(&only_log(cache.path())).unwrap().unwrap();
    let op = found.sent[0].op;
    let (transport, mut connections) = pipes();
    let config = caching(&cell, proxy.addr, cache.path());
    let next = tokio::spawn(async move {
        Client::connect_with(config, Box::new(NoKernel), Arc::new(BootClock), transport).await
    });
    let mut control = Peer(connections.recv().await.unwrap());
    control.welcome(Standing::Reclaim, &[(op.slot.0, op.sequence.0)]).await;
    let mut refused = false;
    loop {
        let (tag, request) = control.request().await;
        match request.call {
            Call::Reclaim(reclaim) => {
                let leases = reclaim.leases.iter().map(|(grant, _)| Some(*grant)).collect();
                control.answer(tag, Answer::Reclaimed { leases, refused_locks: Vec::new() }, &[]).await;
            }
            Call::Digest { records, .. } => {
                assert_eq!(request.op, Some(op), "the same again");
                let error = soda_types::Errno::Exists.into();
                control.fail(tag, Failure::Digest { lsn: records[0].lsn, error }).await;
                refused = true;
            }
            Call::Goodbye => {
                control.answer(tag, Answer::Done, &[]).await;
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused);
    wait_until("it is kept", || async { kept(cache.path()).len() == 1 }).await;
    next.abort();
}
