//! Space that files have before anything is written to them, copies, and what is set aside for a client that does nothing.

use super::*;
use crate::common::script::{FILE, Message, Peer, Script, attr, grant, made, made_here, node, touched};
use crate::common::small_disk::on_a_small_disk;
use bytes::Bytes;
use soda_client::{Allocate, BootClock, Clock, TcpTransport};
use soda_protocol::{Answer, Call, Failure, space_through};
use soda_types::{FsError, Ino, Mode, Monotonic, SetXattr, Version};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// What a file is, as far as this client shows it.
async fn shown(client: &Arc<Client>, path: &[&str]) -> (u64, Vec<u8>) {
    let fid = find(client, path).await.unwrap();
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    let size = client.getattr(fid).await.unwrap().value.size;
    (size, client.read(&file, 0, 1 << 20).await.unwrap().to_bytes().to_vec())
}

fn data(len: usize) -> Bytes {
    (0..len).map(|at| at as u8 | 1).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_fallocate_is_logged_and_does_what_the_server_does() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    let through = mkdir(&b, b.root(), "through").await;
    let kinds = [
        Allocate::Extend,
        Allocate::KeepSize,
        Allocate::PunchHole,
        Allocate::ZeroRange,
        Allocate::ZeroRangeKeepSize,
    ];
    let ranges = [(0, 5000), (3000, 9000), (9000, 30_000), (20_000, 100), (50_000, 10)];
    let mut names = Vec::new();
    for (number, how) in kinds.into_iter().enumerate() {
        for (offset, len) in ranges {
            let text = format!("{number} {offset}");
            for (client, dir) in [(&a, dir), (&b, through)] {
                let fid = make(client, dir, &text, "").await;
                let file = client.open(fid, OpenMode::ReadWrite).await.unwrap();
                client.write_all(&file, WriteAt::End, data(20_000), KillPriv::Keep).await.unwrap();
                let sent = client.stats().count("msg_allocate");
                client.fallocate(&file, offset, len, how, KillPriv::Keep).await.unwrap();
                let expected = if dir == through { sent + 1 } else { sent };
                assert_eq!(client.stats().count("msg_allocate"), expected, "{text}");
                // What it has now is written to, too.
                client.write_all(&file, WriteAt::Offset(offset + 1), data(7), KillPriv::Keep).await.unwrap();
            }
            names.push(text);
        }
    }
    for text in &names {
        let expected = shown(&b, &["through", text]).await;
        assert_eq!(shown(&a, &["d", text]).await, expected, "{text} before it is told");
    }
    a.sync_all().await.unwrap();
    for text in &names {
        let expected = shown(&b, &["through", text]).await;
        assert_eq!(shown(&b, &["d", text]).await, expected, "{text} at the server");
        assert_eq!(shown(&a, &["d", text]).await, expected, "{text} after it was told");
        let fids = (find(&b, &["d", text]).await.unwrap(), find(&b, &["through", text]).await.unwrap());
        let blocks = (b.getattr(fids.0).await.unwrap(), b.getattr(fids.1).await.unwrap());
        assert_eq!(blocks.0.value.allocated, blocks.1.value.allocated, "{text}");
    }
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// Half of what is set aside can be had here.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_that_is_allocated_is_told_later_up_to_half_of_what_is_set_aside() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    let half = 2 * WriteBehind::default().max_bytes;
    for (len, through) in [(half * 3 / 4, 0), (half, 1)] {
        a.fallocate(&file, 0, len, Allocate::Extend, KillPriv::Keep).await.unwrap();
        assert_eq!(a.stats().count("msg_allocate"), through, "{len}: {:?}", a.stats());
    }
    assert_eq!(find(&b, &["f"]).await, Some(fid));
    assert_eq!(b.getattr(fid).await.unwrap().value.size, half);
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_of_a_hole_that_was_just_punched_is_nothing() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let fid = make(&a, a.root(), "f", "").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    a.write_all(&file, WriteAt::End, data(10_000), KillPriv::Keep).await.unwrap();
    a.sync_all().await.unwrap();
    assert_eq!(read(&a, &file).await, data(10_000));
    a.fallocate(&file, 2000, 3000, Allocate::PunchHole, KillPriv::Keep).await.unwrap();
    let mut expected = data(10_000).to_vec();
    expected[2000..5000].fill(0);
    assert_eq!(read(&a, &file).await, expected);
    assert_eq!(a.stats().count("msg_allocate"), 0, "{:?}", a.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_what_is_cached_is_logged_and_one_with_holes_is_the_servers() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let (from, to) = (make(&a, a.root(), "from", "").await, make(&a, a.root(), "to", "before").await);
    let from = a.open(from, OpenMode::ReadWrite).await.unwrap();
    let to = a.open(to, OpenMode::ReadWrite).await.unwrap();
    a.write_all(&from, WriteAt::End, data(10_000), KillPriv::Keep).await.unwrap();
    // As much as there is.
    assert_eq!(a.copy_range((&from, 1000), (&to, 3), 1 << 30, KillPriv::Keep).await.unwrap(), 9000);
    assert_eq!(a.copy_range((&from, 10_000), (&to, 3), 100, KillPriv::Keep).await.unwrap(), 0);
    let copied = a.stats().count("msg_copyrange");
    assert!(copied <= 1, "only where there is nothing to copy the server is asked: {:?}", a.stats());
    let mut expected = b"bef".to_vec();
    expected.extend_from_slice(&data(10_000)[1000..]);
    assert_eq!(read(&a, &to).await, expected);
    assert_eq!(shown(&b, &["to"]).await.1, expected);
    let within = a.copy_range((&from, 0), (&from, 1), 5, KillPriv::Keep).await;
    assert_eq!(within.unwrap_err().errno, Errno::Invalid);
    a.fallocate(&from, 0, 8192, Allocate::PunchHole, KillPriv::Keep).await.unwrap();
    let asked = a.stats().count("msg_copyrange");
    assert_eq!(a.copy_range((&from, 0), (&to, 0), 10_000, KillPriv::Keep).await.unwrap(), 10_000);
    assert_eq!(a.stats().count("msg_copyrange"), asked + 1, "holes stay holes");
    let mut holed = data(10_000).to_vec();
    holed[..8192].fill(0);
    assert_eq!(shown(&b, &["to"]).await.1, holed);
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// A machine on which so many nanoseconds more have passed.
#[derive(Debug, Default)]
struct Later(AtomicU64);

impl Clock for Later {
    fn now(&self) -> Monotonic {
        BootClock.now() + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn suspended(&self) -> u64 {
        0
    }
}

#[test]
fn who_idles_gives_back_what_was_set_aside() {
    on_a_small_disk("behind::space::idle_on_this_disk", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by who_idles_gives_back_what_was_set_aside"]
async fn idle_on_this_disk() {
    let cell = Cell::start();
    let b = cell.client().await;
    let free = |client: Arc<Client>| async move { client.statfs().await.unwrap().free_bytes };
    let before = free(Arc::clone(&b)).await;
    let later = Arc::<Later>::default();
    let idle = Duration::from_secs(3600);
    let behind = WriteBehind { max_age: idle, reserve_idle: idle, ..WriteBehind::default() };
    let config = ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() };
    let clock: Arc<dyn Clock> = later.clone();
    let a = Client::connect_with(config, Box::new(NoKernel), clock, Box::new(TcpTransport)).await.unwrap();
    // The first changes go through.
    wait_until("anything done here", || async {
        let text = format!("d{}", a.stats().count("op_create"));
        mkdir(&a, a.root(), &text).await;
        a.stats().count("here") > 0
    })
    .await;
    let reserved = free(Arc::clone(&b)).await;
    assert!(reserved + (20 << 20) < before, "{reserved} of {before} bytes are free");
    // A program that asks finds no room that its own writes are going to need.
    let own = free(Arc::clone(&a)).await;
    let file = a.open(make(&a, a.root(), "f", "").await, OpenMode::ReadWrite).await.unwrap();
    for _ in 0..8 {
        a.write_all(&file, WriteAt::End, data(128 << 10), KillPriv::Keep).await.unwrap();
    }
    let left = free(Arc::clone(&a)).await;
    assert!(left + (1 << 20) <= own, "{left} of {own} bytes are free: {:?}", a.stats());
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("reservations_idle"), 0);
    later.0.fetch_add(idle.as_nanos() as u64, Ordering::Relaxed);
    wait_until("reservation given back", || async { a.stats().count("reservations_idle") > 0 }).await;
    wait_until("room for others", || async { free(Arc::clone(&b)).await > reserved + (20 << 20) }).await;
    // It is had again as soon as it is needed.
    let here = a.stats().count("here");
    wait_until("anything done here again", || async {
        let text = format!("e{}", a.stats().count("op_create"));
        mkdir(&a, a.root(), &text).await;
        a.stats().count("here") > here
    })
    .await;
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// Bytes and inodes that are free, as a program is told.
async fn free(client: &Arc<Client>) -> (u64, u64) {
    let stats = client.statfs().await.unwrap();
    (stats.free_bytes, stats.free_inodes)
}

/// At the time of the change, not when the server hears of it; and what it hears then makes no great difference.
// SEMANTICS 16
#[tokio::test(flavor = "multi_thread")]
async fn statfs_counts_what_the_server_has_not_heard_of() {
    const FILES: u64 = 300;
    let cell = Cell::with_quota(1 << 30);
    let (a, b) = (writer(&cell).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    let (told, of_server, digests) = (free(&a).await, free(&b).await, a.stats().count("digests"));
    let mut last = told;
    for number in 0..FILES {
        make(&a, dir, &number.to_string(), "x").await;
        if number % 50 == 49 {
            let now = free(&a).await;
            assert!(now.0 < last.0 && now.1 + 50 <= last.1, "{now:?} after {last:?}: 50 files have come");
            last = now;
        }
    }
    // Data takes room for inodes, too.
    let file = a.open(find(&a, &["d", "7"]).await.unwrap(), OpenMode::ReadWrite).await.unwrap();
    for _ in 0..4 {
        a.write_all(&file, WriteAt::End, data(200 << 10), KillPriv::Keep).await.unwrap();
    }
    let untold = free(&a).await;
    assert!(
        untold.0 + (800 << 10) <= last.0 && untold.1 < last.1,
        "{untold:?} after {last:?}: 800 KiB have come"
    );
    assert_eq!((a.stats().count("digests"), free(&b).await), (digests, of_server), "nothing is told");
    a.sync_all().await.unwrap();
    let (after, of_others) = (free(&a).await, free(&b).await);
    // What is set aside for this client is not free for others, neither as bytes nor as inodes.
    assert!(
        of_others.0 < after.0 && of_others.1 <= of_others.0 / 512,
        "{of_others:?} for others, {after:?} here"
    );
    let near = |one: u64, other: u64, within: u64| one.abs_diff(other) <= within;
    // What a log counts for a change is not what a store takes for it: 512 bytes for each inode, whole blocks for data.
    assert!(near(untold.0, after.0, FILES * 1024 + (64 << 10)), "{untold:?} was said, and is {after:?}");
    assert!(near(untold.1, after.1, FILES * 2 + 128), "{untold:?} was said, and is {after:?}");
}

/// tar(1) and others take a file with fewer blocks than it is long for one with holes, and one without blocks for nothing but a
/// hole. What was written and not told must not look like that.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_into_holes_counts_before_it_is_told() {
    const SIZE: u64 = 100_000;
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    let shown = async |client: &Arc<Client>| client.getattr(fid).await.unwrap().value.allocated;
    a.setattr(fid, SetAttr { size: Some(SIZE), ..SetAttr::default() }).await.unwrap();
    assert_eq!(shown(&a).await, 0, "one hole");
    let mut written = vec![false; 2 * SIZE as usize];
    for (offset, len) in
        [(40_000, 5), (0, 16_000), (39_000, 3000), (16_000, 4096), (99_000, 9000), (108_000, 10)]
    {
        a.write_all(&file, WriteAt::Offset(offset), data(len), KillPriv::Keep).await.unwrap();
        written[offset as usize..offset as usize + len].fill(true);
        let least = written.iter().filter(|written| **written).count() as u64;
        let size = a.getattr(fid).await.unwrap().value.size;
        assert!(
            (least..=size).contains(&shown(&a).await),
            "{least} after {len} at {offset}: {}",
            shown(&a).await
        );
    }
    assert!(shown(&b).await >= 28_000);
    a.sync_all().await.unwrap();
    assert_eq!(shown(&a).await, shown(&b).await);
    assert!(shown(&a).await < SIZE, "where it has holes the server knows");
}

/// When a change sets out that goes through. The server does it after it has said what is set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Through {
    Never,
    /// The client asks for a reservation after that.
    BeforeTheQuestion,
    /// Between the question and its answer.
    WhileItIsAsked,
}

/// A value of which there is room for one that is told, and not beside one that goes through.
static VALUE: [u8; 60_000] = [7; 60_000];

/// A server whose disk is full but for what is set aside: it refuses the rest. A change of [`FILE`] gets to it before what the
/// client says next, and it has said what is set aside by then.
async fn full_but_for_what_is_set_aside(mut control: Peer, when: Through, said: UnboundedSender<()>) {
    const SET_ASIDE: u64 = 220 << 10;
    let (mut version, mut asked, mut late) = (1, None, None);
    let mut left = if when == Through::Never { SET_ASIDE } else { 0 };
    loop {
        version += 1;
        let Message::Request(tag, request) = control.next().await else { continue };
        let said_next = matches!(request.call, Call::Digest { .. } | Call::SetXattr { .. });
        if let Some(tag) = late.take_if(|_| said_next) {
            left -= space_through(VALUE.len());
            let answer = Answer::Changed { node: Some(node(FILE, version, 0)), others: Vec::new() };
            control.answer(tag, answer, &[]).await;
        }
        match &request.call {
            Call::GetAttr { fid: FILE } => {
                let grants = [grant(FILE, Mode::Write, version)];
                control.answer(tag, Answer::Node(node(FILE, version, 0)), &grants).await;
            }
            Call::SetXattr { fid: FILE, .. } => {
                (late, left) = (Some(tag), SET_ASIDE);
                if when == Through::WhileItIsAsked {
                    let (tag, count) = asked.take().expect("asked before");
                    control.answer(tag, reserved(version, count, left), &[]).await;
                }
                said.send(()).unwrap();
            }
            Call::Reserve { inodes, .. } if when == Through::WhileItIsAsked && left == 0 => {
                asked = Some((tag, *inodes));
            }
            Call::Reserve { inodes, .. } => {
                control.answer(tag, reserved(version, *inodes, left), &[]).await;
            }
            Call::SetXattr { fid, .. } if left >= space_through(VALUE.len()) => {
                left -= space_through(VALUE.len());
                let node = Some(node(*fid, (2 << 20) + version, 0));
                control.answer(tag, Answer::Changed { node, others: Vec::new() }, &[]).await;
            }
            Call::Digest { records, .. } => {
                let needed = records.iter().map(|record| record.change.space()).sum();
                let Some(rest) = left.checked_sub(needed) else {
                    let context = format!("{needed} bytes of {left}");
                    let error = FsError::new(Errno::NoSpace, context);
                    control.fail(tag, Failure::Digest { lsn: records[0].lsn, error }).await;
                    continue;
                };
                left = rest;
                let attrs = touched(records).into_iter();
                let attrs = attrs.map(|fid| (fid, attr(fid, (2 << 20) + version, 0))).collect();
                let leases: Vec<_> =
                    made(records).into_iter().map(|fid| grant(fid, Mode::Write, version)).collect();
                control.answer(tag, Answer::Digested { attrs }, &leases).await;
            }
            call => {
                if let Call::Create { .. } = call {
                    left = left.saturating_sub(space_through(0));
                }
                control.answer_alone(tag, call, version).await;
            }
        }
    }
}

fn reserved(version: u64, count: u32, bytes: u64) -> Answer {
    Answer::Reserved { first: Ino(10_000 * version), count, bytes, version: Version(1 << 20) }
}

/// The server may have said what is set aside before it did a change that was on its way to it then: what has no room beside that
/// is not done here, or it would be refused after a program was told that it is done.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_through_meanwhile_is_not_there_for_what_is_done_here() {
    for when in [Through::Never, Through::BeforeTheQuestion, Through::WhileItIsAsked] {
        let clock = Arc::<Later>::default();
        let Script { client, control, .. } = Script::writing_behind_by(clock.clone()).await;
        let (said, mut heard) = unbounded_channel();
        let server = tokio::spawn(full_but_for_what_is_set_aside(control, when, said));
        let set = |fid: Fid| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                client.setxattr(fid, b"user.large", &VALUE, SetXattr::Either, KillPriv::Keep).await
            })
        };
        // It asks the server for a reservation on the way. The answer is here by the end, unless the server keeps it back.
        mkdir(&client, client.root(), "d").await;
        let through = (when != Through::Never).then(|| set(FILE));
        if through.is_some() {
            heard.recv().await.unwrap();
        }
        // Where it had nothing to set aside it is not asked again at once.
        clock.0.fetch_add(Duration::from_secs(2).as_nanos() as u64, Ordering::Relaxed);
        // Which nothing is before the server's answer is here.
        let made = made_here(&client).await;
        assert_eq!(client.stats().count("digests"), 0, "what goes through is still on its way");
        let (here, asked) = (client.stats().count("here"), client.stats().count("msg_setxattr"));
        set(made.fid()).await.unwrap().unwrap();
        if when == Through::Never {
            assert_eq!(client.stats().count("here"), here + 1, "there is room for it");
            assert_eq!(client.stats().count("msg_setxattr"), asked);
        }
        client.sync_all().await.unwrap_or_else(|error| panic!("{when:?}: it was done: {error}"));
        if let Some(through) = through {
            through.await.unwrap().unwrap();
        }
        assert_eq!(client.stats().count("digests_refused"), 0, "{when:?}");
        server.abort();
    }
}
