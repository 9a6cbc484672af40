//! Digests: what a client did under its write leases is done at the server as a whole, once, or not at all.

use crate::common::dying::check_stores;
use crate::common::teller::*;
use crate::common::*;
use bytes::Bytes;
use soda_oplog::{coalesce, world};
use soda_protocol::digest::RECORDS_MAX;
use soda_protocol::{
    Answer, Call, Change, Failure, Fate, Note, Place, ReclaimStep, Record, Reply, Standing, WriteAt,
};
use soda_server::{RunningServer, Server};
use soda_types::{Attr, Errno, Fid, FileKind, InUse, Ino, Mode, SetAttr, Timestamp, Version};
use std::path::Path;
use std::time::Duration;

async fn end(server: RunningServer, dir: &Path) {
    server.shutdown().await;
    check_stores(dir, "at the end");
}

fn attr_of(reply: &Reply, fid: Fid) -> Attr {
    digested(reply).into_iter().find(|(found, _)| *found == fid).expect("touched").1
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_were_made_are_there_with_their_numbers_times_and_leases() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (small, mut records) = teller.file("small", b"hello");
    let (large, more) = teller.file("large", &vec![7; 300_000]);
    records.extend(more);
    let reply = teller.tell(records.clone()).await;

    let attrs = digested(&reply);
    assert_eq!(attrs.iter().map(|(fid, _)| *fid).collect::<Vec<_>>(), [teller.client.root, small, large]);
    let attr = attr_of(&reply, small);
    assert_eq!((attr.btime, attr.mtime, attr.size), (records[0].at, records[1].at, 5));
    let root = attr_of(&reply, teller.client.root);
    assert_eq!((root.mtime, root.ctime), (records[2].at, records[2].at));
    for fid in [small, large] {
        assert_eq!(mode_on(&reply.grants, fid), Some(Mode::Write));
    }
    assert_eq!(reply.grants.len(), 2, "the others are held anyway");

    let other = Client::connect(&server).await;
    let found = other.lookup(other.root, "small").await.unwrap().unwrap();
    assert_eq!((found.fid, found.attr), (small, attr));
    assert_eq!(other.read(small, 0, 100).await.unwrap(), b"hello"[..]);
    assert_eq!(other.read(large, 0, 1 << 20).await.unwrap(), vec![7; 300_000]);
    drop(other);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_comes_again_gets_the_same_answer_and_the_leases() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fid, records) = teller.file("a", b"once");
    let (gone, mut more) = teller.file("b", b"gone");
    let unlink = Change::Unlink { place: teller.place("b"), fid: gone, then: Fate::Gone };
    more.push(teller.record(unlink));
    let told = teller.next([records, more].concat());
    let first = teller.send(&told).await;
    let second = teller.send(&told).await;
    assert_eq!((&first.result, &first.grants), (&second.result, &second.grants));
    assert_eq!(second.grants.iter().map(|grant| grant.fid).collect::<Vec<_>>(), [fid]);

    // The next connection, and one where the server has restarted and nobody knows of the lease.
    let (root, attr) = root_lease(&teller.client).await.unwrap();
    let (key, version) = (teller.client.key(), attr.version);
    teller.client = Client::resume(&server, key).await;
    assert_eq!(teller.send(&told).await.grants, second.grants);
    server.shutdown().await;
    let server = start(dir.path());
    teller.client = Client::resume(&server, key).await;
    assert_eq!(teller.client.session.standing, Standing::Reclaim);
    // Under its own write lease it may be at a version that the client has not heard of.
    for (version, taken) in [(Version(version.0 + 1), false), (Version(version.0 - 1), true)] {
        let held = reclaim(&teller.client, vec![(root, version)], vec![], ReclaimStep::More).await.unwrap();
        assert_eq!(held[0].is_some(), taken);
    }
    let third = teller.send(&told).await;
    assert_eq!(third.result, first.result);
    assert_eq!(third.grants.iter().map(|grant| grant.fid).collect::<Vec<_>>(), [fid]);
    // It goes on under these leases, in the grace period.
    let write =
        Change::Write { fid, offset: 0, data: Bytes::from_static(b"more").into(), kill_suid_sgid: false };
    let record = teller.record(write);
    digested(&teller.tell(vec![record]).await);
    reclaim(&teller.client, vec![], vec![], ReclaimStep::Last).await.unwrap();
    assert_eq!(teller.client.read(fid, 0, 10).await.unwrap(), b"more"[..]);
    drop(teller);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_record_that_fails_undoes_all_and_the_answer_stays() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fid, mut records) = teller.file("a", &vec![1; 100_000]);
    let other = teller.new_fid();
    let again = Change::Create { place: teller.place("a"), fid: other, new: new_node(FileKind::File) };
    records.push(teller.record(again));
    let told = teller.next(records);
    let reply = teller.send(&told).await;
    assert_eq!(refused(&reply), (3, Errno::Exists));
    assert!(!teller.client.exists(fid).await);
    assert_eq!(teller.client.lookup(teller.client.root, "a").await.unwrap(), None);
    // Nothing was used up: the numbers are still good.
    let first: Vec<Record> = told.records[..2].to_vec();
    digested(&teller.tell(first).await);
    assert_eq!(teller.send(&told).await.result, Err(Failure::OldSequence));

    let wrong = |change| (change, Errno::NoEntry);
    let (root, absent) = (teller.client.root, teller.place("absent"));
    let place = teller.place("a");
    let directory = teller.new_fid();
    let cases = [
        wrong(Change::Unlink { place: place.clone(), fid: root, then: Fate::Gone }),
        wrong(Change::Unlink { place: absent.clone(), fid, then: Fate::Gone }),
        (Change::RemoveDirectory { place: place.clone(), fid }, Errno::NotDirectory),
        (Change::Link { fid, place: place.clone() }, Errno::Exists),
        (Change::Create { place: absent.clone(), fid, new: new_node(FileKind::File) }, Errno::Exists),
        (
            Change::Create {
                place: absent.clone(),
                fid: Fid::new(root.volume, Ino(1 << 40)),
                new: new_node(FileKind::File),
            },
            Errno::Invalid,
        ),
        (
            Change::Create {
                place: absent.clone(),
                fid: Fid { generation: 1, ..directory },
                new: new_node(FileKind::File),
            },
            Errno::Stale,
        ),
        (Change::RemoveXattr { fid, name: b"user.none".to_vec() }, Errno::NoData),
    ];
    for (change, errno) in cases {
        let record = teller.record(change.clone());
        let told = teller.next(vec![record]);
        let reply = teller.send(&told).await;
        assert_eq!(refused(&reply).1, errno, "{change:?}");
        assert_eq!(teller.send(&told).await.result, reply.result);
    }
    drop(teller);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_covered_by_a_write_lease_is_refused_and_nobody_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fid, records) = teller.file("a", b"mine");
    digested(&teller.tell(records).await);
    let write =
        |data: &'static [u8]| Change::Write { fid, offset: 0, data: data.into(), kill_suid_sgid: false };
    // Another client writes the file: this one answers the recall at once.
    let other = Client::connect(&server).await;
    other.write(fid, soda_protocol::WriteAt::Offset(0), b"theirs").await.unwrap();
    let late = teller.record(write(b"late"));
    let reply = teller.tell(vec![late.clone()]).await;
    assert_eq!(refused(&reply), (late.lsn.0, Errno::Stale));
    assert_eq!(other.read(fid, 0, 100).await.unwrap(), b"theirs"[..]);
    // Of another session, which never had it.
    let mut third = Teller { client: Client::connect(&server).await, ..teller };
    let stolen = third.record(write(b"stolen"));
    assert_eq!(refused(&third.tell(vec![stolen]).await).1, Errno::Stale);
    assert_eq!(other.read(fid, 0, 100).await.unwrap(), b"theirs"[..]);
    drop((third, other));
    end(server, dir.path()).await;
}

/// The main case: somebody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_is_let_in_while_its_lease_is_asked_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::with(Client::connect_keeping_recalls(&server).await).await;
    let root = teller.client.root;
    let other = Client::connect(&server).await;
    let lookup = Call::Lookup { parent: root, name: n("a") };
    let (_, answer) = other.connection().send(None, lookup, Bytes::new()).await;
    let recall = teller.client.next_recall().await;
    assert_eq!((recall.fid, recall.to), (root, Some(Mode::Read)));
    let (fid, records) = teller.file("a", b"in time");
    let told = teller.next(records);
    let grants = teller.send(&told).await.grants;
    assert_eq!(mode_on(&grants, fid), Some(Mode::Write));
    teller.client.answer_recall(&recall, InUse::No).await;
    // Who looks it up waits for the file itself now.
    let recall = teller.client.next_recall().await;
    assert_eq!((recall.fid, recall.to), (fid, Some(Mode::Read)));
    teller.client.answer_recall(&recall, InUse::No).await;
    match answer.await.unwrap().0.result {
        Ok(Answer::Found { node: Some(node), .. }) => assert_eq!(node.fid, fid),
        other => panic!("{other:?}"),
    }
    drop((teller, other));
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_without_a_name_stays_until_it_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let directory = teller.client.root;
    let (held, mut records) = teller.file("held", b"still here");
    let (named, tmp) = (teller.new_fid(), teller.new_fid());
    let unlink = Change::Unlink { place: teller.place("held"), fid: held, then: Fate::Stays };
    for change in [
        unlink,
        Change::TmpFile { directory, fid: named, new: new_node(FileKind::File) },
        Change::TmpFile { directory, fid: tmp, new: new_node(FileKind::File) },
        Change::Link { fid: named, place: teller.place("named") },
        Change::Release { fid: tmp },
    ] {
        records.push(teller.record(change));
    }
    let reply = teller.tell(records).await;
    let attrs: Vec<Fid> = digested(&reply).into_iter().map(|(fid, _)| fid).collect();
    assert_eq!(attrs, [directory, held, named]);
    assert_eq!(attr_of(&reply, held).nlink, 0);
    assert_eq!(attr_of(&reply, named).nlink, 1);
    assert!(mode_on(&reply.grants, tmp).is_none() && !teller.client.exists(tmp).await);
    assert_eq!(teller.client.read(held, 0, 100).await.unwrap(), b"still here"[..]);
    let release = teller.record(Change::Release { fid: held });
    digested(&teller.tell(vec![release]).await);
    assert!(!teller.client.exists(held).await);

    // One that another client has open is kept for it.
    let (shared, records) = teller.file("shared", b"for two");
    digested(&teller.tell(records).await);
    let other = Client::connect(&server).await;
    assert_eq!(other.ask(Call::Opened { fid: shared }).await.result, Ok(Answer::Done));
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let unlink = Call::SetAttr { fid: shared, set, owner: None };
    node(teller.client.change(unlink).await).unwrap();
    node(
        teller
            .client
            .change(Call::SetAttr {
                fid: directory,
                set: SetAttr { perm: Some(0o755), ..SetAttr::default() },
                owner: None,
            })
            .await,
    )
    .unwrap();
    let unlink = Change::Unlink { place: teller.place("shared"), fid: shared, then: Fate::Gone };
    let record = teller.record(unlink);
    assert_eq!(attr_of(&teller.tell(vec![record]).await, shared).nlink, 0);
    assert_eq!(other.read(shared, 0, 100).await.unwrap(), b"for two"[..]);
    other.note(Note::Closed(vec![shared])).await;
    until("the last one has closed it", async || !other.exists(shared).await).await;
    drop((teller, other));
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_those_that_the_client_has_counted() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let root = teller.client.root;
    let (fid, records) = teller.file("a", b"x");
    let before = node(teller.client.ask(Call::GetAttr { fid: root }).await).unwrap().attr.version;
    let counted = (Version(before.0 + 50), Version(before.0 + 40));
    let mut told = teller.next(records);
    told.versions = vec![(root, counted.0, counted.1), (fid, Version(0), Version(0))];
    let reply = teller.send(&told).await;
    let attr = attr_of(&reply, root);
    assert_eq!((attr.version, attr.data_version), counted);
    assert!(attr_of(&reply, fid).version > Version(0));
    // What cancelled out leaves only its count.
    let mut told = teller.next(vec![]);
    told.versions = vec![(root, Version(before.0 + 60), counted.1)];
    let attr = attr_of(&teller.send(&told).await, root);
    assert_eq!((attr.version, attr.data_version), (Version(before.0 + 60), counted.1));
    // Back is no way, and nobody gets to the versions of the next run.
    let mut told = teller.next(vec![]);
    told.versions = vec![(root, before, before)];
    assert_eq!(attr_of(&teller.send(&told).await, root).version, Version(before.0 + 60));
    for high in [Version(u64::MAX), Version(before.0 + (1 << 44))] {
        let mut told = teller.next(vec![]);
        told.versions = vec![(root, high, counted.1)];
        assert_eq!(refused(&teller.send(&told).await).1, Errno::Invalid);
    }
    drop(teller);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_refused_and_the_session_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let root = teller.client.root;
    let noise = Change::RemoveXattr { fid: root, name: Vec::new() };
    let flood: Vec<Record> = (0..=RECORDS_MAX).map(|_| teller.record(noise.clone())).collect();
    assert_eq!(refused(&teller.tell(flood).await).1, Errno::TooBig);
    // A million do not fit a frame: whoever sends that has left the protocol.
    let (_, records) = teller.file("a", b"goes on");
    digested(&teller.tell(records).await);
    drop(teller);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_a_directory_may_arrive_in_another_order_than_they_were_made() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (_, first) = teller.file("first made", b"1");
    let (_, second) = teller.file("second made", b"2");
    let latest = attr_of(&teller.tell(second.clone()).await, teller.client.root);
    let late = attr_of(&teller.tell(first).await, teller.client.root);
    assert_eq!((late.mtime, late.ctime), (second[0].at, second[0].at));
    assert_eq!((latest.mtime, latest.ctime), (late.mtime, late.ctime));
    assert!(late.data_version > latest.data_version);
    drop(teller);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_of_directories_make_no_loop() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (outer, inner) = (teller.new_fid(), teller.new_fid());
    let new = new_node(FileKind::Directory);
    let inside = Place { directory: outer, name: n("inner") };
    let records = vec![
        teller.record(Change::Create { place: teller.place("outer"), fid: outer, new: new.clone() }),
        teller.record(Change::Create { place: inside.clone(), fid: inner, new }),
    ];
    digested(&teller.tell(records).await);
    let rename = |from: Place, directory, moved, what| Change::Rename {
        from,
        to: Place { directory, name: n("moved") },
        moved,
        what,
        replaced: None,
    };
    use soda_protocol::Moved;
    let record = teller.record(rename(teller.place("outer"), inner, outer, Moved::Subtree));
    assert_eq!(refused(&teller.tell(vec![record]).await).1, Errno::Invalid);
    let root = teller.client.root;
    let record = teller.record(rename(inside.clone(), root, inner, Moved::Leaf));
    assert_eq!(refused(&teller.tell(vec![record]).await).1, Errno::Invalid, "it does not say what it does");
    let record = teller.record(rename(inside, root, inner, Moved::Subtree));
    digested(&teller.tell(vec![record]).await);
    drop(teller);
    end(server, dir.path()).await;
}

/// As they were made, and with what cancels out left out.
#[tokio::test(flavor = "multi_thread")]
async fn histories_lead_to_the_tree_that_they_led_to_before() {
    for seed in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path());
        let mut teller = Teller::connect(&server).await;
        let (history, tree) = world::history_from(teller.numbers.start, &dice(seed, 400));
        let start = teller.clock;
        let coalesced = seed % 2 == 1;
        for records in history.chunks(1 + seed as usize * 7) {
            let mut records = records.to_vec();
            for record in &mut records {
                record.at = Timestamp::new(record.at.secs() + start, record.at.nanos());
            }
            if coalesced {
                records = coalesce(records);
            }
            digested(&teller.tell(records).await);
        }
        let times = if coalesced { Times::Ignored } else { Times::From(start) };
        assert_is(&teller.client, &tree, times, &format!("seed {seed}")).await;
        drop(teller);
        end(server, dir.path()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reserved_is_free_for_its_owner_only_and_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, other) = (Client::connect(&server).await, Client::connect(&server).await);
    let free = async |client: &Client| match client.ask(Call::StatFs { fid: client.root }).await.result {
        Ok(Answer::Stats(stats)) => stats.free_bytes,
        answer => panic!("{answer:?}"),
    };
    let reserve =
        async |client: &Client, bytes| match client.ask(Call::Reserve { inodes: 0, bytes }).await.result {
            Ok(Answer::Reserved { count: 0, bytes, .. }) => bytes,
            answer => panic!("{answer:?}"),
        };
    // The disk is also everybody else's.
    let slack = 1 << 30;
    let all = free(&one).await;
    assert_eq!(reserve(&one, 64 << 20).await, 64 << 20);
    assert_eq!(reserve(&one, 64 << 20).await, 64 << 20);
    let got = reserve(&one, u64::MAX).await;
    assert!(got > all / 2 && got <= all + slack, "{got} of {all}");
    // A quarter stays for those who have reserved nothing.
    let rest = all / 4 + slack;
    assert!(free(&other).await <= rest && free(&one).await > all / 2);
    assert!(reserve(&other, u64::MAX).await <= rest);
    reserve(&other, 0).await;
    // It outlives the server, not the session.
    server.shutdown().await;
    let server = start(dir.path());
    let one = Client::resume(&server, one.key()).await;
    let other = Client::resume(&server, other.key()).await;
    assert!(free(&other).await <= rest);
    one.ask(Call::Goodbye).await.result.unwrap();
    assert!(free(&other).await > all / 2);
    drop((one, other));
    end(server, dir.path()).await;
}

/// Who has reserved space uses some of it up, and nobody anything after that before the server restarts: others have no less of
/// it then than before.
async fn what_is_free_for_others_outlives_the_server_after(use_up: impl AsyncFnOnce(&mut Teller)) {
    const QUOTA: u64 = 64 << 20;
    // Records take a bit of it, and are not merged alike.
    const ABOUT: u64 = 256 << 10;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.quota = Some(QUOTA);
    let server = Server::start(config.clone()).unwrap();
    let mut teller = Teller::connect(&server).await;
    let reserve = Call::Reserve { inodes: 0, bytes: QUOTA / 2 };
    let Ok(Answer::Reserved { bytes, .. }) = teller.client.ask(reserve).await.result else { panic!() };
    assert_eq!(bytes, QUOTA / 2);
    let other = Client::connect(&server).await;
    let free = async |client: &Client| match client.ask(Call::StatFs { fid: client.root }).await.result {
        Ok(Answer::Stats(stats)) => stats.free_bytes,
        answer => panic!("{answer:?}"),
    };
    let reserved = free(&other).await;
    use_up(&mut teller).await;
    let before = free(&other).await;
    assert!(
        before + ABOUT > reserved,
        "{before} bytes are free of {reserved}: it was not taken from what is reserved"
    );
    server.shutdown().await;
    let server = Server::start(config).unwrap();
    let (teller, other) =
        (Client::resume(&server, teller.client.key()).await, Client::resume(&server, other.key()).await);
    let after = free(&other).await;
    assert!(after.abs_diff(before) < ABOUT, "{after} bytes are free after the restart, {before} before");
    drop((teller, other));
    end(server, dir.path()).await;
}

// SEMANTICS 16
#[tokio::test(flavor = "multi_thread")]
async fn what_a_digest_uses_up_is_not_reserved_once_more_after_a_restart() {
    what_is_free_for_others_outlives_the_server_after(async |teller| {
        let file = |at: u8| teller.file(&format!("told{at}"), &vec![at; 512 << 10]).1;
        let records = (0..4).flat_map(file).collect();
        digested(&teller.tell(records).await);
    })
    .await;
}

// SEMANTICS 16
#[tokio::test(flavor = "multi_thread")]
async fn what_small_changes_use_up_is_not_reserved_once_more_after_a_restart() {
    what_is_free_for_others_outlives_the_server_after(async |teller| {
        for at in 0..300 {
            teller.client.create(teller.client.root, &format!("through{at}")).await.unwrap();
        }
    })
    .await;
}

/// What is created under it would be taken for what was there before by whoever has that cached.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_a_digest_used_up_is_refused_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fid, mut records) = teller.file("gone", b"");
    let unlink = Change::Unlink { place: teller.place("gone"), fid, then: Fate::Gone };
    records.push(teller.record(unlink));
    digested(&teller.tell(records).await);
    let (root, attr) = root_lease(&teller.client).await.unwrap();
    server.shutdown().await;
    let server = start(dir.path());
    teller.client = Client::resume(&server, teller.client.key()).await;
    let held = reclaim(&teller.client, vec![(root, attr.version)], vec![], ReclaimStep::Last).await.unwrap();
    assert!(held[0].is_some());
    let again = Change::Create { place: teller.place("again"), fid, new: new_node(FileKind::File) };
    let record = teller.record(again);
    assert_eq!(refused(&teller.tell(vec![record]).await).1, Errno::Exists);
    // One that is not used up goes on being its own.
    let (_, records) = teller.file("new", b"");
    digested(&teller.tell(records).await);
    drop(teller);
    end(server, dir.path()).await;
}

// SEMANTICS 16
#[tokio::test(flavor = "multi_thread")]
async fn what_is_reserved_for_who_is_away_is_to_be_had_where_nothing_else_is_left() {
    const QUOTA: u64 = 64 << 20;
    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path()).with_term(Duration::from_secs(5));
    config.quota = Some(QUOTA);
    let server = Server::start(config).unwrap();
    let (away, other) = (Client::connect(&server).await, Client::connect(&server).await);
    let reserve = Call::Reserve { inodes: 0, bytes: QUOTA };
    for client in [&away, &other] {
        let Ok(Answer::Reserved { bytes, .. }) = client.ask(reserve.clone()).await.result else { panic!() };
        assert!(bytes > 0);
    }
    // What is left of the quarter after the other's three quarters of it is 4 MiB.
    let file = other.create(other.root, "file").await.unwrap().fid;
    let write = async |at: usize| other.write(file, WriteAt::Offset((at * LEN) as u64), &[7; LEN]).await;
    // While it renews, what it has set aside is its own, however full the rest is.
    let mut written = 0;
    let refused = loop {
        assert_eq!(away.ask(Call::Renew).await.result, Ok(Answer::Done));
        match write(written).await {
            Ok(_) => written += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!(refused, Errno::NoSpace);
    assert!((1..8).contains(&written), "{written} MiB were left");
    let key = away.key();
    drop(away);
    until("its lease has run out", async || write(written).await.is_ok()).await;
    let stats = match other.ask(Call::StatFs { fid: other.root }).await.result {
        Ok(Answer::Stats(stats)) => stats,
        answer => panic!("{answer:?}"),
    };
    assert!(stats.free_bytes > QUOTA / 2, "{stats:?}");
    let back = Client::resume(&server, key).await;
    assert_eq!(back.session.standing, Standing::New, "it was ended for that");
    drop((other, back));
    end(server, dir.path()).await;
}

/// `cargo test --release -p soda-server --test main -- --ignored --nocapture digests::rate`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn rate_of_digests() {
    const FILES: usize = 1000;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // Ticks of 10 ms.
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
    };
    let rounds = 8;
    let (begun, cpu_begun) = (std::time::Instant::now(), cpu());
    for round in 0..rounds {
        let mut records = Vec::new();
        for file in 0..FILES {
            records.extend(teller.file(&format!("r{round} f{file}"), &[7; 4000]).1);
        }
        digested(&teller.tell(records).await);
    }
    let (took, used) = (begun.elapsed() / rounds, (cpu() - cpu_begun) / u64::from(rounds));
    println!("{FILES} files in a digest: {took:?}, {used} ms of CPU, this client's included");
    let (begun, cpu_begun) = (std::time::Instant::now(), cpu());
    let root = teller.client.root;
    for file in 0..FILES {
        let fid = teller.client.create(root, &format!("one {file}")).await.unwrap().fid;
        teller.client.write(fid, soda_protocol::WriteAt::Offset(0), &[7; 4000]).await.unwrap();
    }
    println!("one by one: {:?}, {} ms of CPU", begun.elapsed(), cpu() - cpu_begun);
}
