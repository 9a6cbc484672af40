//! What `soda lease why` prints.

use super::here::tests::changes;
use super::*;
use soda_client::{OwnLease, Told, Why};
use soda_types::{Attr, Epoch, Fid, FileKind, Grant, Ino, Term, Timestamp, Version, VolumeId};

pub(super) fn fid() -> Fid {
    Fid::new(VolumeId(1), Ino(3))
}

fn attr() -> Attr {
    let epoch = Timestamp::new(0, 0);
    Attr {
        ino: Ino(3),
        kind: FileKind::File,
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 2048,
        allocated: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        btime: epoch,
        version: Version(1),
        data_version: Version(1),
    }
}

pub(super) fn why() -> WhyInfo {
    WhyInfo {
        fid: fid(),
        path: Some("/f".into()),
        attr: attr(),
        holders: Vec::new(),
        holes: Vec::new(),
        lock_delegate: None,
        waiting: Vec::new(),
        reads_per_s: 3.0,
        writes_per_s: 0.0,
        clients: 1,
        policy: "leases are given".into(),
    }
}

pub(super) fn explained(info: WhyInfo, changes: Option<ChangesView>) -> Explained {
    let file_locks = Some(LocksInfo::default());
    Explained { info: Some(info), file_locks, is_silent: false, sessions: Vec::new(), changes }
}

fn session(session: u64, left: Duration) -> SessionInfo {
    let name = String::new();
    SessionInfo {
        session: SessionId(session),
        name: name.clone(),
        peer: name,
        connected: 1,
        left,
        leases: 1,
        open: 0,
        locks: 0,
        backlog: None,
    }
}

#[test]
fn an_object_that_nobody_waits_for() {
    let text = explained(why(), None).text();
    let expected = "\
/f (file 1:3, 2.0 KiB)

Nobody waits for it.

Nobody holds a lease on it: whoever reads it asks the server.

lately  3.00 reads/s and 0.00 writes/s came to the server, from 1 client
policy  leases are given
";
    assert_eq!(text, expected);
}

#[test]
fn what_only_a_deep_lease_covers_is_not_said_to_be_without() {
    let lease = Some(OwnLease { scope: Scope::Subtree, mode: Mode::Write });
    let changes = Some(ChangesView { lease, ..changes() });
    let text = explained(why(), changes).text();
    assert!(text.contains("on it alone.") && !text.contains("asks the server."), "{text}");
    assert!(
        text.contains("\nlease   this machine has a deep write lease, on a directory above it\n"),
        "{text}"
    );
}

#[test]
fn whether_changes_are_told_later() {
    let text = |told, waiting| {
        let changes = Some(ChangesView { told, waiting, ..changes() });
        explained(why(), changes).text()
    };
    assert!(text(Told::Later, 0).contains("\nwrites  changes made here are told to the server later\n"));
    assert!(text(Told::Later, 1).contains("told to the server later; 1 change of it not told yet\n"));
    let at_once = text(Told::AtOnce(Why::Policy), 0);
    assert!(at_once.contains("go to the server at once: the mount has write=through"), "{at_once}");
    let last = Some(Why::Large);
    let large = changes_text(&ChangesView { last_at_once: last, ..changes() });
    let end = "\n        the last one went to the server at once: it was too large: so much data is faster by itself";
    assert!(large.ends_with(end), "{large}");
    let still =
        changes_text(&ChangesView { told: Told::AtOnce(Why::Large), last_at_once: last, ..changes() });
    assert!(!still.contains("the last one"), "{still}");
    let before = changes_text(&ChangesView { last_at_once: Some(Why::NoLease), ..changes() });
    assert!(before.ends_with(" at once: this machine had no write lease on it then"), "{before}");
    let changes = Some(ChangesView { waiting: 2, ..changes() });
    let made_here =
        Explained { info: None, file_locks: None, is_silent: false, sessions: Vec::new(), changes };
    assert!(made_here.text().starts_with("It was made here"));
    assert_eq!(
        serde_json::to_value(&made_here).unwrap(),
        serde_json::json!({ "file_locks": null, "changes": {
            "told": "later", "waiting": 2, "last_at_once": null, "lease": null, "locks": "server", "session": 1,
            "own_locks": [], "more_own_locks": 0,
        } })
    );
}

#[test]
fn without_the_server_what_the_mount_knows_is_said_before_the_failure() {
    let unreachable = || {
        let cause = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        Err(CliError::Unreachable { server: "h:1".into(), cause })
    };
    let lease = Some(OwnLease { scope: Scope::Node, mode: Mode::Write });
    let known = ChangesView { waiting: 2, lease, ..changes() };
    let (explained, end) = explain(unreachable(), Some(known)).unwrap();
    let text = explained.text();
    assert!(
        text.starts_with("What this machine knows of it by itself:\n\nlease   this machine has a write"),
        "{text}"
    );
    assert!(text.contains("; 2 changes of it not told yet\nlocks   "), "{text}");
    assert_eq!(end.unwrap_err().code(), 3);
    assert_eq!(explain(unreachable(), None).err().map(|error| error.code()), Some(3));
    let unknown = || Err(CliError::Failed("the server h:1: no such name".into()));
    assert!(explain(unknown(), Some(changes())).is_err());
    let (made_here, end) = explain(unknown(), Some(ChangesView { waiting: 1, ..changes() })).unwrap();
    assert!(made_here.text().starts_with("It was made here") && end.is_ok());
}

#[test]
fn who_waits_for_whom_and_for_how_long() {
    let wait = WaitInfo {
        session: SessionId(1),
        name: "one:/mnt".into(),
        operation: "write".into(),
        wants: Mode::Write,
        waited: Duration::from_millis(1500),
        blocked_by: vec![SessionId(2)],
        at_most: Some(Duration::from_secs(11)),
    };
    let info = WhyInfo {
        holders: vec![lease(2, "two:/mnt", Mode::Read, Some(Duration::from_millis(1500)))],
        waiting: vec![wait],
        writes_per_s: 2.0,
        clients: 2,
        ..why()
    };
    let sessions = vec![session(2, Duration::from_millis(2200))];
    let text = Explained { sessions, ..explained(info, None) }.text();
    let expected = "\
/f (file 1:3, 2.0 KiB)

one:/mnt waits to write: 1.5 s so far, at most 11.0 s more.
  To change it, nobody else may have it cached.
  two:/mnt was asked 1.5 s ago to give its read lease up, and has not answered.
    If it is gone: 2.2 s more.
    If it is there and does not answer: at most 11.0 s more.

HOLDER    LEASE  HELD FOR  RECALL               SESSION
two:/mnt  read      1m01s  no answer for 1.5 s  s2

lately  3.00 reads/s and 2.00 writes/s came to the server, from 2 clients: R/W 1.5, N-1 1
policy  leases are given
";
    assert_eq!(text, expected);
}

#[test]
fn leases_in_a_table() {
    let leases =
        [lease(1, "one:/mnt", Mode::Write, None), lease(12, "two:/mnt", Mode::Read, Some(Duration::ZERO))];
    let expected = "\
OBJECT  LEASE  HELD FOR  SESSION  HOLDER    RECALL             PATH
1:3     W e7      1m01s  s1       one:/mnt  -                  /f
1:3     R e7      1m01s  s12      two:/mnt  no answer for 0 s  /f
";
    assert_eq!(lease_table(&leases).to_string(), expected);
}

#[test]
fn a_deep_lease_says_how_far_it_reaches() {
    let node = lease(1, "build-7:/srv", Mode::Write, None);
    let grant = Grant { scope: Scope::Subtree, ..node.grant };
    let deep = LeaseInfo { grant, holes: 1, path: Some("/home".into()), ..node };
    assert_eq!(scope_text(&deep), format!("deep W {}, 1 hole", grant.epoch));
    assert_eq!(reach_text(&deep), "write, of all below /home; 1 hole");
    let nowhere = LeaseInfo { path: None, holes: 0, ..deep };
    assert_eq!(reach_text(&nowhere), format!("write, of all below {}; 0 holes", grant.fid));
}

#[test]
fn a_path_can_be_named_with_its_server() {
    let place = resolve(Path::new("h:1/main/a/b")).unwrap();
    assert_eq!((place.server.as_str(), &place.mount), ("h:1", &None));
    let names = vec![Name::try_from("a").unwrap(), Name::try_from("b").unwrap()];
    assert_eq!(place.object(), ObjectRef::Path { volume: "main".into(), names });
    assert!(resolve(Path::new("/etc/hostname")).is_err());
    assert!(resolve(Path::new("no/such/path")).is_err());
}

pub(super) fn lease(session: u64, holder: &str, mode: Mode, recalled_for: Option<Duration>) -> LeaseInfo {
    let grant = Grant { fid: fid(), scope: Scope::Node, mode, epoch: Epoch(7), term: Term::Session };
    LeaseInfo {
        holes: 0,
        grant,
        session: SessionId(session),
        holder: holder.into(),
        path: Some("/f".into()),
        recalled_for,
        held_for: Duration::from_secs(61),
    }
}
