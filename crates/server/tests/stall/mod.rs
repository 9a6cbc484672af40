//! The store stalls for longer than a term, as slow disks do. Sessions are renewed all the same, answers to recalls are
//! taken, and when the store goes on, everything is done: but for what is under way of a session that has ended meanwhile.

mod ahead;
mod along;
mod journal;

use crate::common::gates::*;
use crate::common::teller::*;
use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Change, Failure, ObjectRef, Role, Standing, WriteAt,
};
use soda_server::{Server, ServerConfig, Stores};
use soda_storage::{MemoryData, MemoryMeta, MetaRead, Table};
use soda_types::{Errno, Fid, FileKind, InUse, Mode, SessionId, SetAttr, Slot};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TERM: Duration = Duration::from_secs(2);
/// More clients than the server has threads, each with a change that is stuck.
const CLIENTS: usize = 8;

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

    meta.gate.close();
    let mut stuck = vec![changed];
    for (client, dir) in &clients {
        stuck.push(client.send_change(create(*dir, "stuck", FileKind::File)).await.1);
    }
    let answered = Instant::now();
    holder.answer_recall(&recall, InUse::No).await;
    until("the answer is taken", async || !holders(&tools, held).await.contains(&holder.key().session)).await;
    assert!(answered.elapsed() < TERM, "TIMED OUT: that took {:?}", answered.elapsed());

    let began = Instant::now();
    while began.elapsed() < TERM * 2 + TERM / 2 {
        for client in clients.iter().map(|(client, _)| &**client).chain([&holder]) {
            let asked = Instant::now();
            assert_eq!(client.ask(Call::Renew).await.result, Ok(Answer::Done));
            assert!(asked.elapsed() < TERM / 2, "TIMED OUT: a renewal took {:?}", asked.elapsed());
        }
        tokio::time::sleep(TERM / 10).await;
    }
    assert!(stuck.iter_mut().all(|answer| answer.try_recv().is_err()), "nothing was committed meanwhile");

    meta.gate.open();
    for answer in stuck {
        let (reply, _) = tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap();
        assert!(reply.result.is_ok(), "{reply:?}");
    }
    assert_eq!(fenced(&tools).await, 0);
}

/// What is asked for most when a disk stalls: whether it does, and whose work is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stalls_keeps_neither_tools_nor_prometheus_from_an_answer() {
    let (meta, _data, stores) = gated();
    let mut config = config(Path::new("unused"));
    // What is free depends on what the volume holds.
    config.quota = Some(1 << 30);
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    let server = Server::start_on(stores, config).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let client = Client::connect(&server).await;
    // What comes with the first one only: numbers that are set aside.
    client.create(client.root, "before").await.unwrap();
    meta.gate.close();
    let (_, stuck) = client.send_change(create(client.root, "file", FileKind::File)).await;
    until("its commit is stuck", async || meta.gate.waiting() > 0).await;
    for _ in 0..16 {
        let page = async {
            let mut stream = TcpStream::connect(server.metrics_addr().unwrap()).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).await.unwrap();
            page
        };
        let page = tokio::time::timeout(PATIENCE, page).await.expect(TIMED_OUT);
        assert!(page.contains("soda_volume_free_bytes "), "{page}");
    }
    let status = tool(&tools, AdminCall::Status).await.unwrap();
    let Answer::Admin(AdminAnswer::Status(status)) = status else { panic!("{status:?}") };
    assert_eq!(status.sessions.len(), 1);
    meta.gate.open();
    assert!(tokio::time::timeout(PATIENCE, stuck).await.expect(TIMED_OUT).unwrap().0.result.is_ok());
}

/// Where a digest is when its session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stuck {
    /// Its data is being written.
    Preparing,
    /// It has arrived, behind an operation on its own connection that is stuck in the store.
    Queued,
    /// For an operation on another connection of its session, which is stuck in the store.
    Waiting,
    /// The transaction has been made.
    Committing,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_whose_session_ends_under_way_is_done_as_a_whole_or_not_at_all() {
    for stuck in [Stuck::Preparing, Stuck::Queued, Stuck::Waiting, Stuck::Committing] {
        let (meta, data, stores) = gated();
        let server = Server::start_on(stores, config(Path::new("unused")).with_term(TERM)).unwrap();
        let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
        let mut teller = Teller::with(Client::connect_keeping_recalls(&server).await).await;
        let other = Client::connect(&server).await;
        let (fid, mut records) = teller.file("file", b"told");
        let (beside, more) = teller.file("beside", b"told");
        records.extend(more);
        digested(&teller.tell(records).await);

        let late = if stuck == Stuck::Preparing { vec![b'x'; 100_000] } else { b"late".to_vec() };
        let write = Change::Write { fid, offset: 0, data: late.clone().into(), kill_suid_sgid: false };
        let (_, mut records) = teller.file("new", b"late");
        records.insert(0, teller.record(write));
        let told = teller.next(records);
        let key = teller.client.key();
        let (beside_it, _) = Connection::open(server.local_addr(), Role::Data(key), drop).await.unwrap();
        if stuck == Stuck::Preparing {
            data.gate.close()
        } else {
            meta.gate.close()
        }
        let in_its_way = match stuck {
            Stuck::Queued => Some(teller.client.connection()),
            Stuck::Waiting => Some(&beside_it),
            Stuck::Preparing | Stuck::Committing => None,
        };
        if let Some(connection) = in_its_way {
            let same = Call::Write { fid, at: WriteAt::Offset(0), kill_suid_sgid: false };
            drop(connection.send(Some(teller.client.next_op()), same, Bytes::from_static(b"told")).await);
            until("an operation is stuck", async || meta.gate.waiting() > 0).await;
        }
        let answer = told.begin(&teller.client).await;
        assert_eq!(
            teller.client.ask(Call::Renew).await.result,
            Ok(Answer::Done),
            "what was sent before has arrived"
        );
        until("the digest is stuck", async || match stuck {
            Stuck::Preparing => data.gate.waiting() > 0,
            Stuck::Queued => true,
            Stuck::Waiting => waits_for(&tools, fid).await > 0,
            Stuck::Committing => meta.gate.waiting() > 0,
        })
        .await;

        // It is silent, and somebody needs what it holds.
        let read = tokio::time::timeout(PATIENCE, other.read(beside, 0, 10)).await.expect(TIMED_OUT);
        assert_eq!(read.unwrap(), b"told"[..], "{stuck:?}");
        assert_eq!(fenced(&tools).await, 1, "{stuck:?}");
        data.gate.open();
        meta.gate.open();
        assert!(answer.await.is_err(), "{stuck:?}: the connection of the fenced session was closed");

        // As a whole or not at all; who looks comes after it.
        let (content, new) =
            (other.read(fid, 0, 1 << 20).await.unwrap(), other.lookup(other.root, "new").await);
        if stuck == Stuck::Committing {
            assert_eq!((&content[..], new.unwrap().is_some()), (&late[..], true));
        } else {
            assert_eq!((&content[..], new.unwrap()), (&b"told"[..], None), "{stuck:?}");
        }
        until("its replies are forgotten", async || replies_of(&*meta, key.session) == 0).await;
        assert_eq!(told.send(&teller.client).await.map(|reply| reply.result), None, "{stuck:?}");
        let next = Client::resume(&server, key).await;
        assert_eq!(next.session.standing, Standing::New);
        // Sent once more it is one of a session that holds nothing.
        let again = told.send(&next).await.unwrap();
        assert_eq!(refused(&again).1, Errno::Stale, "{stuck:?}");
        assert_eq!(other.read(fid, 0, 1 << 20).await.unwrap(), content, "{stuck:?}");
    }
}

/// The first one waits for an operation that is stuck; the others wait for it, and no more of them than belong to one session.
#[tokio::test(flavor = "multi_thread")]
async fn digests_wait_in_line_behind_one_that_waits() {
    let (meta, _data, stores) = gated();
    let server = Server::start_on(stores, config(Path::new("unused"))).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let mut teller = Teller::connect(&server).await;
    let (fid, records) = teller.file("file", b"told");
    digested(&teller.tell(records).await);
    let (beside_it, _) =
        Connection::open(server.local_addr(), Role::Data(teller.client.key()), drop).await.unwrap();
    meta.gate.close();
    let same = Call::Write { fid, at: WriteAt::Offset(0), kill_suid_sgid: false };
    drop(beside_it.send(Some(teller.client.next_op()), same, Bytes::from_static(b"told")).await);
    until("an operation is stuck", async || meta.gate.waiting() > 0).await;

    let mut all: Vec<Told> = Vec::new();
    for number in 0..10u8 {
        let data = vec![b'0' + number].into();
        let write = Change::Write { fid, offset: u64::from(number), data, kill_suid_sgid: false };
        let record = teller.record(write);
        let mut told = teller.next_behind(all.last(), vec![record]);
        // More than the protocol's own, to see the end of the line.
        told.slot = Some(Slot(40 + u16::from(number)));
        told.after = all.last().map(Told::op);
        all.push(told);
    }
    let mut answers = Vec::new();
    answers.push(all[0].begin(&teller.client).await);
    until("the first one waits", async || waits_for(&tools, fid).await > 0).await;
    for told in &all[1..] {
        answers.push(told.begin(&teller.client).await);
    }
    let last = answers.pop().unwrap().await.unwrap().0;
    assert!(matches!(last.result, Err(Failure::Busy(_))), "{last:?}");
    assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()));
    // Sent again over the next connection, they are the same.
    teller.client = Client::resume(&server, teller.client.key()).await;
    let mut again = Vec::new();
    for told in &all[..9] {
        again.push(told.begin(&teller.client).await);
    }
    meta.gate.open();
    for answer in again {
        digested(&tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0);
    }
    digested(&teller.send(&all[9]).await);
    assert_eq!(teller.client.read(fid, 0, 20).await.unwrap(), b"0123456789"[..]);
}

/// The server stops while the store stalls: when the store goes on, what waits in line is let go of, to the last.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_lets_go_of_digests_in_line() {
    let (meta, data, stores) = gated();
    let server = Server::start_on(stores, config(Path::new("unused"))).unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let mut teller = Teller::connect(&server).await;
    let (fid, records) = teller.file("file", b"told");
    digested(&teller.tell(records).await);
    data.gate.close();
    let mut all: Vec<Told> = Vec::new();
    for offset in 0..4 {
        let write = Change::Write { fid, offset, data: vec![b'x'; 100_000].into(), kill_suid_sgid: false };
        let record = teller.record(write);
        all.push(teller.next_behind(all.last(), vec![record]));
    }
    let mut answers = vec![all[0].begin(&teller.client).await];
    until("the first one is stuck", async || data.gate.waiting() > 0).await;
    // The connection that it came on is stuck with it.
    teller.client = Client::resume(&server, teller.client.key()).await;
    for told in &all[1..] {
        answers.push(told.begin(&teller.client).await);
    }
    let behind = teller.client.ask(Call::StatFs { fid }).await;
    assert!(behind.result.is_ok(), "{behind:?}: the others are in line");

    let stopping = tokio::spawn(server.shutdown());
    // It ends with the task that serves it: from then on no task runs, and none is begun.
    let is_served = async || tools.call(None, Call::Admin(AdminCall::Stats), Bytes::new()).await.is_some();
    until("the tasks have ended", async || !is_served().await).await;
    data.gate.open();
    tokio::time::timeout(PATIENCE, stopping).await.expect(TIMED_OUT).unwrap();
    assert_eq!((Arc::strong_count(&meta), Arc::strong_count(&data)), (1, 1));
}

fn replies_of(meta: &dyn MetaRead, session: SessionId) -> usize {
    let (mut count, end) = (0, (session.0 + 1).to_be_bytes());
    let mut visit = |_: &[u8], _| {
        count += 1;
        ControlFlow::Continue(())
    };
    meta.scan(Table::Reply, &session.0.to_be_bytes(), &end, &mut visit).unwrap();
    count
}

async fn waits_for(tools: &Connection, fid: Fid) -> usize {
    match tool(tools, AdminCall::Why(ObjectRef::Fid(fid))).await {
        Ok(Answer::Admin(AdminAnswer::Why(why))) => why.waiting.len(),
        other => panic!("{other:?}"),
    }
}

async fn fenced(tools: &Connection) -> u64 {
    count(tools, "sessions_fenced").await
}

async fn count(tools: &Connection, what: &str) -> u64 {
    let Ok(Answer::Admin(AdminAnswer::Stats(stats))) = tool(tools, AdminCall::Stats).await else { panic!() };
    let counts = stats.iter().filter(|(name, _)| name.ends_with(what));
    counts.map(|(_, count)| count).sum()
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
