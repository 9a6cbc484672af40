//! Requests that wait for a disk that does not end take bounded memory, and keep nobody from what can be done without the disk.

use crate::common::gates::*;
use crate::common::teller::*;
use crate::common::*;
use bytes::Bytes;
use soda_protocol::{AdminAnswer, AdminCall, Answer, Call, Failure, Reply, Role, WriteAt};
use soda_server::{Server, ServerConfig};
use soda_types::{Fid, InUse};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;

const MIB: usize = 1 << 20;
/// The least there is.
const LIMIT: usize = 16 * MIB;

fn slow() -> ServerConfig {
    // Nothing is synced but what a digest waits for.
    let mut slow = ServerConfig { sync_interval: Duration::from_secs(3600), ..config(Path::new("unused")) };
    slow.limits.request_bytes = LIMIT as u64;
    slow
}

/// A client with digests that it has sent.
struct Telling {
    teller: Teller,
    directory: Fid,
    /// What it had told before.
    file: Fid,
    told: Vec<Told>,
    answers: Vec<Receiver<(Reply, Bytes)>>,
    made: Vec<Fid>,
}

impl Telling {
    /// A digest with a new file of a MiB, behind those before it.
    async fn begin(&mut self) {
        let name = format!("new{}", self.told.len());
        let (fid, records) = self.teller.file_in(self.directory, &name, &[7; MIB]);
        let told = self.teller.next_behind(self.told.last(), records);
        self.answers.push(told.begin(&self.teller.client).await);
        self.told.push(told);
        self.made.push(fid);
    }

    /// All that were put off come again in their order, as often as they are.
    async fn end(&mut self) {
        for (told, answer) in self.told.drain(..).zip(self.answers.drain(..)) {
            let mut reply = tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0;
            let began = Instant::now();
            while matches!(reply.result, Err(Failure::Busy(_) | Failure::OutOfTurn)) {
                assert!(began.elapsed() < PATIENCE, "{TIMED_OUT}: {reply:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
                reply = self.teller.send(&told).await;
            }
            digested(&reply);
        }
        for fid in &self.made {
            assert!(self.teller.client.read(*fid, 0, MIB as u32).await.unwrap() == vec![7; MIB]);
        }
    }
}

async fn stat(tools: &Connection, what: &str) -> usize {
    let reply = tools.call(None, Call::Admin(AdminCall::Stats), Bytes::new()).await.unwrap().0;
    let Ok(Answer::Admin(AdminAnswer::Stats(stats))) = reply.result else { panic!("{reply:?}") };
    stats.iter().find(|(name, _)| name == what).map(|(_, count)| *count as usize).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_of_many_beside_a_disk_that_does_not_end_take_bounded_memory() {
    const SESSIONS: usize = 12;
    const EACH: usize = 4;
    let (_meta, data, stores) = gated();
    let server = Server::start_on(stores, slow()).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let mut all = Vec::new();
    for (mut teller, directory) in each_in_its_directory(&server, SESSIONS).await {
        let (file, records) = teller.file_in(directory, "file", b"told");
        digested(&teller.tell(records).await);
        all.push(Telling { teller, directory, file, told: vec![], answers: vec![], made: vec![] });
    }
    let other = Client::connect(&server).await;
    until("nothing waits", async || stat(&tools, "request_bytes").await < MIB).await;

    data.syncs.close();
    for _ in 0..EACH {
        for telling in &mut all {
            telling.begin().await;
        }
    }
    // Behind all of that on the same connections.
    for telling in &all {
        assert_eq!(telling.teller.client.ask(Call::Renew).await.result, Ok(Answer::Done));
    }
    let (waiting, turned_away) = (stat(&tools, "request_bytes").await, stat(&tools, "turned_away").await);
    assert!(waiting <= LIMIT, "{waiting} bytes wait, of {}", SESSIONS * EACH * MIB);
    assert!(waiting >= LIMIT / 2, "only {waiting} bytes wait");
    assert!(turned_away >= SESSIONS * EACH - LIMIT / MIB, "{turned_away}");

    // More of those who have much there is not even read, where nothing but data comes.
    let key = all[0].teller.client.key();
    let (beside_it, _) = Connection::open(server.local_addr(), Role::Data(key), drop).await.unwrap();
    let write = Call::Write { fid: all[0].file, at: WriteAt::Offset(0), kill_suid_sgid: false };
    let op = all[0].teller.client.next_op();
    let (_, mut written) = beside_it.send(Some(op), write, Bytes::from(vec![9; MIB])).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(written.try_recv().is_err(), "it was read");

    // Whom others wait for gets on without the disk, and so do they.
    let mut awaited = all.pop().unwrap();
    let look = Call::GetAttr { fid: awaited.directory };
    let (_, looks) = other.connection().send(None, look, Bytes::new()).await;
    let recall = awaited.teller.client.next_recall().await;
    awaited.end().await;
    assert!(data.syncs.waiting() > 0, "the disk is at work");
    awaited.teller.client.answer_recall(&recall, InUse::No).await;
    tokio::time::timeout(PATIENCE, looks).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
    assert!(stat(&tools, "request_bytes").await <= LIMIT);

    data.syncs.open();
    for telling in &mut all {
        telling.end().await;
    }
    tokio::time::timeout(PATIENCE, written).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
    until("nothing waits", async || stat(&tools, "request_bytes").await < MIB).await;
    assert_eq!(stat(&tools, "sessions_fenced").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_disk_keeps_nobody_from_what_goes_without_it() {
    let (_meta, data, stores) = gated();
    let config = slow();
    let sessions = config.threads * 2;
    let server = Server::start_on(stores, config).unwrap();
    let mut all = each_in_its_directory(&server, sessions).await;
    let other = Client::connect(&server).await;
    let mine = other.mkdir(other.root, "mine").await.unwrap().fid;
    data.syncs.close();
    let mut answers = Vec::new();
    for (teller, directory) in &mut all {
        let (_, records) = teller.file_in(*directory, "file", &[1; 300_000]);
        answers.push(teller.next(records).begin(&teller.client).await);
    }
    until("one waits for the disk", async || data.syncs.waiting() > 0).await;
    other.create(mine, "made meanwhile").await.unwrap();
    // Nor what comes behind it on its own connection.
    for (teller, directory) in &all {
        let look = Call::GetAttr { fid: *directory };
        teller.client.ask(look).await.result.unwrap();
    }
    assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()));
    data.syncs.open();
    for answer in answers {
        digested(&tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0);
    }
}
