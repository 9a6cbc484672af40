//! What an administrator can choose, and what the server decides by itself: terms of leases, whether they pay, caches.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, LeaseWait, ObjectRef, Reclaim, ReclaimStep, Reply, Role, Standing,
    WriteAt,
};
use soda_server::{CacheSizes, ObjectTerm, RunningServer, Server};
use soda_types::{Errno, Fid, FileKind, InUse, Mode, Scope, Term};
use std::time::{Duration, Instant};

async fn admin(server: &RunningServer, call: AdminCall) -> AdminAnswer {
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    match admin.call(None, Call::Admin(call), Bytes::new()).await.unwrap().0.result {
        Ok(Answer::Admin(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

async fn policy_of(server: &RunningServer, fid: Fid) -> String {
    match admin(server, AdminCall::Why(ObjectRef::Fid(fid))).await {
        AdminAnswer::Why(why) => why.policy,
        other => panic!("{other:?}"),
    }
}

async fn stat(server: &RunningServer, name: &str) -> u64 {
    let AdminAnswer::Stats(stats) = admin(server, AdminCall::Stats).await else { panic!() };
    stats.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
}

async fn getattr(client: &Client, fid: Fid) -> Reply {
    client.ask(Call::GetAttr { fid }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn with_term_zero_nothing_is_leased_and_nobody_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.volume_terms.insert("main".to_owned(), ObjectTerm::None);
    let server = Server::start(config).unwrap();
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let reply = one.change(create(one.root, "file", FileKind::File)).await;
    assert_eq!(reply.grants, []);
    let file = node(reply).unwrap().fid;
    assert_eq!(getattr(&two, file).await.grants, []);
    one.write(file, WriteAt::Offset(0), b"data").await.unwrap();
    assert_eq!(two.read(file, 0, 10).await.unwrap(), "data");
    assert_eq!(stat(&server, "lease.recalls").await, 0);
    assert!(policy_of(&server, file).await.contains("term is 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_the_term_that_it_asked_for_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let term = Duration::from_secs(3);
    let asking = |resume, term| {
        let Role::Control { client, name, volume, .. } = control(resume) else { unreachable!() };
        Role::Control {
            client,
            name,
            volume,
            resume,
            lease_term: Some(term),
            widest_lease: Scope::Node,
            lease_wait: LeaseWait::Notified,
        }
    };
    let server = start(dir.path());
    let address = server.local_addr();
    let own = asking(None, ObjectTerm::For(term));
    let own = Client::connect_as(address, own, Recalls::Answer).await.unwrap();
    let none = Client::connect_as(address, asking(None, ObjectTerm::None), Recalls::Answer).await.unwrap();
    let usual = Client::connect(&server).await;
    let file = usual.create(usual.root, "file").await.unwrap();
    let granted = async |client: &Client| getattr(client, file.fid).await.grants;
    let grants = granted(&own).await;
    assert_eq!(grants.iter().map(|grant| grant.term).collect::<Vec<_>>(), [Term::For(term)]);
    assert_eq!(granted(&none).await, []);
    assert_eq!(granted(&usual).await[0].term, Term::Session);
    drop(server);

    let server = start(dir.path());
    let role = asking(Some(own.key()), ObjectTerm::For(term));
    let own = Client::connect_as(server.local_addr(), role, Recalls::Answer).await.unwrap();
    let leases = vec![(grants[0], file.attr.version)];
    let reclaim = Reclaim { leases, open: vec![], locks: vec![], step: ReclaimStep::Last };
    let Ok(Answer::Reclaimed { leases: back, .. }) = own.ask(Call::Reclaim(reclaim)).await.result else {
        panic!()
    };
    assert_eq!(back[0].map(|grant| grant.term), Some(Term::For(term)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_a_term_of_its_own_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let term = Duration::from_millis(300);
    let mut config = config(dir.path());
    config.object_term = ObjectTerm::For(term);
    let server = Server::start(config).unwrap();
    let (reader, writer) = (Client::connect_keeping_recalls(&server).await, Client::connect(&server).await);
    let file = writer.create(writer.root, "file").await.unwrap().fid;
    let granted = Instant::now();
    let grants = getattr(&reader, file).await.grants;
    assert_eq!((grants.len(), grants[0].term), (1, Term::For(term)));
    // The reader does not answer, and its session is good for ten seconds; the lease is not.
    writer.write(file, WriteAt::Offset(0), b"new").await.unwrap();
    let waited = granted.elapsed();
    assert!(waited >= term, "{waited:?}");
    assert!(waited < Duration::from_secs(8), "TIMED OUT: {waited:?}");
    assert_eq!(getattr(&reader, file).await.grants.len(), 1, "it was not fenced");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_clients_keep_changing_is_not_leased_until_they_stop() {
    let dir = tempfile::tempdir().unwrap();
    // The half-life of the counts is the term.
    let server = Server::start(config(dir.path()).with_term(Duration::from_secs(1))).unwrap();
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    until("leases do not pay", || async {
        for _ in 0..10 {
            one.write(file, WriteAt::Offset(0), b"1").await.unwrap();
            two.write(file, WriteAt::Offset(0), b"2").await.unwrap();
        }
        getattr(&one, file).await.grants.is_empty()
            && policy_of(&server, file).await.contains("asking costs less")
    })
    .await;
    assert!(stat(&server, "lease.refusals_equation_8").await > 0);
    until("leases pay again", || async { mode_on(&getattr(&one, file).await.grants, file).is_some() }).await;
    assert_eq!(policy_of(&server, file).await, "leases are given");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_readers_does_not_keep_a_writer_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let writer = Client::connect(&server).await;
    let file = writer.create(writer.root, "file").await.unwrap().fid;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let reader = Client::connect(&server).await;
        readers.push(tokio::spawn(async move {
            loop {
                getattr(&reader, file).await.result.unwrap();
            }
        }));
    }
    for _ in 0..20 {
        let asked = Instant::now();
        writer.write(file, WriteAt::Offset(0), b"x").await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(5), "TIMED OUT: {:?}", asked.elapsed());
    }
    readers.iter().for_each(|reader| reader.abort());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_again_comes_from_memory_as_far_as_it_goes() {
    const FILE: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut small = config(dir.path());
    // Sixteen parts, each of which could hold the whole of a file.
    small.cache = CacheSizes { metadata: 16 << 20, data: 32 << 20 };
    let server = Server::start(small.clone()).unwrap();
    let client = Client::connect(&server).await;
    let mut files = Vec::new();
    for index in 0..40u8 {
        let file = client.create(client.root, &format!("f{index}")).await.unwrap().fid;
        for at in [0, FILE / 2] {
            client.write(file, WriteAt::Offset(at), &vec![index; FILE as usize / 2]).await.unwrap();
        }
        files.push(file);
    }
    client.ask(Call::Goodbye).await.result.unwrap();
    server.shutdown().await;

    let server = Server::start(small).unwrap();
    let client = Client::connect(&server).await;
    let read = async |file: Fid| {
        for at in [0, FILE / 2] {
            assert_eq!(client.read(file, at, 1 << 20).await.unwrap().len(), 1 << 20);
        }
        (stat(&server, "cache.chunks.hits").await, stat(&server, "cache.chunks.misses").await)
    };
    let (hits, cold) = read(files[0]).await;
    assert!(cold > 0 && hits == 0, "{hits} hits, {cold} misses");
    let (_, again) = read(files[0]).await;
    let (hits, misses) = read(files[0]).await;
    assert!(
        hits > 0 && misses == again,
        "what is read often stays off the medium: {hits} hits, {misses} misses"
    );
    let scan = async || {
        for file in &files[1..] {
            read(*file).await;
        }
        stat(&server, "cache.chunks.misses").await
    };
    let before = scan().await;
    let (_, after) = read(files[0]).await;
    assert_eq!(after, before, "what is read once does not push it out");
    for file in &files[1..] {
        read(*file).await;
        read(*file).await;
    }
    let before = stat(&server, "cache.chunks.misses").await;
    let (_, after) = read(files[0]).await;
    assert!(after > before, "80 MiB do not fit into 32");
}

// SEMANTICS 10
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stays_away_is_forgotten_with_what_it_had_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut short = config(dir.path());
    short.courtesy = Duration::from_millis(100);
    let server = Server::start(short).unwrap();
    let away = Client::connect(&server).await;
    let file = away.create(away.root, "file").await.unwrap().fid;
    away.unlink(away.root, "file", InUse::Yes).await.unwrap();
    let key = away.key();
    drop(away);
    let other = Client::connect(&server).await;
    until("its orphan is gone", || async { !other.exists(file).await }).await;
    let back = Client::resume(&server, key).await;
    assert_eq!(back.session.standing, Standing::New);
}

// SEMANTICS 10
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_removed_files_from_the_dead_and_not_from_the_living() {
    let dir = tempfile::tempdir().unwrap();
    let term = Duration::from_secs(1);
    let server = Server::start(config(dir.path()).with_term(term)).unwrap();
    let (alive, dead) = (Client::connect(&server).await, Client::connect(&server).await);
    let mut kept = Vec::new();
    for (client, name) in [(&dead, "dead"), (&alive, "alive")] {
        kept.push(client.create(client.root, name).await.unwrap().fid);
        client.unlink(client.root, name, InUse::Yes).await.unwrap();
    }
    drop(dead);
    let since = std::time::Instant::now();
    until("the term is over", || async {
        alive.ask(Call::Renew).await.result.unwrap();
        since.elapsed() > term * 2
    })
    .await;
    assert_eq!(stat(&server, "orphans").await, 2, "kept by courtesy while there is space");
    let (len, how) = (1 << 60, soda_protocol::Allocate::Extend);
    let too_much = Call::Allocate { fid: kept[1], offset: 0, len, how, kill_suid_sgid: false };
    assert_eq!(errno(alive.change(too_much).await.result), Errno::NoSpace);
    until("space is made", || async {
        alive.ask(Call::Renew).await.result.unwrap();
        stat(&server, "orphans").await == 1
    })
    .await;
    assert!(alive.exists(kept[1]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn reclaiming_goes_on_after_it_was_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let mut held = Vec::new();
    for index in 0..50 {
        let reply = client.change(create(client.root, &format!("f{index}"), FileKind::File)).await;
        let grants = reply.grants.clone();
        let file = node(reply).unwrap();
        let grant = *grants.iter().find(|grant| grant.fid == file.fid).unwrap();
        held.push((grant, file.attr.version));
    }
    drop(server);

    let server = start(dir.path());
    let batch = |leases: &[_], step| {
        Call::Reclaim(Reclaim { leases: leases.to_vec(), open: vec![], locks: vec![], step })
    };
    let first = Client::resume(&server, client.key()).await;
    first.ask(batch(&held[..30], ReclaimStep::More)).await.result.unwrap();
    drop(first);
    let second = Client::resume(&server, client.key()).await;
    assert_eq!(second.session.standing, Standing::Reclaim);
    let reply = second.ask(batch(&held[20..], ReclaimStep::Last)).await;
    let Ok(Answer::Reclaimed { leases: grants, .. }) = reply.result else { panic!("{reply:?}") };
    assert_eq!(grants.len(), 30);
    assert!(grants.iter().all(|grant| grant.is_some_and(|grant| grant.mode == Mode::Write)));
    let AdminAnswer::Status(status) = admin(&server, AdminCall::Status).await else { panic!() };
    assert_eq!((status.leases, status.grace), (50, None));
}
