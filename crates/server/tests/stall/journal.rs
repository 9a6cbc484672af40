//! Who waits for the medium, and for whom the journal is enough.

use super::*;

/// Chunks whose data is in the journal, too.
fn in_journal(meta: &MemoryMeta) -> usize {
    let mut found = 0;
    let mut count = |_: &[u8], _| {
        found += 1;
        ControlFlow::Continue(())
    };
    meta.scan(Table::Redo, &[], &[0xff; 17], &mut count).unwrap();
    found
}

/// A digest is in its sync of the medium when somebody begins to wait for what its client holds.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_a_digest_waits_for_the_medium_does_not_wait_for_that() {
    let (meta, data, stores) = gated();
    let slow = ServerConfig { sync_interval: Duration::from_secs(3600), ..config(Path::new("unused")) };
    let server = Server::start_on(stores, slow).unwrap();
    let mut teller = Teller::with(Client::connect_keeping_recalls(&server).await).await;
    let other = Client::connect(&server).await;
    let (_, records) = teller.file("before", &[1; 300_000]);
    digested(&teller.tell(records).await);
    assert_eq!(in_journal(&meta.meta), 0, "the medium has it");

    data.syncs.close();
    let (fid, records) = teller.file("file", &[2; 300_000]);
    let mut answer = teller.next(records).begin(&teller.client).await;
    until("it waits for the medium", async || data.syncs.waiting() > 0).await;
    assert!(answer.try_recv().is_err(), "nobody has asked for anything");
    let (_, waits) =
        other.connection().send(None, Call::GetAttr { fid: other.root }, Default::default()).await;
    let recall = teller.client.next_recall().await;
    let (reply, _) = tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap();
    digested(&reply);
    assert_eq!(data.syncs.waiting(), 1, "the medium is at work");
    assert!(in_journal(&meta.meta) > 0, "a power cut must not take it");
    teller.client.answer_recall(&recall, InUse::No).await;
    tokio::time::timeout(PATIENCE, waits).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
    data.syncs.open();
    assert!(*teller.client.read(fid, 0, 1 << 20).await.unwrap() == [2; 300_000]);
    teller.client.sync().await;
    assert!(in_journal(&meta.meta) > 0, "nobody has waited for the medium");
    let through = other.create(other.root, "through").await.unwrap().fid;
    let write = Call::Write { fid: through, at: WriteAt::Offset(0), kill_suid_sgid: false };
    let op = other.next_op();
    let written = other.connection().call(Some(op), write, vec![3; 100_000].into()).await.unwrap();
    written.0.result.unwrap();
    other.sync().await;
    assert_eq!(in_journal(&meta.meta), 0, "it was needed until then");
}

/// What is little goes into the journal at once, and fsync waits for that alone.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_little_does_not_wait_for_the_medium() {
    let (meta, data, stores) = gated();
    let slow = ServerConfig { sync_interval: Duration::from_secs(3600), ..config(Path::new("unused")) };
    let server = Server::start_on(stores, slow).unwrap();
    let mut teller = Teller::connect(&server).await;
    teller.client.sync().await;
    data.syncs.close();
    for name in ["one", "two"] {
        let (_, records) = teller.file(name, &[1; 100_000]);
        let answer = teller.next(records).begin(&teller.client).await;
        digested(&tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0);
        tokio::time::timeout(PATIENCE, teller.client.sync()).await.expect(TIMED_OUT);
    }
    assert_eq!((in_journal(&meta.meta), data.syncs.waiting()), (2, 0));

    // Data that only the medium will have, of another client: whoever waits then waits for that, too.
    let other = Client::connect(&server).await;
    let file = other.create(other.root, "through").await.unwrap().fid;
    let write = Call::Write { fid: file, at: WriteAt::Offset(0), kill_suid_sgid: false };
    let op = other.next_op();
    let written = other.connection().call(Some(op), write, vec![2; 100_000].into()).await.unwrap();
    written.0.result.unwrap();
    let sync = Call::Sync { fid: teller.client.root, after: None };
    let (_, synced) = teller.client.connection().send(None, sync, Bytes::new()).await;
    until("the medium is waited for", async || data.syncs.waiting() > 0).await;
    data.syncs.open();
    tokio::time::timeout(PATIENCE, synced).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
    assert_eq!(in_journal(&meta.meta), 0);
}

/// What of many sessions is on its way into the journal counts together.
#[tokio::test(flavor = "multi_thread")]
async fn the_journal_takes_no_more_of_many_sessions_at_once_than_of_one() {
    const SESSIONS: usize = 10;
    const LEN: usize = 2 << 20;
    /// So many times that is all that it takes, 16 MiB.
    const MOST: usize = 8;
    let (meta, data, stores) = gated();
    let sync_interval = Duration::from_secs(3600);
    let config = ServerConfig { sync_interval, threads: SESSIONS + 6, ..config(Path::new("unused")) };
    let server = Server::start_on(stores, config).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let mut tellers = Vec::new();
    for (mut teller, dir) in each_in_its_directory(&server, SESSIONS).await {
        let (fid, records) = teller.file_in(dir, "file", &[1; LEN]);
        digested(&teller.tell(records).await);
        tellers.push((teller, dir, fid));
    }
    let other = Client::connect(&server).await;
    data.syncs.close();
    meta.gate.close();
    let (mut answers, mut asked) = (Vec::new(), Vec::new());
    for (teller, dir, fid) in &mut tellers {
        let (_, waits) = other.connection().send(None, Call::GetAttr { fid: *dir }, Bytes::new()).await;
        asked.push((teller.client.next_recall().await, waits));
        // As much as there was: its commit waits for nobody's.
        let data = vec![2; LEN].into();
        let write = teller.record(Change::Write { fid: *fid, offset: 0, data, kill_suid_sgid: false });
        answers.push(teller.next(vec![write]).begin(&teller.client).await);
    }
    until("as many as the journal takes are at the store", async || meta.gate.waiting() >= MOST).await;
    until("the others wait for the medium", async || data.syncs.waiting() > 0).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(meta.gate.waiting(), MOST, "what is on its way counts");
    meta.gate.open();
    let began = Instant::now();
    while answers.len() > SESSIONS - MOST {
        assert!(began.elapsed() < PATIENCE, "{TIMED_OUT}");
        tokio::time::sleep(Duration::from_millis(5)).await;
        answers.retain_mut(|answer| answer.try_recv().map(|(reply, _)| digested(&reply)).is_err());
    }
    assert_eq!(in_journal(&meta.meta), MOST * LEN / (128 << 10));
    data.syncs.open();
    for answer in answers {
        digested(&tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0);
    }
    assert_eq!(count(&tools, "digest_syncs").await as usize, SESSIONS + SESSIONS - MOST);
    for ((teller, ..), (recall, waits)) in tellers.iter().zip(asked) {
        teller.client.answer_recall(&recall, InUse::No).await;
        tokio::time::timeout(PATIENCE, waits).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
    }
}

/// What refers to new data must not become durable with a sync of the journal that began before the data was durable: a digest's
/// is by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_whose_data_the_medium_has_does_not_wait_for_a_sync_of_the_journal() {
    let (meta, _data, stores) = gated();
    let slow = ServerConfig { sync_interval: Duration::from_secs(3600), ..config(Path::new("unused")) };
    let server = Server::start_on(stores, slow).unwrap();
    let mut teller = Teller::with(Client::connect(&server).await).await;
    let other = Client::connect(&server).await;
    meta.syncs.close();
    let sync = Call::Sync { fid: other.root, after: None };
    let (_, mut synced) = other.connection().send(None, sync, Bytes::new()).await;
    until("the journal is synced", async || meta.syncs.waiting() > 0).await;
    let (_, records) = teller.file("file", &[1; 300_000]);
    let answer = teller.next(records).begin(&teller.client).await;
    let (reply, _) = tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap();
    digested(&reply);
    assert!(synced.try_recv().is_err());
    meta.syncs.open();
    tokio::time::timeout(PATIENCE, synced).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
}
