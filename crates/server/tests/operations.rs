//! What calls do, seen by one client and by two.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{Answer, Call, Failure, IfExists, Rename, Rest, Role, Unlink, WriteAt};
use soda_types::{Errno, Fid, FileKind, InUse, Ino, Mode};

#[tokio::test(flavor = "multi_thread")]
async fn files_are_created_written_read_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let home = client.mkdir(client.root, "home").await.unwrap();
    let file = client.create(home.fid, "file").await.unwrap();
    assert_eq!((file.attr.kind, file.attr.perm, file.attr.uid), (FileKind::File, 0o755, 1000));
    assert_eq!(client.create(home.fid, "file").await, Err(Errno::Exists));
    assert_eq!(client.write(file.fid, WriteAt::Offset(0), b"hello").await, Ok(0));
    assert_eq!(client.write(file.fid, WriteAt::End, b" world").await, Ok(5));
    assert_eq!(client.read(file.fid, 0, 100).await.unwrap(), "hello world");
    assert_eq!(client.lookup(home.fid, "file").await.unwrap().unwrap().attr.size, 11);
    assert_eq!(client.lookup(home.fid, "other").await, Ok(None));
    let removed = client.unlink(home.fid, "file", InUse::No).await.unwrap();
    assert_eq!((removed.fid, removed.attr.nlink), (file.fid, 0));
    assert!(!client.exists(file.fid).await);
    assert_eq!(client.unlink(home.fid, "file", InUse::No).await, Err(Errno::NoEntry));
    client.sync().await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_come_with_answers_of_the_control_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let reply = client.change(create(client.root, "file", FileKind::File)).await;
    let grants = reply.grants.clone();
    let file = node(reply).unwrap();
    assert_eq!(mode_on(&grants, client.root), Some(Mode::Write), "of the directory");
    assert_eq!(mode_on(&grants, file.fid), Some(Mode::Write), "of the new inode");
    let (data, _) = Connection::open(server.local_addr(), Role::Data(client.key()), drop).await.unwrap();
    let write = Call::Write { fid: file.fid, at: WriteAt::Offset(0), kill_suid_sgid: false };
    let payload = Bytes::from(vec![7; 1 << 20]);
    let (reply, _) = data.call(Some(client.next_op()), write, payload.clone()).await.unwrap();
    assert!(reply.result.is_ok() && reply.grants.is_empty());
    let read = Call::Read { fid: file.fid, offset: 0, len: 1 << 20 };
    let (reply, back) = data.call(None, read, Bytes::new()).await.unwrap();
    assert!(matches!(reply.result, Ok(Answer::Data { attr }) if attr.size == 1 << 20));
    assert_eq!(back, payload);
    // Names are changed on that one alone: what moves may need leases.
    for call in [
        create(client.root, "other", FileKind::File),
        Call::Link { fid: file.fid, parent: client.root, name: n("other") },
        Call::Unlink { parent: client.root, name: n("file"), what: Unlink::File { in_use: InUse::No } },
    ] {
        let (reply, _) = data.call(Some(client.next_op()), call, Bytes::new()).await.unwrap();
        assert!(matches!(reply.result, Err(Failure::Unsupported(_))), "{:?}", reply.result);
    }
    assert_eq!(client.lookup(client.root, "other").await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_recalled_before_a_writer_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let writer = Client::connect(&server).await;
    let file = writer.create(writer.root, "file").await.unwrap();
    writer.write(file.fid, WriteAt::Offset(0), b"old").await.unwrap();

    let reader = Client::connect_keeping_recalls(&server).await;
    let reply = reader.ask(Call::GetAttr { fid: file.fid }).await;
    assert_eq!(mode_on(&reply.grants, file.fid), Some(Mode::Read));

    let write = Call::Write { fid: file.fid, at: WriteAt::Offset(0), kill_suid_sgid: false };
    let op = writer.next_op();
    let (_, mut done) = writer.connection().send(Some(op), write, Bytes::from_static(b"new")).await;
    let recall = reader.next_recall().await;
    assert_eq!((recall.fid, recall.to), (file.fid, None));
    assert!(done.try_recv().is_err(), "the reader has not answered");
    assert_eq!(reader.read(file.fid, 0, 10).await.unwrap(), "old", "reads under the old lease go ahead");
    reader.answer_recall(&recall, InUse::No).await;
    assert!(done.await.unwrap().0.result.is_ok());
    assert_eq!(reader.read(file.fid, 0, 10).await.unwrap(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_move_and_are_exchanged() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let (a, b) =
        (client.mkdir(client.root, "a").await.unwrap(), client.mkdir(client.root, "b").await.unwrap());
    let one = client.create(a.fid, "one").await.unwrap();
    let two = client.create(b.fid, "two").await.unwrap();
    let rename = |from: (soda_types::Fid, &str), to: (soda_types::Fid, &str), how| {
        client.change(Call::Rename {
            parent: from.0,
            name: n(from.1),
            new_parent: to.0,
            new_name: n(to.1),
            how,
        })
    };
    let exchanged = rename((a.fid, "one"), (b.fid, "two"), Rename::Exchange).await;
    assert_eq!(node(exchanged).unwrap().fid, one.fid);
    assert_eq!(client.lookup(a.fid, "one").await.unwrap().unwrap().fid, two.fid);
    let refused = rename((a.fid, "one"), (b.fid, "two"), Rename::NoReplace).await;
    assert_eq!(errno(refused.result), Errno::Exists);
    let replaced = rename((a.fid, "one"), (b.fid, "two"), Rename::Plain { in_use: InUse::No }).await;
    assert_eq!(node(replaced).unwrap().fid, two.fid);
    assert!(!client.exists(one.fid).await);
    let circle = rename((client.root, "a"), (a.fid, "below"), Rename::Plain { in_use: InUse::No }).await;
    assert_eq!(errno(circle.result), Errno::Invalid);
    let moved = rename((client.root, "a"), (b.fid, "a"), Rename::Plain { in_use: InUse::No }).await;
    assert_eq!(node(moved).unwrap().fid, a.fid);
    let missing = rename((client.root, "a"), (b.fid, "a2"), Rename::Plain { in_use: InUse::No }).await;
    assert_eq!(errno(missing.result), Errno::NoEntry);
    let busy =
        client.change(Call::Unlink { parent: client.root, name: n("b"), what: Unlink::Directory }).await;
    assert_eq!(errno(busy.result), Errno::NotEmpty);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_read_in_pages_with_leases_on_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let maker = Client::connect(&server).await;
    let home = maker.mkdir(maker.root, "home").await.unwrap();
    let mut made = Vec::new();
    for index in 0..25 {
        made.push(maker.create(home.fid, &format!("f{index:02}")).await.unwrap());
    }
    let reader = Client::connect(&server).await;
    let (mut names, mut after, mut covered) = (Vec::new(), None, 0);
    loop {
        let reply = reader
            .ask(Call::ReadDir { dir: home.fid, after: after.clone(), limit: 10, next: Vec::new() })
            .await;
        let Ok(Answer::Entries(page, _)) = reply.result else { panic!("{reply:?}") };
        assert_eq!(page.parent, reader.root);
        assert_eq!(mode_on(&reply.grants, home.fid), Some(Mode::Read));
        covered += page.entries.iter().filter(|(_, node)| mode_on(&reply.grants, node.fid).is_some()).count();
        after = page.entries.last().map(|(name, _)| name.clone());
        names.extend(page.entries.iter().map(|(name, node)| (name.to_string(), node.fid)));
        if page.rest == Rest::End {
            break;
        }
    }
    let expected: Vec<_> =
        made.iter().enumerate().map(|(at, node)| (format!("f{at:02}"), node.fid)).collect();
    assert_eq!(names, expected);
    assert_eq!(
        covered, 0,
        "their maker has write leases on them, which nobody is asked to give up for a listing"
    );

    let own = maker.ask(Call::ReadDir { dir: home.fid, after: None, limit: 100, next: Vec::new() }).await;
    assert_eq!(own.grants.len(), 26, "the directory and 25 files");
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_are_likely_to_be_next_come_along_if_nobody_has_to_be_asked() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let maker = Client::connect(&server).await;
    let mut made = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let home = maker.mkdir(maker.root, name).await.unwrap().fid;
        let file = maker.create(home, "file").await.unwrap().fid;
        made.push((home, file));
    }
    let large = maker.mkdir(maker.root, "large").await.unwrap().fid;
    for index in 0..1024 {
        maker.create(large, &index.to_string()).await.unwrap();
    }
    maker.ask(Call::Goodbye).await;
    let [(a, _), (b, in_b), (c, _), (d, in_d)] = made[..] else { unreachable!() };
    let writer = Client::connect(&server).await;
    writer.create(c, "other").await.unwrap();

    let reader = Client::connect_keeping_recalls(&server).await;
    let gone = Fid::new(a.volume, Ino(a.ino.0 + 100_000));
    let next = vec![b, in_b, gone, large, c, b, d];
    let reply = reader.ask(Call::ReadDir { dir: a, after: None, limit: 100, next }).await;
    let Ok(Answer::Entries(page, next)) = &reply.result else { panic!("{reply:?}") };
    assert_eq!(page.entries.len(), 1);
    assert_eq!(next.iter().map(|(dir, _)| *dir).collect::<Vec<_>>(), [b, b, d], "one is being written to");
    for ((dir, page), file) in next.iter().zip([in_b, in_b, in_d]) {
        assert_eq!((page.parent, page.rest), (reader.root, Rest::End));
        assert_eq!(page.entries.iter().map(|(_, node)| node.fid).collect::<Vec<_>>(), [file]);
        for fid in [*dir, file] {
            assert_eq!(mode_on(&reply.grants, fid), Some(Mode::Read));
        }
    }
    // Who changes one of them asks for the lease that came along.
    let created = tokio::spawn(async move { writer.create(d, "new").await });
    let recall = reader.next_recall().await;
    assert_eq!(recall.asked(), d);
    reader.answer_recall(&recall, InUse::No).await;
    created.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_with_create_finds_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let open = |name: &str| {
        let mut new = new_node(FileKind::File);
        new.existing = IfExists::Open;
        Call::Create { parent: client.root, name: n(name), new }
    };
    let first = node(client.change(open("file")).await).unwrap();
    let second = node(client.change(open("file")).await).unwrap();
    assert_eq!(first.fid, second.fid);
    client.mkdir(client.root, "directory").await.unwrap();
    assert_eq!(errno(client.change(open("directory")).await.result), Errno::IsDirectory);
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_xattrs_space_and_copies() {
    use soda_protocol::{Allocate, SetXattr, Whence};
    use soda_types::SetAttr;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    client.write(file, WriteAt::Offset(1 << 20), b"data").await.unwrap();
    let seek = client.ask(Call::Seek { fid: file, offset: 0, whence: Whence::Data }).await;
    assert_eq!(seek.result, Ok(Answer::Offset(1 << 20)));
    let set = SetAttr { perm: Some(0o600), size: Some(10), ..SetAttr::default() };
    let set = node(client.change(Call::SetAttr { fid: file, set, owner: None }).await).unwrap();
    assert_eq!((set.attr.perm, set.attr.size), (0o600, 10));
    let xattr = Call::SetXattr {
        fid: file,
        name: b"user.x".to_vec(),
        value: b"value".to_vec(),
        how: SetXattr::Create,
        kill_sgid: false,
        owner: None,
    };
    assert_eq!(node(client.change(xattr.clone()).await).unwrap().xattrs, soda_protocol::XattrSummary::Some);
    assert_eq!(errno(client.change(xattr).await.result), Errno::Exists);
    let all = client.ask(Call::GetXattrs { fid: file }).await.result;
    assert_eq!(all, Ok(Answer::Xattrs(vec![(b"user.x".to_vec(), b"value".to_vec())])));
    let one = client.ask(Call::GetXattr { fid: file, name: b"user.y".to_vec() }).await.result;
    assert_eq!(errno(one), Errno::NoData);
    let grow =
        Call::Allocate { fid: file, offset: 0, len: 8192, how: Allocate::Extend, kill_suid_sgid: false };
    assert_eq!(node(client.change(grow).await).unwrap().attr.size, 8192);
    client.write(file, WriteAt::Offset(0), b"copy me").await.unwrap();
    let other = client.create(client.root, "other").await.unwrap().fid;
    let copy = Call::CopyRange {
        from: file,
        from_offset: 0,
        to: other,
        to_offset: 3,
        len: 7,
        kill_suid_sgid: false,
    };
    let copied = client.change(copy).await.result;
    assert!(matches!(copied, Ok(Answer::Written { offset: 3, len: 7, .. })), "{copied:?}");
    assert_eq!(client.read(other, 0, 100).await.unwrap(), "\0\0\0copy me");
    let link = Call::Link { fid: other, parent: client.root, name: n("link") };
    assert_eq!(node(client.change(link).await).unwrap().attr.nlink, 2);
    let stats = client.ask(Call::StatFs { fid: client.root }).await.result;
    assert!(matches!(stats, Ok(Answer::Stats(stats)) if stats.free_bytes > 0));
}
