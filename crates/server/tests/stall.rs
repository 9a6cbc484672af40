//! The store stalls for longer than a term, as slow disks do. Sessions are renewed all the same, answers to recalls are
//! taken, and when the store goes on, everything is done.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::*;
use soda_protocol::{AdminAnswer, AdminCall, Answer, Call, Failure, ObjectRef, Role};
use soda_server::{Server, Stores};
use soda_storage::{Batch, MemoryData, MemoryMeta, MetaRead, MetaStore, StorageResult, Table, Visit};
use soda_types::{Fid, FileKind, InUse, Mode, SessionId, SetAttr};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const TERM: Duration = Duration::from_secs(2);
/// More clients than the server has threads, each with a change that is stuck.
const CLIENTS: usize = 8;

/// Metadata whose commits can be held up.
#[derive(Debug, Default)]
struct Gated {
    meta: MemoryMeta,
    gate: (Mutex<Gate>, Condvar),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Gate {
    #[default]
    Open,
    Closed,
}

impl Gated {
    fn set(&self, gate: Gate) {
        *self.gate.0.lock().unwrap() = gate;
        self.gate.1.notify_all();
    }
}

impl MetaRead for Gated {
    fn get(&self, table: Table, key: &[u8]) -> StorageResult<Option<bytes::Bytes>> {
        self.meta.get(table, key)
    }

    fn scan(&self, table: Table, start: &[u8], end: &[u8], visit: Visit<'_>) -> StorageResult<()> {
        self.meta.scan(table, start, end, visit)
    }
}

impl MetaStore for Gated {
    fn commit(&self, batch: Batch) -> StorageResult<()> {
        drop(self.gate.1.wait_while(self.gate.0.lock().unwrap(), |gate| *gate == Gate::Closed).unwrap());
        self.meta.commit(batch)
    }

    fn sync(&self) -> StorageResult<()> {
        self.meta.sync()
    }

    fn origin(&self) -> soda_storage::Origin {
        self.meta.origin()
    }

    fn complete(&self) -> StorageResult<()> {
        self.meta.complete()
    }

    fn snapshot(&self) -> Box<dyn MetaRead> {
        self.meta.snapshot()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stalls_for_longer_than_a_term_costs_nobody_the_session() {
    let meta = Arc::new(Gated::default());
    let stores = Stores { meta: meta.clone(), data: Arc::new(MemoryData::default()), path: "memory".into() };
    let server = Server::start_on(stores, config(Path::new("unused")).with_term(TERM)).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        let client = Client::connect(&server).await;
        let dir = client.mkdir(client.root, &format!("d{index}")).await.unwrap().fid;
        clients.push((Arc::new(client), dir));
    }
    let holder = Client::connect_keeping_recalls(&server).await;
    let (writer, dir) = &clients[1];
    let held = writer.create(*dir, "held").await.unwrap().fid;
    assert_eq!(mode_on(&holder.ask(Call::GetAttr { fid: held }).await.grants, held), Some(Mode::Read));
    // Waits for the holder now, for the store later.
    let (_, changed) =
        writer.send_change(Call::SetAttr { fid: held, set: SetAttr::default(), owner: None }).await;
    let recall = holder.next_recall().await;

    meta.set(Gate::Closed);
    let mut stuck = vec![changed];
    for (client, dir) in &clients {
        stuck.push(client.send_change(create(*dir, "stuck", FileKind::File)).await.1);
    }
    let answered = Instant::now();
    holder.answer_recall(&recall, InUse::No).await;
    until("the answer is taken", async || !holders(&tools, held).await.contains(&holder.key().session)).await;
    assert!(answered.elapsed() < TERM, "that took {:?}", answered.elapsed());

    let began = Instant::now();
    while began.elapsed() < TERM * 2 + TERM / 2 {
        for client in clients.iter().map(|(client, _)| &**client).chain([&holder]) {
            let asked = Instant::now();
            assert_eq!(client.ask(Call::Renew).await.result, Ok(Answer::Done));
            assert!(asked.elapsed() < TERM / 2, "a renewal took {:?}", asked.elapsed());
        }
        tokio::time::sleep(TERM / 10).await;
    }
    assert!(stuck.iter_mut().all(|answer| answer.try_recv().is_err()), "nothing was committed meanwhile");

    meta.set(Gate::Open);
    for answer in stuck {
        let (reply, _) = tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap();
        assert!(reply.result.is_ok(), "{reply:?}");
    }
    let Ok(Answer::Admin(AdminAnswer::Stats(stats))) = tool(&tools, AdminCall::Stats).await else { panic!() };
    let fenced: Vec<_> = stats.iter().filter(|(name, _)| name.ends_with("sessions_fenced")).collect();
    assert_eq!(fenced.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [0]);
}

async fn tool(tools: &Connection, call: AdminCall) -> Result<Answer, Failure> {
    tools.call(None, Call::Admin(call), Default::default()).await.unwrap().0.result
}

async fn holders(tools: &Connection, fid: Fid) -> Vec<SessionId> {
    match tool(tools, AdminCall::Leases { of: Some(ObjectRef::Fid(fid)), limit: 100 }).await {
        Ok(Answer::Admin(AdminAnswer::Leases(leases))) => leases.iter().map(|lease| lease.session).collect(),
        other => panic!("{other:?}"),
    }
}
