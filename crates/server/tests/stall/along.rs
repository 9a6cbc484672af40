//! A sync that is sent along with a digest begins when that is applied, and says so if it is not.

use super::*;

/// More than goes into the journal at once: it waits for the medium.
const MUCH: usize = 300_000;

fn after(told: &Told) -> Call {
    Call::Sync { fid: Fid::default(), after: Some(told.op()) }
}

async fn never_syncing(stores: Stores) -> (soda_server::RunningServer, Connection) {
    let slow = ServerConfig { sync_interval: Duration::from_secs(3600), ..config(Path::new("unused")) };
    let server = Server::start_on(stores, slow).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    (server, tools)
}

type Answered = tokio::sync::oneshot::Receiver<(soda_protocol::Reply, Bytes)>;

async fn along(client: &Client, told: &Told) -> (Answered, Answered) {
    let digest = told.begin(client).await;
    (digest, client.connection().send(None, after(told), Bytes::new()).await.1)
}

async fn result(answer: Answered) -> Result<Answer, Failure> {
    tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0.result
}

/// What was sent before has been looked at.
async fn looked_at(client: &Client) {
    client.ask(Call::StatFs { fid: client.root }).await.result.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_along_with_a_digest_waits_for_it_and_then_for_the_medium() {
    let (meta, data, stores) = gated();
    let (server, tools) = never_syncing(stores).await;
    let mut teller = Teller::connect(&server).await;
    teller.client.sync().await;
    let before = count(&tools, "sync_waiters").await;
    data.syncs.close();
    meta.syncs.close();
    let (_, records) = teller.file("file", &vec![1; MUCH]);
    let told = teller.next(records);
    let (mut digest, mut sync) = along(&teller.client, &told).await;
    until("the digest waits for the medium", async || data.syncs.waiting() > 0).await;
    looked_at(&teller.client).await;
    assert!(digest.try_recv().is_err() && sync.try_recv().is_err());
    data.syncs.open();
    until("the journal is synced", async || meta.syncs.waiting() > 0).await;
    digested(&tokio::time::timeout(PATIENCE, digest).await.expect(TIMED_OUT).unwrap().0);
    assert!(sync.try_recv().is_err());
    meta.syncs.open();
    assert_eq!(result(sync).await, Ok(Answer::Done));
    assert_eq!(count(&tools, "sync_waiters").await, before + 1);

    // Sent again over the next connection, with all answers lost; and after the next start.
    teller.client = Client::resume(&server, teller.client.key()).await;
    let (digest, sync) = along(&teller.client, &told).await;
    assert_eq!(result(sync).await, Ok(Answer::Done));
    result(digest).await.unwrap();
    let key = teller.client.key();
    server.shutdown().await;
    let stores = Stores { meta: meta.clone(), data: data.clone(), path: "memory".into() };
    let (server, _) = never_syncing(stores).await;
    teller.client = Client::resume(&server, key).await;
    assert_eq!(teller.client.ask(after(&told)).await.result, Ok(Answer::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_along_with_a_digest_that_is_not_applied_says_so() {
    let (_meta, data, stores) = gated();
    let (server, tools) = never_syncing(stores).await;
    let mut teller = Teller::connect(&server).await;
    let (_, records) = teller.file("file", b"x");
    let first = teller.next(records);
    digested(&teller.send(&first).await);
    let before = count(&tools, "sync_waiters").await;
    // Refused when it has waited for the medium: there is such a name.
    data.syncs.close();
    let (_, records) = teller.file("file", &vec![1; MUCH]);
    let refused_one = teller.next(records);
    let (digest, mut sync) = along(&teller.client, &refused_one).await;
    until("the digest waits for the medium", async || data.syncs.waiting() > 0).await;
    looked_at(&teller.client).await;
    assert!(sync.try_recv().is_err());
    data.syncs.open();
    let reply = tokio::time::timeout(PATIENCE, digest).await.expect(TIMED_OUT).unwrap().0;
    assert_eq!(refused(&reply).1, Errno::Exists);
    assert_eq!(result(sync).await, Err(Failure::OutOfTurn));
    assert_eq!(teller.client.ask(after(&refused_one)).await.result, Err(Failure::OutOfTurn), "once more");
    // The slot has gone on; it has not come; there is no such slot.
    let (_, records) = teller.file("other", b"x");
    let to_come = teller.next(records);
    for told in [&first, &to_come, &Told { slot: Some(Slot(5000)), ..first.clone() }] {
        assert_eq!(teller.client.ask(after(told)).await.result, Err(Failure::OutOfTurn), "{told:?}");
    }
    assert_eq!(count(&tools, "sync_waiters").await, before, "nothing was synced for any of them");
    let (digest, sync) = along(&teller.client, &to_come).await;
    result(digest).await.unwrap();
    assert_eq!(result(sync).await, Ok(Answer::Done));
}

/// The first digest waits for the medium, the others for it, and the last is turned away.
#[tokio::test(flavor = "multi_thread")]
async fn syncs_wait_for_digests_in_line_and_for_none_that_is_turned_away() {
    let (_meta, data, stores) = gated();
    let (server, _tools) = never_syncing(stores).await;
    let mut teller = Teller::connect(&server).await;
    data.syncs.close();
    let mut all: Vec<Told> = Vec::new();
    let mut answers = Vec::new();
    for number in 0..10u16 {
        let data = if number == 0 { vec![1; MUCH] } else { vec![1] };
        let (_, records) = teller.file(&format!("file{number}"), &data);
        let told = teller.next_behind(all.last(), records);
        // More than the protocol's own, to see the end of the line.
        let slot = Some(Slot(40 + number));
        let told = Told { slot, after: all.last().map(Told::op), ..told };
        answers.push(along(&teller.client, &told).await);
        all.push(told);
    }
    let (digest, sync) = answers.pop().unwrap();
    assert!(matches!(result(digest).await, Err(Failure::Busy(_))));
    assert_eq!(result(sync).await, Err(Failure::OutOfTurn));
    assert!(answers.iter_mut().all(|(digest, sync)| digest.try_recv().is_err() && sync.try_recv().is_err()));
    // Sent again over the next connection, they are the same.
    teller.client = Client::resume(&server, teller.client.key()).await;
    let mut again = Vec::new();
    for told in &all[..9] {
        again.push(along(&teller.client, told).await);
    }
    looked_at(&teller.client).await;
    assert!(again.iter_mut().all(|(digest, sync)| digest.try_recv().is_err() && sync.try_recv().is_err()));
    data.syncs.open();
    for (digest, sync) in again {
        result(digest).await.unwrap();
        assert_eq!(result(sync).await, Ok(Answer::Done));
    }
    let (digest, sync) = along(&teller.client, &all[9]).await;
    result(digest).await.unwrap();
    assert_eq!(result(sync).await, Ok(Answer::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_lets_go_of_syncs_that_wait_for_digests() {
    let (meta, data, stores) = gated();
    let (server, tools) = never_syncing(stores).await;
    let mut teller = Teller::connect(&server).await;
    data.syncs.close();
    let mut all: Vec<Told> = Vec::new();
    for number in 0..3 {
        let (_, records) = teller.file(&format!("file{number}"), &vec![1; MUCH]);
        let told = teller.next_behind(all.last(), records);
        drop(along(&teller.client, &told).await);
        all.push(told);
    }
    until("the first one waits for the medium", async || data.syncs.waiting() > 0).await;
    looked_at(&teller.client).await;
    let stopping = tokio::spawn(server.shutdown());
    let is_served = async || tools.call(None, Call::Admin(AdminCall::Stats), Bytes::new()).await.is_some();
    until("the tasks have ended", async || !is_served().await).await;
    data.syncs.open();
    tokio::time::timeout(PATIENCE, stopping).await.expect(TIMED_OUT).unwrap();
    assert_eq!((Arc::strong_count(&meta), Arc::strong_count(&data)), (1, 1));
}
