//! What tools see, and how a server refuses to start.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, BacklogReport, Call, Note, ObjectRef, Rename, Role, Whereabouts,
};
use soda_server::{Exposure, Server, StartError};
use soda_types::{InUse, Mode, SetAttr};
use std::fs;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn ask(admin: &Connection, call: AdminCall) -> AdminAnswer {
    match admin.call(None, Call::Admin(call), Bytes::new()).await.unwrap().0.result {
        Ok(Answer::Admin(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_sessions_leases_and_who_waits_for_whom() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let holder = Client::connect_keeping_recalls(&server).await;
    let home = holder.mkdir(holder.root, "home").await.unwrap().fid;
    let file = holder.create(home, "file").await.unwrap().fid;
    let waiter = Client::connect(&server).await;
    let (_, answer) = waiter.connection().send(None, Call::GetAttr { fid: file }, Bytes::new()).await;
    let recall = holder.next_recall().await;

    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let AdminAnswer::Status(status) = ask(&admin, AdminCall::Status).await else { panic!() };
    assert_eq!((status.sessions.len(), status.waiting, status.leases), (2, 1, 3));
    assert_eq!((status.sessions[0].name.as_str(), status.sessions[0].leases), ("test:/mnt", 3));
    assert_eq!(status.volumes[0].0, "main");

    let path = ObjectRef::Path { volume: "main".to_owned(), names: vec![n("home"), n("file")] };
    let AdminAnswer::Why(why) = ask(&admin, AdminCall::Why(path.clone())).await else { panic!() };
    assert_eq!((why.fid, why.path.as_deref()), (file, Some("/home/file")));
    assert_eq!(why.holders.len(), 1);
    assert_eq!((why.holders[0].session, why.holders[0].grant.mode), (holder.key().session, Mode::Write));
    assert!(why.holders[0].recalled_for.is_some());
    assert_eq!((why.waiting.len(), why.waiting[0].operation.as_str()), (1, "getattr"));
    assert_eq!(why.waiting[0].blocked_by, vec![holder.key().session]);
    assert!(why.waiting[0].at_most.is_some());

    let all = AdminCall::Leases { of: None, limit: 100 };
    let AdminAnswer::Leases(leases) = ask(&admin, all).await else { panic!() };
    let mut paths: Vec<_> = leases.iter().map(|lease| lease.path.clone().unwrap()).collect();
    paths.sort();
    assert_eq!(paths, ["/", "/home", "/home/file"]);
    let one = AdminCall::Leases { of: Some(path), limit: 100 };
    let AdminAnswer::Leases(leases) = ask(&admin, one).await else { panic!() };
    assert_eq!(leases.len(), 1);

    holder.answer_recall(&recall, InUse::No).await;
    assert!(answer.await.unwrap().0.result.is_ok());
    let AdminAnswer::Stats(stats) = ask(&admin, AdminCall::Stats).await else { panic!() };
    let value = |name: &str| stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    assert_eq!(
        (value("calls.create"), value("lease.recalls"), value("sessions")),
        (Some(2), Some(1), Some(2))
    );
    assert_eq!((value("calls.getattr"), value("lease.acks")), (Some(1), Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_told_where_inodes_lie_and_which_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let home = client.mkdir(client.root, "home").await.unwrap().fid;
    let sub = client.mkdir(home, "sub").await.unwrap().fid;
    let mut made = Vec::new();
    for name in ["one", "linked", "gone", "moved"] {
        made.push(client.create(sub, name).await.unwrap().fid);
    }
    let [one, linked, gone, moved] = made[..] else { unreachable!() };
    // With names in two directories neither is known to be its own.
    let again = Call::Link { fid: linked, parent: client.root, name: n("again") };
    client.change(again).await.result.unwrap();
    client.unlink(sub, "gone", InUse::No).await.unwrap();
    let rename = Call::Rename {
        parent: sub,
        name: n("moved"),
        new_parent: client.root,
        new_name: n("here"),
        how: Rename::NoReplace,
    };
    client.change(rename).await.result.unwrap();
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let question = AdminCall::Paths(vec![one, client.root, gone, linked, moved, sub, one]);
    let AdminAnswer::Paths(told) = ask(&admin, question).await else { panic!() };
    let at = |names: &[&str]| Whereabouts::At(names.iter().map(|name| n(name)).collect());
    let file = at(&["home", "sub", "one"]);
    let expected =
        [file.clone(), at(&[]), Whereabouts::Gone, at(&["again"]), at(&["here"]), at(&["home", "sub"]), file];
    assert_eq!(told, expected);
    let many = AdminCall::Paths(vec![one; 1010]);
    let AdminAnswer::Paths(told) = ask(&admin, many).await else { panic!() };
    assert_eq!(told.len(), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_which_files_clients_contend_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let home = one.mkdir(one.root, "home").await.unwrap().fid;
    let (calm, busy) =
        (one.create(home, "calm").await.unwrap().fid, one.create(home, "busy").await.unwrap().fid);
    for _ in 0..20 {
        for client in [&one, &two] {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            client.change(Call::SetAttr { fid: busy, set, owner: None }).await.result.unwrap();
        }
    }
    two.ask(Call::GetAttr { fid: calm }).await.result.unwrap();

    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let AdminAnswer::Busiest(all) = ask(&admin, AdminCall::Busiest { limit: 100 }).await else { panic!() };
    let first = &all[0];
    assert_eq!((first.fid, first.path.as_deref(), first.clients), (busy, Some("/home/busy"), 2), "{all:?}");
    assert!(!first.is_leased && first.writes_per_s > first.reads_per_s, "{all:?}");
    let second = all.iter().find(|object| object.fid == calm).unwrap();
    assert!(second.is_leased && second.writes_per_s < first.writes_per_s, "{all:?}");
    let AdminAnswer::Busiest(one) = ask(&admin, AdminCall::Busiest { limit: 1 }).await else { panic!() };
    assert_eq!(one.len(), 1);
    let question = AdminCall::Writers(vec![calm, busy]);
    let AdminAnswer::Writers(writers) = ask(&admin, question).await else { panic!() };
    assert_eq!(writers, [0, 2], "since there was contention");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_what_each_client_has_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let silent = Client::connect(&server).await;
    let age = Duration::from_secs(5);
    let said = [
        BacklogReport { records: 7, bytes: 700, age },
        BacklogReport { records: 4, bytes: 40, age: age * 2 },
        BacklogReport { records: 3, bytes: 30, age },
    ];
    one.note(Note::Backlog(said[0])).await;
    for report in &said[1..] {
        two.note(Note::Backlog(*report)).await;
    }
    for client in [&one, &two, &silent] {
        assert_eq!(client.ask(Call::Renew).await.result, Ok(Answer::Done));
    }
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let AdminAnswer::Status(status) = ask(&admin, AdminCall::Status).await else { panic!() };
    let shown: Vec<_> =
        status.sessions.iter().map(|session| session.backlog.map(|shown| shown.said)).collect();
    assert_eq!(shown, [Some(said[0]), Some(said[2]), None], "the last of each");
    let AdminAnswer::Stats(stats) = ask(&admin, AdminCall::Stats).await else { panic!() };
    let value = |name: &str| stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value).unwrap();
    assert_eq!((value("backlog_records"), value("backlog_bytes")), (10, 730));
    assert!(value("backlog_oldest_ms") >= 5000, "{}", value("backlog_oldest_ms"));
    // Whatever a client says harms nobody else.
    silent
        .note(Note::Backlog(BacklogReport { records: u64::MAX, bytes: u64::MAX, age: Duration::MAX }))
        .await;
    assert_eq!(silent.ask(Call::Renew).await.result, Ok(Answer::Done));
    let AdminAnswer::Stats(stats) = ask(&admin, AdminCall::Stats).await else { panic!() };
    assert!(stats.contains(&("backlog_records".to_owned(), u64::MAX)), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_gets_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    let server = Server::start(config).unwrap();
    let client = Client::connect(&server).await;
    client.create(client.root, "file").await.unwrap();
    client.sync().await;
    let mut stream = tokio::net::TcpStream::connect(server.metrics_addr().unwrap()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for line in [
        "soda_sessions 1\n",
        "soda_leases 2\n",
        "soda_call_seconds_count{call=\"create\"} 1\n",
        "soda_lease_write_grants_total 2\n",
        "soda_sync_waiters_total 1\n",
        "soda_backlog_records 0\n",
        "soda_backlog_oldest_seconds 0",
    ] {
        assert!(page.contains(line), "{line} is missing in {page}");
    }
    let helps: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .map(|help| help.1)
        .collect();
    let different: std::collections::BTreeSet<&str> = helps.iter().copied().collect();
    assert_eq!(different.len(), helps.len(), "each says what it alone counts: {helps:?}");
    assert!(page.contains("# HELP soda_lease_write_grants_total Write leases given, upgrades"), "{page}");
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    for (name, kind) in types {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        assert!(!name.split('_').any(|word| word == "us" || word == "ms"), "{name}: times are seconds");
    }
    assert!(page.contains("# TYPE soda_lease_longest_wait_seconds gauge\n"), "{page}");
}

#[test]
fn a_server_says_why_it_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut exposed = config(dir.path());
    exposed.listen = "0.0.0.0:0".parse().unwrap();
    let text = Server::start(exposed.clone()).unwrap_err().to_string();
    assert!(text.contains("--insecure") && text.contains("127.0.0.1"), "{text}");
    let mut metrics = config(dir.path());
    metrics.metrics = Some("0.0.0.0:0".parse().unwrap());
    assert!(matches!(Server::start(metrics), Err(StartError::ExposedMetrics(_))));
    let mut elsewhere = config(dir.path());
    elsewhere.volume_terms.insert("home".to_owned(), soda_server::ObjectTerm::None);
    assert!(matches!(Server::start(elsewhere), Err(StartError::NoVolume(name)) if name == "home"));
    exposed.exposure = Exposure::Insecure;
    drop(Server::start(exposed).unwrap());

    let server = start(dir.path());
    let twice = Server::start(config(dir.path())).unwrap_err();
    assert!(matches!(twice, StartError::Storage(_)) && twice.to_string().contains("in use"), "{twice}");

    let other = tempfile::tempdir().unwrap();
    let mut taken = config(other.path());
    taken.listen = server.local_addr();
    let text = Server::start(taken.clone()).unwrap_err().to_string();
    assert!(text.contains("--listen") && text.contains(&server.local_addr().to_string()), "{text}");
    taken.listen = "127.0.0.1:0".parse().unwrap();
    taken.metrics = Some(server.local_addr());
    assert!(matches!(Server::start(taken), Err(StartError::Metrics { .. })));

    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("letter.txt"), "dear reader").unwrap();
    let text = Server::start(config(foreign.path())).unwrap_err().to_string();
    assert!(text.contains("not empty"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_tells_the_clients() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (seen, mut pushes) = tokio::sync::mpsc::unbounded_channel();
    let (connection, _) =
        Connection::open(server.local_addr(), control(None), move |push| drop(seen.send(push)))
            .await
            .unwrap();
    server.shutdown().await;
    assert_eq!(pushes.recv().await, Some(soda_protocol::Push::Stopping));
    assert!(connection.call(None, Call::Renew, Bytes::new()).await.is_none());
    drop(start(dir.path()));
}
