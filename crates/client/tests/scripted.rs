//! Orders of messages that a real server rarely produces.

use crate::common::script::*;
use crate::common::{Hooks, Told, at_once, eventually, name, new_node};
use bytes::Bytes;
use soda_client::{KillPriv, NamesLock, NoKernel, OpenMode};
use soda_protocol::*;
use soda_types::{
    Errno, Fid, FileKind, FsError, Grant, Ino, LockOwner, Mode, Sequence, SetAttr, Version, VolumeId,
};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

fn reclaimed(leases: Vec<Option<Grant>>) -> Answer {
    Answer::Reclaimed { leases, refused_locks: Vec::new() }
}

/// What a close has to say can wait while a lease says that the file has a name: it wakes the server together with something
/// else, or soon; but it comes before whatever follows, above all before the answer to a recall.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_travels_ahead_of_what_follows() {
    const OTHER: Fid = Fid { volume: VolumeId(1), ino: Ino(3), generation: 0 };
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    for (follows, epoch) in [("nothing", 1), ("a request", 2), ("a recall", 3)] {
        let file = script.created_open(epoch).await;
        drop(file);
        match follows {
            "a request" => {
                let client = Arc::clone(&script.client);
                tokio::spawn(async move { client.getattr(OTHER).await });
            }
            "a recall" => script.control.recall(FILE, epoch, None).await,
            _ => {}
        }
        let first = script.control.next().await;
        assert!(
            matches!(&first, Message::Note(Note::Closed(fids)) if fids[..] == [FILE]),
            "{follows}: {first:?}"
        );
        match follows {
            "a request" => {
                let (tag, request) = script.control.request().await;
                assert_eq!(request.call, Call::GetAttr { fid: OTHER });
                script.control.fail(tag, Failure::Fs(Errno::Stale.into())).await;
            }
            "a recall" => assert_eq!(script.control.acks().await.len(), 1),
            _ => {}
        }
    }
}

/// Another had said before that it has the lock.
// SEMANTICS 30
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_had_again_after_a_restart_is_not_missed_in_silence() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    let (client, file) = (Arc::clone(&script.client), script.created_open(1).await);
    let lock = |start| Lock {
        family: LockFamily::Record,
        owner: LockOwner(1),
        pid: 1,
        start,
        end: start + 9,
        mode: LockMode::Exclusive,
    };
    for start in [0, 100] {
        let (client, file) = (Arc::clone(&client), Arc::clone(&file));
        let taking = tokio::spawn(async move { client.lock_set(&file, lock(start), LockWait::No).await });
        let (tag, _) = script.control.request().await;
        script.control.answer(tag, Answer::Done, &[]).await;
        taking.await.unwrap().unwrap();
    }
    drop(script.control);
    let mut control = Peer(script.connections.recv().await.unwrap());
    control.welcome(Standing::Reclaim, &[]).await;
    let (tag, request) = control.request().await;
    let Call::Reclaim(reclaim) = request.call else { panic!("{request:?}") };
    assert_eq!(reclaim.locks, [(FILE, lock(0)), (FILE, lock(100))]);
    let leases = reclaim.leases.iter().map(|(grant, _)| Some(*grant)).collect();
    let never_had = (ROOT, lock(0));
    let refused_locks = vec![(FILE, lock(0)), never_had];
    control.answer(tag, Answer::Reclaimed { leases, refused_locks }, &[]).await;
    let (tag, _) = control.request().await;
    control.answer(tag, reclaimed(Vec::new()), &[]).await;
    eventually("the lock is given up", || client.session().locks == 1).await;
    assert_eq!(client.read(&file, 0, 10).await.unwrap_err().errno, Errno::Io);
}

/// An fsync of what no lease covers: others may have changed it and not told.
async fn sync(control: &mut Peer, fid: Fid) {
    let (tag, request) = control.request().await;
    assert_eq!(request.call, Call::GetAttr { fid });
    control.answer(tag, Answer::Node(node(fid, 3, 0)), &[]).await;
    let (tag, request) = control.request().await;
    assert_eq!(request.call, Call::Sync { fid, after: None });
    control.answer(tag, Answer::Done, &[]).await;
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_a_power_cut_took_back_are_reported_by_fsync_once() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    let client = Arc::clone(&script.client);
    let creating = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.create(ROOT, &name("f"), new_node(FileKind::File)).await }
    });
    let (tag, request) = script.control.request().await;
    assert_eq!(request.op.unwrap().sequence, Sequence(1));
    let others = vec![(ROOT, attr(ROOT, 5, 0))];
    let created = Answer::Changed { node: Some(node(FILE, 1, 0)), others };
    script.control.answer(tag, created, &[grant(ROOT, Mode::Write, 1), grant(FILE, Mode::Write, 2)]).await;
    creating.await.unwrap().unwrap();
    assert!(at_once(client.lookup(ROOT, &name("f"))).unwrap().node.is_some());

    drop(script.control);
    let mut control = Peer(script.connections.recv().await.unwrap());
    control.welcome(Standing::Reclaim, &[]).await;
    let (tag, request) = control.request().await;
    let Call::Reclaim(reclaim) = request.call else { panic!("{request:?}") };
    assert_eq!((reclaim.leases.len(), reclaim.step), (2, ReclaimStep::More));
    control.answer(tag, reclaimed(vec![None, None]), &[]).await;
    let (tag, request) = control.request().await;
    let Call::Reclaim(reclaim) = request.call else { panic!("{request:?}") };
    assert_eq!((reclaim.leases.len(), reclaim.step), (0, ReclaimStep::Last));
    control.answer(tag, reclaimed(Vec::new()), &[]).await;
    eventually("leases dropped", || client.leases().is_empty()).await;

    for errno in [Some(Errno::Io), None] {
        let syncing = tokio::spawn({
            let client = Arc::clone(&client);
            async move { client.fsync(FILE).await }
        });
        if errno.is_none() {
            sync(&mut control, FILE).await;
        }
        assert_eq!(syncing.await.unwrap().err().map(|error| error.errno), errno);
    }
}

/// The same operation until it is done, so that it is done once; not any more when its caller has gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_had_no_room_for_is_asked_again() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    let client = Arc::clone(&script.client);
    let chmod = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.setattr(FILE, SetAttr::default()).await })
    };
    let changing = chmod();
    let (tag, first) = script.control.request().await;
    for _ in 0..3 {
        script.control.fail(tag, Failure::Busy("a test".into())).await;
        let (again, request) = script.control.request().await;
        assert_eq!((again, &request), (tag, &first));
    }
    assert!(!changing.is_finished());
    let changed = Answer::Changed { node: Some(node(FILE, 1, 0)), others: Vec::new() };
    script.control.answer(tag, changed, &[]).await;
    changing.await.unwrap().unwrap();
    assert_eq!(client.stats().count("busy_waits"), 3);

    let killed = chmod();
    let (tag, _) = script.control.request().await;
    killed.abort();
    let cancel = script.control.next().await;
    assert!(matches!(cancel, Message::Note(Note::Cancel(cancelled)) if cancelled == tag), "{cancel:?}");
    script.control.fail(tag, Failure::Busy("a test".into())).await;
    eventually("it is given up", || client.session().waiting == 0).await;
}

/// Operation 2 became durable, operation 1 in another slot did not; operation 3 was never kept by anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_seen_slot_by_slot_and_only_on_the_files_concerned() {
    const OTHER: Fid = Fid { volume: VolumeId(1), ino: Ino(3), generation: 0 };
    const THIRD: Fid = Fid { volume: VolumeId(1), ino: Ino(4), generation: 0 };
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    let chmod = |fid: Fid| {
        let client = Arc::clone(&script.client);
        tokio::spawn(async move { client.setattr(fid, SetAttr::default()).await })
    };
    let (mut asked, mut changes) = (Vec::new(), Vec::new());
    for fid in [FILE, OTHER, THIRD] {
        changes.push(chmod(fid));
        let (tag, request) = script.control.request().await;
        asked.push((tag, request.op.unwrap()));
    }
    for (index, fid) in [FILE, OTHER].into_iter().enumerate() {
        let changed = Answer::Changed { node: Some(node(fid, 2, 0)), others: Vec::new() };
        script.control.answer(asked[index].0, changed, &[]).await;
    }
    script.control.fail(asked[2].0, Failure::Fs(FsError::new(Errno::TryAgain, ""))).await;
    for (change, fails) in changes.into_iter().zip([false, false, true]) {
        assert_eq!(change.await.unwrap().is_err(), fails);
    }

    drop(script.control);
    let mut control = Peer(script.connections.recv().await.unwrap());
    let (slot, sequence) = (asked[1].1.slot.0, asked[1].1.sequence.0);
    assert_eq!(sequence, 2);
    control.welcome(Standing::Reclaim, &[(slot, sequence)]).await;
    for _ in 0..2 {
        let (tag, request) = control.request().await;
        assert!(matches!(request.call, Call::Reclaim(_)), "{request:?}");
        control.answer(tag, reclaimed(Vec::new()), &[]).await;
    }
    for (fid, errno) in [(OTHER, None), (THIRD, None), (FILE, Some(Errno::Io)), (FILE, None)] {
        let client = Arc::clone(&script.client);
        let syncing = tokio::spawn(async move { client.fsync(fid).await });
        if errno.is_none() {
            sync(&mut control, fid).await;
        }
        assert_eq!(syncing.await.unwrap().err().map(|error| error.errno), errno);
    }
}

/// A version that a power cut took back comes again, for something else: what was seen before says nothing about it.
#[tokio::test(flavor = "multi_thread")]
async fn versions_are_forgotten_after_a_restart_even_if_reclaiming_took_two_attempts() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    let client = Arc::clone(&script.client);
    let ask = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.getattr(FILE).await })
    };
    let asking = ask();
    let (tag, _) = script.control.request().await;
    script.control.answer(tag, Answer::Node(node(FILE, 9, 5)), &[grant(FILE, Mode::Read, 1)]).await;
    asking.await.unwrap().unwrap();
    script.control.recall(FILE, 1, None).await;
    script.control.acks().await;

    drop(script.control);
    let second_run = [1; 16];
    let mut control = Peer(script.connections.recv().await.unwrap());
    control.welcome_in(second_run, Standing::Reclaim, &[]).await;
    control.request().await;
    drop(control);
    let mut control = Peer(script.connections.recv().await.unwrap());
    control.welcome_in(second_run, Standing::Reclaim, &[]).await;
    for _ in 0..2 {
        let (tag, request) = control.request().await;
        assert!(matches!(request.call, Call::Reclaim(_)), "{request:?}");
        control.answer(tag, reclaimed(Vec::new()), &[]).await;
    }
    let asking = ask();
    let (tag, _) = control.request().await;
    control.answer(tag, Answer::Node(node(FILE, 3, 5)), &[grant(FILE, Mode::Read, 2)]).await;
    asking.await.unwrap().unwrap();
    assert_eq!(at_once(client.getattr(FILE)).unwrap().value.version, Version(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_a_recall_has_overtaken_are_not_kept() {
    let mut script = Script::start(1, Box::new(NoKernel)).await;
    script.known_file(5).await;
    let mut data = script.data.take().unwrap();
    let client = Arc::clone(&script.client);
    let file = at_once(client.open(FILE, OpenMode::Read)).unwrap();
    let reading = tokio::spawn({
        let (client, file) = (Arc::clone(&client), Arc::clone(&file));
        async move { client.read(&file, 0, 5).await }
    });
    let (late, request) = data.request().await;
    assert_eq!(request.call, Call::Read { fid: FILE, offset: 0, len: 5 });
    script.control.recall(FILE, 1, None).await;
    let acks = script.control.acks().await;
    assert_eq!((acks[0].kept, acks[0].in_use), (None, soda_types::InUse::Yes));
    data.data(late, attr(FILE, 1, 5), b"stale", &[]).await;
    // The reader goes on without a lease: to the server again, for a lease and the data.
    let (tag, request) = script.control.request().await;
    assert_eq!(request.call, Call::Read { fid: FILE, offset: 0, len: 5 });
    script.control.data(tag, attr(FILE, 2, 5), b"fresh", &[grant(FILE, Mode::Read, 3)]).await;
    assert_eq!(reading.await.unwrap().unwrap().to_bytes(), "fresh");
    assert_eq!(at_once(client.read(&file, 0, 5)).unwrap().to_bytes(), "fresh");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_an_own_write_has_overtaken_leaves_nothing_stale() {
    let mut script = Script::start(1, Box::new(NoKernel)).await;
    script.known_file(5).await;
    let mut data = script.data.take().unwrap();
    let client = Arc::clone(&script.client);
    let file = at_once(client.open(FILE, OpenMode::ReadWrite)).unwrap();
    let task = |what: &'static [u8]| {
        let (client, file) = (Arc::clone(&client), Arc::clone(&file));
        tokio::spawn(async move {
            if what.is_empty() {
                return client.read(&file, 0, 5).await.unwrap().to_bytes();
            }
            client
                .write_all(&file, WriteAt::Offset(0), Bytes::from_static(what), KillPriv::Keep)
                .await
                .unwrap();
            Bytes::new()
        })
    };
    let reading = task(b"");
    let (read, _) = data.request().await;
    let writing = task(b"fresh");
    // No write lease yet: on the connection that can bring it.
    let (write, _) = script.control.request().await;
    let written = |version| Answer::Written { offset: 0, len: 5, attr: attr(FILE, version, 5) };
    script.control.answer(write, written(2), &[grant(FILE, Mode::Write, 2)]).await;
    writing.await.unwrap();
    data.data(read, attr(FILE, 1, 5), b"stale", &[]).await;
    // Began before the write ended: may see either.
    let seen = reading.await.unwrap();
    assert!(seen == "stale" || seen == "fresh");
    assert_eq!(at_once(client.read(&file, 0, 5)).unwrap().to_bytes(), "fresh");
    assert_eq!(at_once(client.getattr(FILE)).unwrap().value.version, Version(2));

    // Under the write lease, on the data connection; while it is in flight reads go to the server.
    let writing = task(b"other");
    let (write, _) = data.request().await;
    let reading = task(b"");
    let (read, _) = data.request().await;
    data.data(read, attr(FILE, 2, 5), b"fresh", &[]).await;
    assert_eq!(reading.await.unwrap(), "fresh");
    data.answer(write, written(3), &[]).await;
    writing.await.unwrap();
    assert_eq!(at_once(client.read(&file, 0, 5)).unwrap().to_bytes(), "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_stuck_behind_a_recall_of_its_directory_is_taken_back() {
    let told = Arc::<Told>::default();
    let mut script = Script::start(0, Box::new(Hooks(Arc::clone(&told), NamesLock::Directory))).await;
    let client = Arc::clone(&script.client);
    let looking = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.lookup(ROOT, &name("a")).await }
    });
    let (tag, _) = script.control.request().await;
    let absent = Answer::Found { parent: attr(ROOT, 1, 0), node: None };
    script.control.answer(tag, absent, &[grant(ROOT, Mode::Read, 1)]).await;
    looking.await.unwrap().unwrap();

    let creating = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.create(ROOT, &name("b"), new_node(FileKind::File)).await }
    });
    let (create, _) = script.control.request().await;
    script.control.recall(ROOT, 1, None).await;
    let (mut cancelled, mut acked) = (false, false);
    while !(cancelled && acked) {
        match script.control.next().await {
            Message::Note(Note::Cancel(tag)) => {
                assert_eq!(tag, create);
                script.control.fail(create, Failure::Fs(FsError::new(Errno::Interrupted, ""))).await;
                cancelled = true;
            }
            Message::Note(Note::RecallAcks(acks)) => {
                assert_eq!(acks[0].kept, None);
                acked = true;
            }
            other => {
                panic!("{other:?}; cancelled: {cancelled}, acked: {acked}, {:?}", told.names.lock().unwrap())
            }
        }
    }
    assert_eq!(creating.await.unwrap().unwrap_err().errno, Errno::Stale);
    assert_eq!(told.names.lock().unwrap().len(), 1);

    // For a while the kernel keeps no names of it, so that the second try cannot meet the same.
    let looking = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.lookup(ROOT, &name("b")).await }
    });
    let (tag, _) = script.control.request().await;
    let absent = Answer::Found { parent: attr(ROOT, 2, 0), node: None };
    script.control.answer(tag, absent, &[grant(ROOT, Mode::Read, 3)]).await;
    assert_eq!(looking.await.unwrap().unwrap().names, soda_client::Validity::NONE);
    script.control.recall(ROOT, 3, None).await;
    script.control.acks().await;
    assert_eq!(told.names.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_messages_do_no_harm_and_damaged_ones_end_the_connection() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    // A reply that nobody asked for, a recall of what is not held.
    script.control.answer(4711, Answer::Done, &[grant(FILE, Mode::Write, 9)]).await;
    script.control.recall(FILE, 9, None).await;
    assert_eq!(script.control.acks().await[0].kept, None);
    assert!(script.client.leases().is_empty());
    // An answer of the wrong kind.
    let client = Arc::clone(&script.client);
    let asking = tokio::spawn(async move { client.getattr(FILE).await });
    let (tag, _) = script.control.request().await;
    script.control.answer(tag, Answer::Done, &[]).await;
    assert_eq!(asking.await.unwrap().unwrap_err().errno, Errno::Io);
    // Rubbish: the client connects again and asks again.
    let client = Arc::clone(&script.client);
    let asking = tokio::spawn(async move { client.getattr(FILE).await });
    script.control.request().await;
    script.control.0.write_all(&[0xab; 100]).await.unwrap();
    let mut control = Peer(script.connections.recv().await.unwrap());
    control.welcome(Standing::Resumed, &[]).await;
    let (tag, request) = control.request().await;
    assert_eq!(request.call, Call::GetAttr { fid: FILE });
    control.answer(tag, Answer::Node(node(FILE, 1, 5)), &[grant(FILE, Mode::Read, 10)]).await;
    assert_eq!(asking.await.unwrap().unwrap().value.size, 5);
}

/// The writer's machine must not show old bytes after another machine has seen the new ones: what is unanswered is settled too.
#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_change_is_settled_in_the_kernel_before_a_recall_is_answered() {
    let told = Arc::<Told>::default();
    let mut script = Script::start(1, Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    script.known_file(5).await;
    let mut data = script.data.take().unwrap();
    let client = Arc::clone(&script.client);
    let file = at_once(client.open(FILE, OpenMode::ReadWrite)).unwrap();
    let write = |what: &'static [u8]| {
        let (client, file) = (Arc::clone(&client), Arc::clone(&file));
        tokio::spawn(async move {
            client
                .write_all(&file, WriteAt::Offset(0), Bytes::from_static(what), KillPriv::Keep)
                .await
                .unwrap()
        })
    };
    let first = write(b"first");
    let (tag, _) = script.control.request().await;
    let written = |version| Answer::Written { offset: 0, len: 5, attr: attr(FILE, version, 5) };
    script.control.answer(tag, written(2), &[grant(FILE, Mode::Write, 2)]).await;
    first.await.unwrap();
    assert_eq!(at_once(client.read(&file, 0, 5)).unwrap().to_bytes(), "first");
    at_once(client.getattr(FILE)).unwrap();

    // Applied at the server, its reply stuck somewhere; another machine reads.
    let second = write(b"other");
    let (tag, _) = data.request().await;
    script.control.recall(FILE, 2, Some(Mode::Read)).await;
    assert_eq!(script.control.acks().await[0].kept, Some(Mode::Read));
    assert_eq!(*told.attrs.lock().unwrap(), vec![FILE]);
    assert_eq!(*told.data.lock().unwrap(), vec![(FILE, 0..u64::MAX)]);
    let asking = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.getattr(FILE).await.unwrap() }
    });
    let (asked, request) = script.control.request().await;
    assert_eq!(request.call, Call::GetAttr { fid: FILE });
    script.control.answer(asked, Answer::Node(node(FILE, 3, 5)), &[]).await;
    assert_eq!(asking.await.unwrap().valid, soda_client::Validity::NONE);
    data.answer(tag, written(3), &[]).await;
    second.await.unwrap();
}

/// A page that the kernel reads back while it is being recalled is taken out again.
#[tokio::test(flavor = "multi_thread")]
async fn pages_read_back_during_a_recall_are_dropped_again() {
    let told = Arc::<Told>::default();
    let mut script = Script::start(0, Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    let client = Arc::clone(&script.client);
    let asking = tokio::spawn({
        let client = Arc::clone(&client);
        async move {
            let file = client.open(FILE, OpenMode::Read).await.unwrap();
            client.read(&file, 0, 5).await.unwrap();
            file
        }
    });
    // The open may be registered twice: by itself and by the look at all open files after the start.
    loop {
        let (tag, request) = script.control.request().await;
        if request.call == (Call::Opened { fid: FILE }) {
            script.control.answer(tag, Answer::Done, &[]).await;
            continue;
        }
        assert!(matches!(request.call, Call::Fetch { .. }), "{request:?}");
        let (result, grants) = (Ok(Answer::Fetched(node(FILE, 1, 5))), vec![grant(FILE, Mode::Read, 1)]);
        let reply = Reply { result, grants, covered: Vec::new() };
        script.control.send(FrameKind::Reply, tag, &reply, Bytes::from_static(b"bytes")).await;
        break;
    }
    let file = asking.await.unwrap();
    let mut once = Some(Arc::clone(&client));
    *told.during.lock().unwrap() = Some(Box::new(move || {
        if let Some(client) = once.take() {
            assert_eq!(at_once(client.read(&file, 0, 5)).unwrap().to_bytes(), "bytes");
        }
    }));
    script.control.recall(FILE, 1, None).await;
    assert_eq!(script.control.acks().await[0].kept, None);
    assert_eq!(told.data.lock().unwrap().len(), 2);
}

/// The server looked the name up before it heard of what had been done here, and the answer came after that was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_not_answered_with_an_older_inode_than_was_seen_here() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    script.known_file(5).await;
    let client = Arc::clone(&script.client);
    let found = |version| Answer::Found { parent: attr(ROOT, 1, 0), node: Some(node(FILE, version, 1)) };
    let looking = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.lookup(ROOT, &name("other")).await })
    };
    let lookup = looking();
    let (tag, request) = script.control.request().await;
    assert!(matches!(request.call, Call::LookupStat { .. }), "{request:?}");
    script.control.answer(tag, found(0), &[]).await;
    let entry = lookup.await.unwrap().unwrap();
    assert_eq!(entry.node.unwrap().attr.version, Version(1), "of the cache");

    script.control.recall(FILE, 1, None).await;
    assert_eq!(script.control.acks().await.len(), 1);
    let lookup = looking();
    let (tag, _) = script.control.request().await;
    script.control.answer(tag, found(0), &[]).await;
    let (tag, request) = script.control.request().await;
    assert!(matches!(request.call, Call::Stat { .. }), "{request:?}");
    script.control.answer(tag, Answer::Node(node(FILE, 2, 1)), &[]).await;
    assert_eq!(lookup.await.unwrap().unwrap().node.unwrap().attr.version, Version(2));
}
