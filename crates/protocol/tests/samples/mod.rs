//! At least one message of every variant. A new variant does not compile until it is listed here, and the test
//! `every_variant_has_a_sample` fails until it has a sample.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[allow(dead_code, reason = "for tests that damage samples")]
pub(crate) mod numbers;
mod parts;

use parts::{attr, backlog, covered, grant, lock, lock_holder};
#[allow(unused_imports, reason = "for tests that use samples of their own")]
pub(crate) use parts::{fid, name};

use soda_protocol::*;
use soda_types::*;
use std::collections::BTreeSet;
use std::time::Duration;

macro_rules! variants {
    ($names:ident, $name_of:ident, $of:ty { $($variant:ident),* $(,)? }) => {
        const $names: &[&str] = &[$(stringify!($variant)),*];
        fn $name_of(message: &$of) -> &'static str {
            type Of = $of;
            match message { $(Of::$variant { .. } => stringify!($variant)),* }
        }
    };
}

variants!(
    CALLS,
    call_name,
    Call {
        Hello,
        Renew,
        Reclaim,
        Goodbye,
        Lookup,
        GetAttr,
        ReadLink,
        ReadDir,
        GetXattrs,
        GetXattr,
        Read,
        Seek,
        StatFs,
        Create,
        Link,
        Unlink,
        Rename,
        TmpFile,
        SetAttr,
        Write,
        Allocate,
        CopyRange,
        SetXattr,
        RemoveXattr,
        Sync,
        Digest,
        Reserve,
        Opened,
        LockTest,
        LockSet,
        LockRelease,
        Admin,
        Layout,
        Stat,
        LookupStat,
        LockReturn,
        Fetch,
    }
);
variants!(
    ANSWERS,
    answer_name,
    Answer {
        Done,
        Welcome,
        Reclaimed,
        Found,
        Node,
        Target,
        Entries,
        Xattrs,
        Xattr,
        Data,
        Offset,
        Stats,
        Changed,
        Written,
        Digested,
        Reserved,
        Conflict,
        Admin,
        Layout,
        Described,
        Named,
        Delegated,
        Fetched,
    }
);
variants!(
    FAILURES,
    failure_name,
    Failure { Fs, SessionEnded, Grace, Unsupported, Refused, OldSequence, Digest, Busy, InTheWay, OutOfTurn }
);
variants!(PUSHES, push_name, Push { Recalls, Stopping, Inquiries, RecallLocks });
variants!(
    NOTES,
    note_name,
    Note { RecallAcks, Release, RecallProgress, Closed, Cancel, InquiryAnswers, Backlog }
);
variants!(ROLES, role_name, Role { Control, Data, Admin });
variants!(
    ADMIN_CALLS,
    admin_call_name,
    AdminCall { Status, Stats, Leases, Why, Busiest, Writers, Locks, Paths }
);
variants!(
    ADMIN_ANSWERS,
    admin_answer_name,
    AdminAnswer { Status, Stats, Leases, Why, Busiest, Writers, Locks, Paths }
);

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message {
    Request(Request),
    Reply(Reply),
    Push(Push),
    Note(Note),
}

impl Message {
    pub(crate) fn kind(&self) -> FrameKind {
        match self {
            Message::Request(_) => FrameKind::Request,
            Message::Reply(_) => FrameKind::Reply,
            Message::Push(_) => FrameKind::Push,
            Message::Note(_) => FrameKind::Note,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Message::Request(message) => postcard::to_stdvec(message),
            Message::Reply(message) => postcard::to_stdvec(message),
            Message::Push(message) => postcard::to_stdvec(message),
            Message::Note(message) => postcard::to_stdvec(message),
        }
        .unwrap()
    }

    pub(crate) fn decode(frame: &Frame) -> Result<Message, FrameError> {
        Ok(match frame.kind {
            FrameKind::Request => Message::Request(frame.message()?),
            FrameKind::Reply => Message::Reply(frame.message()?),
            FrameKind::Push => Message::Push(frame.message()?),
            FrameKind::Note => Message::Note(frame.message()?),
        })
    }
}

/// What has no sample.
pub(crate) fn missing() -> Vec<String> {
    let mut seen = BTreeSet::new();
    for message in samples() {
        match message {
            Message::Request(Request { call, .. }) => {
                seen.insert(call_name(&call));
                match call {
                    Call::Hello(hello) => drop(seen.insert(role_name(&hello.role))),
                    Call::Admin(call) => drop(seen.insert(admin_call_name(&call))),
                    _ => {}
                }
            }
            Message::Reply(Reply { result: Ok(answer), .. }) => {
                seen.insert(answer_name(&answer));
                if let Answer::Admin(answer) = answer {
                    seen.insert(admin_answer_name(&answer));
                }
            }
            Message::Reply(Reply { result: Err(failure), .. }) => drop(seen.insert(failure_name(&failure))),
            Message::Push(push) => drop(seen.insert(push_name(&push))),
            Message::Note(note) => drop(seen.insert(note_name(&note))),
        }
    }
    let kinds = [CALLS, ANSWERS, FAILURES, PUSHES, NOTES, ROLES, ADMIN_CALLS, ADMIN_ANSWERS];
    let missing = kinds.into_iter().flatten().filter(|name| !seen.contains(**name));
    missing.map(ToString::to_string).collect()
}

pub(crate) fn samples() -> Vec<Message> {
    let op = Some(OpId { slot: Slot(3), sequence: Sequence(9) });
    let calls = calls().into_iter().map(|call| Request { op: None, call });
    let changes = changes().into_iter().map(|call| Request { op, call });
    let requests = calls.chain(changes).map(Message::Request);
    let replies = answers().into_iter().map(Ok).chain(failures().into_iter().map(Err));
    let replies = replies
        .map(|result| Message::Reply(Reply { result, grants: vec![grant()], covered: vec![covered()] }));
    let asked = vec![Inquiry { number: u64::MAX, fid: fid(1) }; 3];
    let locks = Push::RecallLocks(vec![(fid(5), Epoch(9))]);
    let pushes = [Push::Stopping, Push::Recalls(recalls()), Push::Inquiries(asked), locks].map(Message::Push);
    let acks = vec![RecallAck {
        fid: fid(1),
        epoch: Epoch(7),
        kept: Some(Mode::Read),
        in_use: InUse::Yes,
        uses: 5,
        part: Some(LeasePart::tree(fid(1))),
    }];
    let notes = [
        Note::RecallAcks(acks.clone()),
        Note::Release(acks),
        Note::RecallProgress(vec![fid(1)]),
        Note::Closed(vec![fid(1); 40]),
        Note::Cancel(u64::MAX),
        Note::Backlog(backlog()),
        Note::InquiryAnswers(vec![
            InquiryAnswer { number: 7, node: Some(node()) },
            InquiryAnswer { number: 8, node: None },
        ]),
    ];
    requests.chain(replies).chain(pushes).chain(notes.map(Message::Note)).collect()
}

fn calls() -> Vec<Call> {
    let (client, session) = (ClientId([7; 16]), SessionKey { session: SessionId(4), secret: [1; 16] });
    let control = Role::Control {
        client,
        name: "host:/mnt".into(),
        volume: "main".into(),
        resume: Some(session),
        lease_term: Some(ObjectTerm::For(Duration::from_secs(3))),
        widest_lease: Scope::Subtree,
        lease_wait: LeaseWait::Polling,
    };
    let hello = |role| {
        Call::Hello(Hello {
            protocol_min: PROTOCOL_VERSION_MIN,
            protocol_max: PROTOCOL_VERSION,
            software: "test".into(),
            credentials: Credentials::None,
            role,
        })
    };
    let (fid, other) = (fid(5), fid(6));
    let path = ObjectRef::Path { volume: "main".into(), names: vec![name("a"), name("b")] };
    vec![
        hello(control),
        hello(Role::Data(session)),
        hello(Role::Admin),
        Call::Renew,
        Call::Reclaim(Reclaim {
            leases: vec![(grant(), Version(3)); 20],
            open: vec![fid, other],
            locks: vec![(fid, lock())],
            step: ReclaimStep::More,
        }),
        Call::Goodbye,
        Call::Lookup { parent: fid, name: name("a") },
        Call::GetAttr { fid },
        Call::ReadLink { fid },
        Call::ReadDir { dir: fid, after: Some(name("b")), limit: 1000, next: vec![other; 3] },
        Call::GetXattrs { fid },
        Call::GetXattr { fid, name: b"user.a".to_vec() },
        Call::Read { fid, offset: u64::MAX, len: MAX_IO },
        Call::Seek { fid, offset: 1, whence: Whence::Hole },
        Call::StatFs { fid },
        Call::Layout { fid, offset: 4096, most: MAX_LAYOUT },
        Call::Stat { fid },
        Call::LookupStat { parent: fid, name: name("a") },
        Call::Fetch { fid, most: MAX_IO, known: None, holder: FromHolder::Attributes },
        Call::Fetch { fid, most: 1, known: Some(Version(7)), holder: FromHolder::Lease },
        Call::Sync { fid, after: None },
        Call::Sync { fid, after: Some(OpId { slot: Slot(63), sequence: Sequence(u64::MAX) }) },
        Call::Reserve { inodes: 4096, bytes: 1 << 26 },
        Call::Opened { fid },
        Call::LockTest { fid, lock: lock() },
        Call::LockSet { fid, lock: lock(), wait: LockWait::Yes, delegable: Delegable::Yes },
        Call::LockRelease { fid, lock: lock() },
        Call::LockReturn { fid, epoch: Epoch(9), locks: Some(vec![lock(); 3]) },
        Call::LockReturn { fid, epoch: Epoch(9), locks: None },
        Call::Admin(AdminCall::Status),
        Call::Admin(AdminCall::Stats),
        Call::Admin(AdminCall::Leases { of: Some(path), limit: 10 }),
        Call::Admin(AdminCall::Why(ObjectRef::Fid(fid))),
        Call::Admin(AdminCall::Busiest { limit: 10 }),
        Call::Admin(AdminCall::Writers(vec![fid])),
        Call::Admin(AdminCall::Locks { of: ObjectRef::Fid(fid), limit: 10 }),
        Call::Admin(AdminCall::Paths(vec![fid])),
    ]
}

fn changes() -> Vec<Call> {
    let (fid, parent) = (fid(5), fid(1));
    let new = NewNode {
        kind: FileKind::Symlink,
        perm: 0o777,
        umask: 0o022,
        rdev: 0,
        target: b"somewhere".to_vec(),
        creds: Creds { uid: 1, gid: 2, pid: 3 },
        existing: IfExists::Open,
        open: InUse::Yes,
    };
    let at = SetTime::At(Timestamp::new(-5, 999_999_999));
    let set = SetAttr { perm: Some(0o4755), size: Some(1 << 40), mtime: Some(at), ..SetAttr::default() };
    vec![
        Call::Create { parent, name: name("new"), new: new.clone() },
        Call::Link { fid, parent, name: name("b") },
        Call::Unlink { parent, name: name("b"), what: Unlink::File { in_use: InUse::Yes } },
        Call::Unlink { parent, name: name("b"), what: Unlink::Untold },
        Call::Rename {
            parent,
            name: name("old"),
            new_parent: fid,
            new_name: name("new"),
            how: Rename::Plain { in_use: InUse::Yes },
        },
        Call::TmpFile { parent, new },
        Call::SetAttr { fid, set, owner: Some(1000) },
        Call::Write { fid, at: WriteAt::Offset(77), kill_suid_sgid: true },
        Call::Write { fid, at: WriteAt::Pages(4096), kill_suid_sgid: false },
        Call::Allocate { fid, offset: 1, len: 2, how: Allocate::ZeroRangeKeepSize, kill_suid_sgid: true },
        Call::CopyRange { from: fid, from_offset: 1, to: parent, to_offset: 2, len: 3, kill_suid_sgid: true },
        Call::SetXattr {
            fid,
            name: b"user.a".to_vec(),
            value: vec![9; 300],
            how: SetXattr::Replace,
            kill_sgid: true,
            owner: None,
        },
        Call::RemoveXattr { fid, name: b"user.a".to_vec(), owner: Some(1000) },
        Call::Digest {
            records: records(),
            data: vec![0, 1 << 20],
            versions: vec![(fid, Version(1 << 44), Version(3))],
            after: Some(OpId { slot: Slot(55), sequence: Sequence(1 << 40) }),
            locks: vec![fid],
        },
    ]
}

/// One of each kind of change.
fn records() -> Vec<Record> {
    let new = NewNode {
        kind: FileKind::File,
        perm: 0o644,
        umask: 0o022,
        rdev: 0,
        target: Vec::new(),
        creds: Creds { uid: 1, gid: 2, pid: 3 },
        existing: IfExists::Fail,
        open: InUse::No,
    };
    let place = |text| Place { directory: fid(1), name: name(text) };
    let fid = fid(5);
    let changes = [
        Change::Create { place: place("a"), fid, new: new.clone() },
        Change::TmpFile { directory: fid, fid, new },
        Change::Link { fid, place: place("b") },
        Change::Unlink { place: place("b"), fid, then: Fate::Stays },
        Change::RemoveDirectory { place: place("c"), fid },
        Change::Rename {
            from: place("a"),
            to: place("d"),
            moved: fid,
            what: Moved::Subtree,
            replaced: Some((fid, Fate::Gone)),
        },
        Change::Exchange { one: (place("a"), fid), other: (place("b"), fid), what: Moved::Leaf },
        Change::Release { fid },
        Change::SetAttr { fid, set: SetAttr { perm: Some(0o600), ..SetAttr::default() } },
        Change::Write { fid, offset: 1 << 40, data: vec![7; 5000].into(), kill_suid_sgid: true },
        Change::Allocate { fid, offset: 1, len: 2, how: Allocate::PunchHole },
        Change::SetXattr {
            fid,
            name: b"user.a".to_vec(),
            value: vec![9; 300].into(),
            how: SetXattr::Either,
            kill_sgid: false,
        },
        Change::RemoveXattr { fid, name: b"user.a".to_vec() },
        Change::Whiteout {
            from: place("a"),
            to: place("d"),
            moved: fid,
            what: Moved::Leaf,
            replaced: Some((fid, Fate::Stays)),
            left: (fid, Creds { uid: 1, gid: 2, pid: 3 }),
        },
    ];
    let record = |(lsn, change)| Record { lsn: Lsn(lsn), at: Timestamp::new(-5, 999_999_999), change };
    (1..).zip(changes).map(record).collect()
}

fn node() -> Node {
    Node { fid: fid(5), attr: attr(), xattrs: XattrSummary::Some }
}

fn answers() -> Vec<Answer> {
    let node = node();
    let session = SessionWelcome {
        key: SessionKey { session: SessionId(4), secret: [1; 16] },
        standing: Standing::Reclaim,
        root: fid(1),
        term: Duration::from_secs(10),
        slots: 64,
        max_io: MAX_IO,
        stored: vec![(Slot(0), Sequence(5)), (Slot(63), Sequence(u64::MAX))],
        calendar: Timestamp::new(-5, 999_999_999),
    };
    let welcome = Welcome {
        protocol: PROTOCOL_VERSION,
        software: "test".into(),
        boot: [9; 16],
        session: Some(session),
    };
    let page =
        DirPage { dir: attr(), parent: fid(1), entries: vec![(name("a"), node); 30], rest: Rest::More };
    let mut answers = vec![
        Answer::Done,
        Answer::Welcome(welcome),
        Answer::Reclaimed { leases: vec![Some(grant()), None], refused_locks: vec![(fid(2), lock())] },
        Answer::Found { parent: attr(), node: Some(node) },
        Answer::Node(node),
        Answer::Target(b"target".to_vec()),
        Answer::Entries(page.clone(), vec![(fid(2), page)]),
        Answer::Xattrs(vec![(b"user.a".to_vec(), vec![0; 300])]),
        Answer::Xattr(vec![0; 300]),
        Answer::Data { attr: attr() },
        Answer::Offset(1 << 50),
        Answer::Stats(FsStats { total_bytes: 9, free_bytes: 8, total_inodes: 7, free_inodes: 6 }),
        Answer::Changed { node: Some(node), others: vec![(fid(1), attr())] },
        Answer::Written { offset: 1, len: 2, attr: attr() },
        Answer::Digested { attrs: vec![(fid(5), attr())] },
        Answer::Reserved { first: Ino(900), count: 4096, bytes: 1 << 26, version: Version(1 << 44) },
        Answer::Conflict(Some(lock())),
        Answer::Delegated(Epoch(9)),
        Answer::Layout(Layout { data: vec![4096..8192, 1 << 40..1 << 41], until: 1 << 41, size: 1 << 42 }),
        Answer::Described(node),
        Answer::Fetched(node),
        Answer::Named { parent: attr(), fid: fid(5), kind: FileKind::File },
    ];
    answers.extend(admin_answers().into_iter().map(Answer::Admin));
    answers
}

fn admin_answers() -> Vec<AdminAnswer> {
    let second = Duration::from_secs(1);
    let lease = LeaseInfo {
        holes: 3,
        grant: grant(),
        session: SessionId(4),
        holder: "host:/mnt".into(),
        path: Some("/a".into()),
        recalled_for: Some(second),
        held_for: second,
    };
    let wait = WaitInfo {
        session: SessionId(4),
        name: "host:/mnt".into(),
        operation: "unlink".into(),
        wants: Mode::Write,
        waited: second,
        blocked_by: vec![SessionId(5)],
        at_most: Some(second),
    };
    let session = SessionInfo {
        session: SessionId(4),
        name: "host:/mnt".into(),
        peer: "127.0.0.1:1".into(),
        connected: 2,
        left: second,
        leases: 3,
        open: 4,
        locks: 5,
        backlog: Some(SessionBacklog { said: backlog(), ago: second }),
    };
    let hole = HoleInfo {
        session: SessionId(4),
        holder: "host:/mnt".into(),
        root: fid(2),
        path: Some("/home".into()),
        mode: Mode::Write,
        kept: Some(Mode::Read),
    };
    let delegate =
        DelegateInfo { session: SessionId(4), name: "host:/mnt".into(), recalled_for: Some(second) };
    vec![
        AdminAnswer::Status(ServerStatus {
            software: "test".into(),
            started: Timestamp::new(1, 2),
            uptime: second,
            data_dir: "/data".into(),
            listen: "127.0.0.1:1".into(),
            term: second,
            grace: Some(second),
            volumes: vec![("main".into(), FsStats::default())],
            sessions: vec![session],
            leases: 1,
            waiting: 2,
            stopped: Some("the disk".into()),
        }),
        AdminAnswer::Stats(vec![("calls.read".into(), 5)]),
        AdminAnswer::Leases(vec![lease.clone()]),
        AdminAnswer::Why(Box::new(WhyInfo {
            fid: fid(5),
            path: None,
            attr: attr(),
            holders: vec![lease],
            holes: vec![hole],
            lock_delegate: Some(delegate),
            waiting: vec![wait],
            reads_per_s: 0.5,
            writes_per_s: f64::MAX,
            clients: 2,
            policy: "a lease".into(),
        })),
        AdminAnswer::Busiest(vec![ObjectUse {
            fid: fid(5),
            path: Some("/a".into()),
            reads_per_s: 0.5,
            writes_per_s: f64::MAX,
            clients: 2,
            is_leased: true,
        }]),
        AdminAnswer::Writers(vec![1, u32::MAX]),
        AdminAnswer::Locks(LocksInfo {
            held: vec![lock_holder()],
            more_held: u64::MAX,
            waiting: vec![LockWaitInfo {
                session: SessionId(5),
                name: "other:/mnt".into(),
                operation: "lockset".into(),
                wants: lock(),
                waited: second,
                in_the_way: Some(lock_holder()),
            }],
            more_waiting: 1,
        }),
        AdminAnswer::Paths(vec![
            Whereabouts::At(vec![Name::new(b"a").unwrap()]),
            Whereabouts::Gone,
            Whereabouts::NotFound,
        ]),
    ]
}

fn failures() -> Vec<Failure> {
    vec![
        Failure::Fs(FsError::new(Errno::NoSpace, "full")),
        Failure::SessionEnded,
        Failure::Grace(Duration::from_millis(5)),
        Failure::Unsupported("what".into()),
        Failure::Refused("why".into()),
        Failure::OldSequence,
        Failure::Digest { lsn: Lsn(7), error: FsError::new(Errno::NotEmpty, "why") },
        Failure::Busy("why".into()),
        Failure::InTheWay,
        Failure::OutOfTurn,
    ]
}

fn recalls() -> Vec<Recall> {
    let causes = [
        Cause::Read,
        Cause::Names(vec![name("x"), name("y")]),
        Cause::Attributes,
        Cause::Access,
        Cause::Data,
        Cause::Reclaim,
    ];
    causes
        .map(|cause| Recall { fid: fid(3), epoch: Epoch(2), to: Some(Mode::Read), cause, part: None })
        .into()
}
