//! Each kind of change without a message, and what makes digests begin.

use super::*;
use soda_client::Allocate;
use soda_types::{SetTime, Timestamp};

async fn node(client: &Arc<Client>, parent: Fid, text: &str, new: NewNode) -> Fid {
    client.create(parent, &name(text), new).await.unwrap().node.unwrap().fid
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rare_costs_no_message_either() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let (before, digests) = (sent(&a), a.stats().count("msg_digest"));
    let dir = mkdir(&a, a.root(), "d").await;
    let fifo = node(&a, dir, "fifo", new_node(FileKind::Fifo)).await;
    let device = node(&a, dir, "device", NewNode { rdev: 0x103, ..new_node(FileKind::CharDevice) }).await;
    let link = NewNode { target: b"to/where".to_vec(), ..new_node(FileKind::Symlink) };
    let link = node(&a, dir, "link", link).await;
    make(&a, dir, "replaced", "old").await;
    let replacing = make(&a, dir, "replacing", "new").await;
    a.rename(dir, &name("replacing"), dir, &name("replaced"), RenameHow::Plain).await.unwrap();
    let (left, right) = (make(&a, dir, "left", "l").await, mkdir(&a, dir, "right").await);
    a.rename(dir, &name("left"), dir, &name("right"), RenameHow::Exchange).await.unwrap();
    let under = make(&a, dir, "under", "u").await;
    let creds = Creds { uid: 5, gid: 6, pid: 7 };
    let whiteout = |existing| RenameHow::Whiteout { existing, creds };
    let (under_name, over) = (name("under"), name("over"));
    a.rename(dir, &under_name, dir, &over, whiteout(Replace::Refused)).await.unwrap();
    let covering = a.lookup(dir, &under_name).await.unwrap().node.unwrap();
    assert_eq!((covering.attr.kind, covering.attr.rdev, covering.attr.perm), (FileKind::CharDevice, 0, 0));
    assert_eq!((covering.attr.uid, covering.attr.gid), (5, 6));
    let taken = a.rename(dir, &under_name, dir, &over, whiteout(Replace::Refused)).await.unwrap_err();
    assert_eq!(taken.errno, Errno::Exists);
    a.setxattr(left, b"user.gone", b"1", SetXattr::Create, KillPriv::Keep).await.unwrap();
    a.removexattr(left, b"user.gone").await.unwrap();
    let (_, unnamed) = a.tmpfile(dir, new_node(FileKind::File), OpenMode::ReadWrite).await.unwrap();
    write(&a, &unnamed, 0, "named later").await;
    a.link(unnamed.fid(), dir, &name("named")).await.unwrap();
    let time = Some(SetTime::At(Timestamp::new(1_000_000_000, 5)));
    a.setattr(left, SetAttr { size: Some(9), ..SetAttr::default() }).await.unwrap();
    a.setattr(left, SetAttr { atime: time, mtime: time, ..SetAttr::default() }).await.unwrap();
    assert_eq!((sent(&a), a.stats().count("msg_digest")), (before, digests), "{:?}", a.stats());
    let all = [
        ("fifo", fifo),
        ("device", device),
        ("link", link),
        ("replaced", replacing),
        ("left", right),
        ("over", under),
        ("under", covering.fid),
        ("right", left),
        ("named", unnamed.fid()),
    ];
    for (text, fid) in all {
        let mine = a.getattr(fid).await.unwrap().value;
        assert_eq!(find(&b, &["d", text]).await, Some(fid), "{text}");
        let theirs = b.getattr(fid).await.unwrap().value;
        let shown = Attr { version: theirs.version, data_version: theirs.data_version, ..mine };
        assert_eq!(theirs, Attr { allocated: theirs.allocated, ..shown }, "{text}");
    }
    assert_eq!(find(&b, &["d", "replacing"]).await, None);
    assert_eq!(b.readlink(link).await.unwrap(), b"to/where"[..]);
    assert_eq!(contents(&b, &["d", "named"]).await, "named later");
    assert_eq!(contents(&b, &["d", "right"]).await, "l\0\0\0\0\0\0\0\0");
    assert_eq!(b.getxattr(left, b"user.gone").await.unwrap_err().errno, Errno::NoData);
}

/// Changes of each kind, of what the server has been told of already: one node of each kind, made and told before.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_knows_is_changed_without_a_message_too() {
    let cell = Cell::deep();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    let (left, right) = (mkdir(&a, dir, "left").await, mkdir(&a, dir, "right").await);
    for (text, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket), ("link", FileKind::Symlink)]
    {
        let target = if kind == FileKind::Symlink { b"x".to_vec() } else { Vec::new() };
        node(&a, dir, text, NewNode { target, ..new_node(kind) }).await;
    }
    for text in
        ["removed", "replaced", "replacing", "away", "linked", "swapped", "cut", "grown", "holed", "open"]
    {
        make(&a, dir, text, "0123456789").await;
    }
    mkdir(&a, dir, "empty").await;
    let fid_of = async |text: &str| find(&a, &["d", text]).await.unwrap();
    let (linked, cut, grown, holed) =
        (fid_of("linked").await, fid_of("cut").await, fid_of("grown").await, fid_of("holed").await);
    a.setxattr(linked, b"user.a", b"1", SetXattr::Create, KillPriv::Keep).await.unwrap();
    a.sync_all().await.unwrap();
    let (before, digests) = (sent(&a), a.stats().count("msg_digest"));
    let mut last = before;
    let mut costs = |what: &str| {
        let now = sent(&a);
        assert_eq!(now - std::mem::replace(&mut last, now), 0, "{what}: {:?}", a.stats());
    };
    for text in ["removed", "fifo", "socket", "link"] {
        a.unlink(dir, &name(text)).await.unwrap();
        costs(text);
    }
    a.rmdir(dir, &name("empty")).await.unwrap();
    costs("rmdir");
    a.rename(dir, &name("replacing"), dir, &name("replaced"), RenameHow::Plain).await.unwrap();
    costs("rename over a file");
    a.rename(dir, &name("away"), left, &name("away"), RenameHow::Plain).await.unwrap();
    costs("rename into another directory");
    a.rename(dir, &name("left"), right, &name("left"), RenameHow::Plain).await.unwrap();
    costs("a directory into another one");
    a.rename(dir, &name("swapped"), dir, &name("right"), RenameHow::Exchange).await.unwrap();
    costs("exchange");
    a.link(linked, right, &name("second")).await.unwrap();
    costs("link");
    a.setxattr(linked, b"user.a", b"2", SetXattr::Replace, KillPriv::Keep).await.unwrap();
    a.setxattr(linked, b"user.b", b"3", SetXattr::Create, KillPriv::Keep).await.unwrap();
    a.removexattr(linked, b"user.a").await.unwrap();
    costs("extended attributes");
    let time = Some(SetTime::At(Timestamp::new(1_000_000_000, 5)));
    a.setattr(linked, SetAttr { atime: time, mtime: time, ..SetAttr::default() }).await.unwrap();
    a.setattr(linked, SetAttr { perm: Some(0o600), uid: Some(7), gid: Some(8), ..SetAttr::default() })
        .await
        .unwrap();
    a.setattr(right, SetAttr { perm: Some(0o700), ..SetAttr::default() }).await.unwrap();
    costs("attributes");
    a.setattr(cut, SetAttr { size: Some(3), ..SetAttr::default() }).await.unwrap();
    a.setattr(grown, SetAttr { size: Some(12), ..SetAttr::default() }).await.unwrap();
    costs("sizes");
    let file = a.open(holed, OpenMode::ReadWrite).await.unwrap();
    a.fallocate(&file, 2, 3, Allocate::PunchHole, KillPriv::Keep).await.unwrap();
    a.fallocate(&file, 6, 2, Allocate::ZeroRange, KillPriv::Keep).await.unwrap();
    a.fallocate(&file, 0, 20, Allocate::Extend, KillPriv::Keep).await.unwrap();
    costs("fallocate");
    write(&a, &file, 1, "w").await;
    costs("write");
    let opened = a.open(fid_of("open").await, OpenMode::ReadWrite).await.unwrap();
    a.unlink(dir, &name("open")).await.unwrap();
    write(&a, &opened, 0, "still").await;
    costs("unlink and write of an open file");
    assert_eq!(a.stats().count("msg_digest"), digests, "{:?}", a.stats());
    assert_eq!(read(&a, &opened).await, "still56789");

    for gone in ["removed", "fifo", "socket", "link", "empty", "replacing", "away", "left", "open"] {
        assert_eq!(find(&b, &["d", gone]).await, None, "{gone}");
    }
    assert_eq!(find(&b, &["d", "swapped", "second"]).await, Some(linked));
    assert_eq!(contents(&b, &["d", "swapped", "left", "away"]).await, "0123456789");
    let theirs = b.getattr(linked).await.unwrap().value;
    let shown = (theirs.nlink, theirs.perm, theirs.uid, theirs.gid, theirs.mtime);
    assert_eq!(shown, (2, 0o600, 7, 8, Timestamp::new(1_000_000_000, 5)));
    assert_eq!(b.listxattr(linked).await.unwrap(), [b"user.b".to_vec()]);
    assert_eq!(contents(&b, &["d", "cut"]).await, "012");
    assert_eq!(contents(&b, &["d", "grown"]).await, "0123456789\0\0");
    assert_eq!(contents(&b, &["d", "holed"]).await, format!("0w\0\0\05\0\089{}", "\0".repeat(10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_file_skips_is_known_to_be_zeros() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let new = new_node(FileKind::File);
    let (_, file) = a.create_open(a.root(), &name("gaps"), new, OpenMode::ReadWrite).await.unwrap();
    let before = (sent(&a), a.stats().count("msg_digest"));
    write(&a, &file, 100, "start").await;
    write(&a, &file, 300_000, vec![b'x'; 50_000]).await;
    a.setattr(file.fid(), SetAttr { size: Some(400_000), ..SetAttr::default() }).await.unwrap();
    a.fallocate(&file, 310_000, 10_000, Allocate::PunchHole, KillPriv::Keep).await.unwrap();
    a.fallocate(&file, 500_000, 1000, Allocate::Extend, KillPriv::Keep).await.unwrap();
    a.fallocate(&file, 600_000, 1000, Allocate::ZeroRange, KillPriv::Keep).await.unwrap();
    write(&a, &file, 610_000, "end").await;
    let mut expected = vec![0; 610_003];
    expected[100..105].copy_from_slice(b"start");
    expected[300_000..310_000].fill(b'x');
    expected[320_000..350_000].fill(b'x');
    expected[610_000..].copy_from_slice(b"end");
    assert!(read(&a, &file).await == expected, "before it is told");
    assert_eq!((sent(&a), a.stats().count("msg_digest")), before);
    let theirs = open(&b, "gaps").await;
    assert!(read(&b, &theirs).await == expected, "elsewhere");
    assert!(read(&a, &file).await == expected, "afterwards");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_before_it_is_told_is_never_told() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let before = a.stats();
    let dir = mkdir(&a, a.root(), "short").await;
    make(&a, dir, "lived", "nobody will ever see this").await;
    a.unlink(dir, &name("lived")).await.unwrap();
    a.rmdir(a.root(), &name("short")).await.unwrap();
    a.sync_all().await.unwrap();
    let after = a.stats();
    let grown = |name: &str| after.count(name) - before.count(name);
    // The times of the root are left.
    assert_eq!((grown("digested"), grown("coalesced")), (5, 4), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_told_early_of_much() {
    let cell = Cell::start();
    let (max_age, digest_bytes) = (Duration::from_secs(3600), 1 << 20);
    let early = WritePolicy::Behind(WriteBehind { max_age, digest_bytes, ..WriteBehind::default() });
    let a = writer_with(ClientConfig { write: early, ..cell.client_config() }).await;
    let count = |what: &str| a.stats().count(what);
    let digests = || count("msg_digest");
    let now = || (digests(), count("here"), count("msg_create"));
    let mut before = now();
    for number in 0.. {
        assert!(number < 20_000, "no digest of many changes: {:?}", a.stats());
        make(&a, a.root(), &number.to_string(), "x").await;
        // Where numbers run out some go through, and have all told before.
        if count("msg_create") > before.2 {
            before = now();
        } else if digests() > before.0 {
            break;
        }
    }
    let alone = count("here") - before.1;
    assert!(alone < 2_000, "{alone} changes were not told: {:?}", a.stats());
    a.sync_all().await.unwrap();
    let before = digests();
    let fid = make(&a, a.root(), "long", "").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    for part in 0..8 {
        write(&a, &file, part << 17, vec![1; 1 << 17]).await;
    }
    wait_until("a digest of many bytes", || async { digests() > before }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_writes_more_than_may_wait_waits_and_memory_is_bounded() {
    let cell = Cell::syncing_when_asked();
    let behind = WriteBehind {
        max_age: Duration::from_secs(3600),
        max_bytes: 64 << 10,
        largest_write: 16 << 10,
        ..WriteBehind::default()
    };
    let config = ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() };
    let a = writer_with(config).await;
    let before = a.stats();
    let fid = make(&a, a.root(), "long", "").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    for part in 0..64 {
        write(&a, &file, part << 14, vec![part as u8; 16 << 10]).await;
        let backlog = a.session().backlog;
        assert!(backlog.bytes <= 96 << 10, "{backlog:?}");
    }
    let after = a.stats();
    let grown = |name: &str| after.count(name) - before.count(name);
    assert!(grown("log_full") > 0 && grown("msg_sync") > 0, "{after:?}");
    assert!(grown("here") >= 65, "{after:?}");
    let b = cell.client().await;
    let file = open(&b, "long").await;
    let theirs = read(&b, &file).await;
    assert!(
        theirs.len() == 1 << 20 && theirs.chunks(16 << 10).zip(0..).all(|(part, number)| part[0] == number)
    );
}

/// What RENAME_WHITEOUT does, made here and at once at the server, over what is there and not, told and not told.
#[tokio::test(flavor = "multi_thread")]
async fn a_rename_that_leaves_a_whiteout_is_the_same_here_and_at_the_server() {
    let cell = Cell::start();
    let (here, through) = (writer(&cell).await, cell.client().await);
    let creds = Creds { uid: 5, gid: 6, pid: 7 };
    let replace = RenameHow::Whiteout { existing: Replace::Allowed, creds };
    for (client, top) in [(&here, "here"), (&through, "through")] {
        let top = mkdir(client, client.root(), top).await;
        let (from, to) = (mkdir(client, top, "from").await, mkdir(client, top, "to").await);
        for text in ["new", "again", "gone"] {
            make(client, from, text, text).await;
        }
        make(client, to, "again", "old").await;
        mkdir(client, from, "tree").await;
        for text in ["new", "again", "gone", "tree"] {
            client.rename(from, &name(text), to, &name(text), replace).await.unwrap();
        }
        // What was moved away from under a whiteout goes, and so does a whiteout, all in one digest.
        client.unlink(to, &name("gone")).await.unwrap();
        client.unlink(from, &name("new")).await.unwrap();
        let nothing = client.rename(from, &name("new"), to, &name("x"), replace).await.unwrap_err();
        assert_eq!(nothing.errno, Errno::NoEntry);
        client.rename(from, &name("again"), from, &name("moved"), replace).await.unwrap();
    }
    here.sync_all().await.unwrap();
    let other = cell.client().await;
    let mut shown = Vec::new();
    for client in [&here, &other] {
        for top in ["here", "through"] {
            let mut names = Vec::new();
            for (dir, text) in ["new", "again", "gone", "tree", "moved"]
                .iter()
                .flat_map(|text| [("from", text), ("to", text)])
            {
                let Some(fid) = find(client, &[top, dir, text]).await else { continue };
                let attr = client.getattr(fid).await.unwrap().value;
                names.push((dir, *text, attr.kind, attr.rdev, attr.perm, attr.uid, attr.gid, attr.nlink));
            }
            for dir in ["from", "to"] {
                let attr = client.getattr(find(client, &[top, dir]).await.unwrap()).await.unwrap().value;
                names.push((dir, "", attr.kind, 0, attr.perm, attr.uid, attr.gid, attr.nlink));
            }
            shown.push(names);
        }
    }
    assert!(shown.iter().all(|names| *names == shown[0]), "{shown:#?}");
    assert_eq!(shown[0].len(), 2 + 4 + 3, "{shown:#?}");
    assert_eq!(contents(&other, &["here", "to", "again"]).await, "again");
}
