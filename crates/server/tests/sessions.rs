//! The life of a session: hello, resume, goodbye, fence, restart.

use crate::common::*;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Failure, LeaseWait, Note, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN,
    Reclaim, ReclaimStep, Role, ServerStatus, SessionKey, Standing, WriteAt,
};
use soda_server::{Server, ServerConfig};
use soda_types::{Epoch, Errno, FileKind, Grant, InUse, Mode, RecallAck, Scope, SessionId, Version};
use std::cell::RefCell;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_over_a_new_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let first = Client::connect(&server).await;
    assert_eq!(first.session.standing, Standing::New);
    first.create(first.root, "file").await.unwrap();
    let second = Client::resume(&server, first.key()).await;
    assert_eq!(second.session.standing, Standing::Resumed);
    assert_eq!(second.key(), first.key());
    assert_eq!(highest_stored(&second.session).0, 1);
    // The older connection has been replaced.
    assert!(first.connection().call(None, Call::Renew, Default::default()).await.is_none());
    assert_eq!(second.ask(Call::Renew).await.result, Ok(Answer::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_or_an_ended_session_begins_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let first = Client::connect(&server).await;
    let guess = SessionKey { secret: [0; 16], ..first.key() };
    let other = Client::resume(&server, guess).await;
    assert_eq!(other.session.standing, Standing::New);
    assert_ne!(other.key().session, first.key().session);
    let refused = Connection::open(server.local_addr(), Role::Data(guess), drop).await;
    assert_eq!(refused.err(), Some(Failure::SessionEnded));

    assert_eq!(first.ask(Call::Goodbye).await.result, Ok(Answer::Done));
    assert_eq!(first.ask(Call::Renew).await.result, Err(Failure::SessionEnded));
    let again = Client::resume(&server, first.key()).await;
    assert_eq!(again.session.standing, Standing::New);
    assert!(again.key().session > other.key().session, "session numbers are never used twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn hellos_that_cannot_be_served_are_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let refusal = |hello| async {
        let (connection, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
        drop(connection);
        raw_hello(server.local_addr(), hello).await
    };
    let mut newer = hello(control(None));
    (newer.protocol_min, newer.protocol_max) = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3);
    let text = refusal(newer).await;
    let asked = format!("{} to {}", PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3);
    let spoken = format!("speaks {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}");
    assert!(text.contains(&spoken) && text.contains(&asked) && text.contains("Update the server"), "{text}");
    let Role::Control { client, name, .. } = control(None) else { unreachable!() };
    let elsewhere = Role::Control {
        client,
        name,
        volume: "home".to_owned(),
        resume: None,
        lease_term: None,
        widest_lease: Scope::Node,
        lease_wait: LeaseWait::Notified,
    };
    let text = refusal(hello(elsewhere)).await;
    assert!(text.contains("\"home\"") && text.contains("\"main\""), "{text}");
}

async fn raw_hello(address: std::net::SocketAddr, hello: soda_protocol::Hello) -> String {
    use soda_protocol::{Frame, FrameKind, Reply, Request};
    use tokio::io::AsyncWriteExt;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = Request { op: None, call: Call::Hello(hello) };
    let frame = Frame::new(FrameKind::Request, 1, &request, bytes::Bytes::new()).unwrap();
    let mut bytes = bytes::BytesMut::new();
    frame.encode_head(&mut bytes);
    stream.write_all(&bytes).await.unwrap();
    match read_frame(&mut stream).await.unwrap().message::<Reply>().unwrap().result {
        Err(Failure::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_waits_for_a_dead_reader_no_longer_than_its_term() {
    let dir = tempfile::tempdir().unwrap();
    let term = Duration::from_millis(300);
    let server = Server::start(config(dir.path()).with_term(term)).unwrap();
    let writer = Client::connect(&server).await;
    let file = writer.create(writer.root, "file").await.unwrap().fid;
    let reader = Client::connect_keeping_recalls(&server).await;
    let asked = std::time::Instant::now();
    let reply = reader.ask(Call::GetAttr { fid: file }).await;
    assert_eq!(mode_on(&reply.grants, file), Some(Mode::Read));
    writer.write(file, WriteAt::Offset(0), b"new").await.unwrap();
    let waited = asked.elapsed();
    assert!(waited >= term, "the promise to the reader was broken after {waited:?}");
    assert!(waited < Duration::from_secs(10), "TIMED OUT: {waited:?}");
    // Fenced: its connections are closed, its key is worth nothing.
    until("the reader's connection ends", || async {
        reader.connection().call(None, Call::Renew, Default::default()).await.is_none()
    })
    .await;
    let back = Client::resume(&server, reader.key()).await;
    assert_eq!(back.session.standing, Standing::New);
    assert_eq!(back.read(file, 0, 10).await.unwrap(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_session_that_is_in_nobodys_way_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let term = Duration::from_millis(50);
    let server = Server::start(config(dir.path()).with_term(term)).unwrap();
    let client = Client::connect(&server).await;
    client.create(client.root, "file").await.unwrap();
    tokio::time::sleep(term * 4).await;
    assert_eq!(client.ask(Call::Renew).await.result, Ok(Answer::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_clients_reclaim_what_they_held() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let reply = client.change(create(client.root, "file", soda_types::FileKind::File)).await;
    let grants = reply.grants.clone();
    let file = node(reply).unwrap();
    let root = node(client.ask(Call::GetAttr { fid: client.root }).await).unwrap();
    let boot = client.welcome.boot;
    drop(server);

    let server = start(dir.path());
    let back = Client::resume(&server, client.key()).await;
    assert_eq!(back.session.standing, Standing::Reclaim);
    assert_ne!(back.welcome.boot, boot);
    let other = Client::connect(&server).await;
    let (_, mut blocked) =
        other.connection().send(None, Call::GetAttr { fid: file.fid }, Default::default()).await;

    let on = |fid| *grants.iter().find(|grant| grant.fid == fid).unwrap();
    // As after a power cut that took its last change.
    let mut lost = root.attr.version;
    lost.0 += 1;
    let reclaim =
        |leases, step| back.ask(Call::Reclaim(Reclaim { leases, open: vec![], locks: vec![], step }));
    let first = reclaim(vec![(on(file.fid), file.attr.version)], ReclaimStep::More).await;
    let Ok(Answer::Reclaimed { leases: held, .. }) = first.result else { panic!("{first:?}") };
    let regranted = held[0].unwrap();
    assert_eq!((regranted.fid, regranted.mode), (file.fid, Mode::Write));
    assert!(regranted.epoch > on(file.fid).epoch);
    assert!(blocked.try_recv().is_err(), "the grace period is not over");
    let last = reclaim(vec![(on(back.root), lost)], ReclaimStep::Last).await;
    assert_eq!(
        last.result,
        Ok(Answer::Reclaimed { leases: vec![None], refused_locks: vec![] }),
        "of a version that the store has not"
    );
    // The only known session is back, so the grace period ends early; then its write lease is asked down.
    assert!(blocked.await.unwrap().0.result.is_ok());
    assert_eq!(back.next_recall().await.to, Some(Mode::Read));
    // What was refused is shown by its holder's caches until they are dropped: who changes it asks for it first.
    let (_, mut changing) = other.send_change(create(other.root, "other", soda_types::FileKind::File)).await;
    let recall = back.next_recall().await;
    assert_eq!(recall.fid, back.root);
    assert!(changing.try_recv().is_err(), "not before the answer");
    back.answer_recall(&recall, InUse::No).await;
    assert!(changing.await.unwrap().0.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_come_back_in_the_grace_period_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let short = || config(dir.path()).with_term(Duration::from_millis(200));
    let server = Server::start(short()).unwrap();
    let gone = Client::connect(&server).await;
    let file = gone.create(gone.root, "file").await.unwrap().fid;
    drop(server);

    let server = Server::start(short()).unwrap();
    let client = Client::connect(&server).await;
    client.write(file, WriteAt::Offset(0), b"after the grace period").await.unwrap();
    let late = Client::resume(&server, gone.key()).await;
    assert_eq!(late.session.standing, Standing::New);
    drop(server);

    let server = Server::start(short()).unwrap();
    let later = Client::resume(&server, gone.key()).await;
    assert_eq!(later.session.standing, Standing::New, "its end was durable");
}

#[tokio::test(flavor = "multi_thread")]
async fn goodbyes_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    client.create(client.root, "file").await.unwrap();
    client.ask(Call::Goodbye).await.result.unwrap();
    server.shutdown().await;

    let server = start(dir.path());
    let other = Client::connect(&server).await;
    // There is nobody to wait for, so no grace period.
    other.create(other.root, "other").await.unwrap();
    assert_eq!(other.key().session, SessionId(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn released_leases_are_not_recalled() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let holder = Client::connect_keeping_recalls(&server).await;
    let reply = holder.change(create(holder.root, "file", soda_types::FileKind::File)).await;
    let give_back = |grant: &soda_types::Grant| RecallAck {
        fid: grant.fid,
        epoch: grant.epoch,
        kept: None,
        in_use: InUse::No,
        uses: 0,
        part: None,
    };
    holder.note(Note::Release(reply.grants.iter().map(give_back).collect())).await;
    assert_eq!(holder.ask(Call::Renew).await.result, Ok(Answer::Done));
    let other = Client::connect(&server).await;
    assert_eq!(other.create(other.root, "file").await, Err(Errno::Exists));
    other.create(other.root, "other").await.unwrap();
}

/// A client that was cut off before the term was lowered counts on the old one, however often the server has started since.
#[tokio::test(flavor = "multi_thread")]
async fn the_grace_period_fits_the_longest_term_since_one_was_completed() {
    let dir = tempfile::tempdir().unwrap();
    let with_term = |term| Server::start(config(dir.path()).with_term(Duration::from_secs(term))).unwrap();
    let server = with_term(100);
    let away = Client::connect(&server).await;
    drop(server);
    for _ in 0..2 {
        // Crashes in the middle of the grace period.
        let server = with_term(2);
        let left = grace_left(&server).await.unwrap();
        assert!(left > Duration::from_secs(100), "{left:?}");
    }
    let server = with_term(2);
    let back = Client::resume(&server, away.key()).await;
    let nothing = Reclaim { leases: vec![], open: vec![], locks: vec![], step: ReclaimStep::Last };
    back.ask(Call::Reclaim(nothing)).await.result.unwrap();
    assert_eq!(grace_left(&server).await, None);
    server.shutdown().await;
    // Everybody who is left has heard of the new term.
    let left = grace_left(&with_term(2)).await.unwrap();
    assert!(left < Duration::from_secs(3), "{left:?}");
}

async fn grace_left(server: &soda_server::RunningServer) -> Option<Duration> {
    status(server).await.grace
}

async fn status(server: &soda_server::RunningServer) -> ServerStatus {
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let reply = tools.call(None, Call::Admin(AdminCall::Status), Default::default()).await.unwrap().0;
    match reply.result {
        Ok(Answer::Admin(AdminAnswer::Status(status))) => status,
        other => panic!("{other:?}"),
    }
}

/// The connection breaks in the middle of a reclaim: it begins again, and what was reclaimed already stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_reclaim_in_many_messages_goes_on_after_a_broken_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let mut held = Vec::new();
    for index in 0..30 {
        let reply = client.change(create(client.root, &format!("f{index}"), FileKind::File)).await;
        let grants = reply.grants.clone();
        let file = node(reply).unwrap();
        held.push((*grants.iter().find(|grant| grant.fid == file.fid).unwrap(), file.attr.version));
    }
    let root = node(client.ask(Call::GetAttr { fid: client.root }).await).unwrap();
    drop(server);

    let server = start(dir.path());
    let reclaim = async |back: &Client, part: &[(Grant, Version)], step| {
        let part = Reclaim { leases: part.to_vec(), open: vec![part[0].0.fid], locks: vec![], step };
        match back.ask(Call::Reclaim(part)).await.result {
            Ok(Answer::Reclaimed { leases: held, .. }) => held,
            other => panic!("{other:?}"),
        }
    };
    let back = Client::resume(&server, client.key()).await;
    for part in held[..20].chunks(5) {
        assert!(reclaim(&back, part, ReclaimStep::More).await.iter().all(Option::is_some));
    }
    drop(back);
    assert!(grace_left(&server).await.is_some(), "it has not said that this was all");
    let back = Client::resume(&server, client.key()).await;
    assert_eq!(back.session.standing, Standing::Reclaim);
    let mut last_epoch = held[29].0.epoch;
    for part in held.chunks(5) {
        for grant in reclaim(&back, part, ReclaimStep::More).await {
            let grant = grant.expect("nobody else can have it");
            assert!(grant.epoch > last_epoch, "each message has grants of its own");
            last_epoch = grant.epoch;
        }
    }
    // Epochs that no earlier start can have given: the lease is held already, or refused.
    let version = root.attr.version;
    let mad = Grant { fid: back.root, mode: Mode::Read, epoch: Epoch(u64::MAX), ..held[0].0 };
    assert_eq!(reclaim(&back, &[(mad, version)], ReclaimStep::Last).await, vec![None]);
    assert_eq!(grace_left(&server).await, None);
    let other = Client::connect(&server).await;
    for (grant, _) in &held {
        let reply = other.ask(Call::GetAttr { fid: grant.fid }).await;
        let epochs = reply.grants.iter().map(|grant| grant.epoch);
        assert!(epochs.into_iter().all(|epoch| epoch > last_epoch && epoch < Epoch(1 << 60)));
        assert_eq!(back.next_recall().await.fid, grant.fid, "it was held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stays_away_for_longer_than_courtesy_is_forgotten_and_who_is_there_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let courtesy = Duration::from_millis(1500);
    let short = || ServerConfig { courtesy, ..config(dir.path()).with_term(Duration::from_millis(100)) };
    let server = Server::start(short()).unwrap();
    let (here, away) = (Client::connect(&server).await, Client::connect(&server).await);
    let (here_key, away_key) = (here.key(), away.key());
    let left = std::time::Instant::now();
    drop(away);
    until("it is forgotten", async || {
        let stays = Client::connect_with(server.local_addr(), None, Recalls::Answer).await.unwrap();
        let sessions = sessions(&server).await;
        stays.ask(Call::Goodbye).await.result.unwrap();
        !sessions.contains(&away_key.session)
    })
    .await;
    assert!(left.elapsed() >= courtesy, "after {:?}", left.elapsed());
    assert!(sessions(&server).await.contains(&here_key.session), "connected, though it says nothing");
    server.shutdown().await;
    let server = Server::start(short()).unwrap();
    let back = Client::resume(&server, away_key).await;
    assert_eq!(back.session.standing, Standing::New, "its record is gone, too");
}

async fn sessions(server: &soda_server::RunningServer) -> Vec<SessionId> {
    status(server).await.sessions.iter().map(|session| session.session).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_beyond_the_limit_are_refused_until_one_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path()).with_term(Duration::from_secs(3));
    config.limits.sessions = 3;
    let server = Server::start(config).unwrap();
    let address = server.local_addr();
    let connect = || Client::connect_with(address, None, Recalls::Answer);
    let here = [connect().await.unwrap(), connect().await.unwrap()];
    let away = connect().await.unwrap();
    let renew = async || {
        for client in &here {
            assert_eq!(client.ask(Call::Renew).await.result, Ok(Answer::Done));
        }
    };
    assert_eq!(away.ask(Call::Renew).await.result, Ok(Answer::Done));
    let refused = connect().await.err();
    let says = |text: &String| text.contains("maximum of 3 sessions");
    assert!(matches!(&refused, Some(Failure::Refused(text)) if says(text)), "{refused:?}");
    let key = away.key();
    drop(away);
    let new = RefCell::new(None);
    until("its lease has run out", async || {
        renew().await;
        let connected = connect().await.ok();
        new.replace(connected);
        new.borrow().is_some()
    })
    .await;
    renew().await;
    // It comes back as somebody new, if at all.
    let back = Client::connect_with(address, Some(key), Recalls::Answer).await.err();
    assert!(matches!(&back, Some(Failure::Refused(text)) if says(text)), "{back:?}");
    new.into_inner().unwrap().ask(Call::Goodbye).await.result.unwrap();
    assert_eq!(Client::resume(&server, key).await.session.standing, Standing::New);
}
