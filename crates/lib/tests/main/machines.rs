//! What two volumes see of each other, and what becomes of what was not told.

use crate::Cell;
use libsoda::{Errno, LockMode, OpenOptions, Options, SetAttr, User, Volume, Writes};
use std::time::Duration;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at) as u8 ^ seed).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_longer_than_a_message_is_read_and_written_whole() {
    let cell = Cell::start();
    for writes in [Writes::Through, Writes::Delayed] {
        let (here, there) = (cell.volume(writes).await, cell.volume(writes).await);
        let data = pattern(5_300_001, 7);
        here.write("big", data.clone()).await.unwrap();
        assert!(there.read("big").await.unwrap() == data);
        let file = there.open("big", OpenOptions::new().read(true).write(true)).await.unwrap();
        assert_eq!(file.read_at(5_300_000, 100).await.unwrap().len(), 1, "fewer only at the end");
        assert!(file.read_at(100, 3 << 20).await.unwrap() == data[100..100 + (3 << 20)]);
        file.write_at(6_000_000, "x").await.unwrap();
        assert_eq!(here.metadata("big").await.unwrap().size, 6_000_001);
        file.set_len(3).await.unwrap();
        assert_eq!(here.read("big").await.unwrap(), data[..3]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_append_writes_over_another_one() {
    const EACH: usize = 5;
    const LEN: usize = 3_000_000;
    let cell = Cell::start();
    let append = OpenOptions::new().append(true).create(true);
    let mut work = Vec::new();
    for (seed, writes) in [(1, Writes::Through), (2, Writes::Delayed)] {
        let volume = cell.volume(writes).await;
        let file = volume.open("log", append).await.unwrap();
        work.push(tokio::spawn(async move {
            for _ in 0..EACH {
                file.append(vec![seed; LEN]).await.unwrap();
            }
            file.close().await.unwrap();
            volume.shutdown().await.unwrap();
        }));
    }
    for done in work {
        done.await.unwrap();
    }
    let all = cell.volume(Writes::Through).await.read("log").await.unwrap();
    let count = |seed| all.iter().filter(|byte| **byte == seed).count();
    assert_eq!((all.len(), count(1), count(2)), (2 * EACH * LEN, EACH * LEN, EACH * LEN));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_only_used_as_it_was_opened() {
    let cell = Cell::start();
    let volume = cell.volume(Writes::Delayed).await;
    volume.write("f", "text").await.unwrap();
    let reader = volume.open("f", OpenOptions::new().read(true)).await.unwrap();
    let writer = volume.open("f", OpenOptions::new().write(true)).await.unwrap();
    let appender = volume.open("f", OpenOptions::new().append(true)).await.unwrap();
    let errno = |error: libsoda::Error| error.errno();
    assert_eq!(reader.write_at(0, "x").await.map_err(errno), Err(Errno::BadHandle));
    assert_eq!(reader.append("x").await.map_err(errno), Err(Errno::BadHandle));
    assert_eq!(reader.set_len(0).await.map_err(errno), Err(Errno::BadHandle));
    assert_eq!(writer.read_at(0, 1).await.map_err(errno), Err(Errno::BadHandle));
    assert_eq!(appender.write_at(0, "x").await.map_err(errno), Err(Errno::BadHandle));
    assert_eq!(appender.append(" more").await, Ok(4));
    assert_eq!(volume.read("f").await.unwrap(), "text more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_keeps_others_off_until_its_file_is_closed_or_dropped() {
    let cell = Cell::start();
    let (here, there) = (cell.volume(Writes::Delayed).await, cell.volume(Writes::Through).await);
    here.write("f", "").await.unwrap();
    let read = OpenOptions::new().read(true);
    let (mine, theirs) = (here.open("f", read).await.unwrap(), there.open("f", read).await.unwrap());
    let second = here.open("f", read).await.unwrap();
    mine.lock(LockMode::Exclusive).await.unwrap();
    assert!(!theirs.try_lock(LockMode::Exclusive).await.unwrap());
    assert!(!second.try_lock(LockMode::Shared).await.unwrap(), "another open file is somebody else");
    mine.close().await.unwrap();
    assert!(second.try_lock(LockMode::Shared).await.unwrap());
    assert!(theirs.try_lock(LockMode::Shared).await.unwrap());
    let third = there.open("f", read).await.unwrap();
    drop(second);
    drop(theirs);
    // Until the one that nobody waits for is given back.
    third.lock(LockMode::Exclusive).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_is_told_what_the_server_has_not_heard_of_yet() {
    let cell = Cell::start();
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(cell.address(), "main").writes(Writes::Delayed).cache_dir(dir.path());
    let here = Volume::connect(options.user(User { uid: 5, gid: 6 })).await.unwrap();
    let there = cell.volume(Writes::Through).await;
    here.create_dir_all("a/b").await.unwrap();
    here.write("a/b/c", "delayed").await.unwrap();
    assert_eq!(there.read("a/b/c").await.unwrap(), "delayed");
    let attr = there.metadata("a/b/c").await.unwrap();
    assert_eq!((attr.uid, attr.gid, attr.perm), (5, 6, 0o644));
    here.set_metadata("a/b/c", SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    assert_eq!(there.metadata("a/b/c").await.unwrap().perm, 0o600);
    here.set_xattr("a/b/c", "user.k", "v").await.unwrap();
    assert_eq!(there.xattr("a/b/c", "user.k").await.unwrap(), "v");
    assert_eq!(there.xattrs("a/b/c").await.unwrap(), ["user.k"]);
    there.remove_xattr("a/b/c", "user.k").await.unwrap();
    assert_eq!(here.xattr("a/b/c", "user.k").await.unwrap_err().errno(), Errno::NoData);
    here.shutdown().await.unwrap();
    assert_eq!(here.read("a/b/c").await.unwrap_err().errno(), Errno::Io, "it has ended");
    assert!(there.statfs().await.unwrap().free_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_a_server_fails_when_it_wants_to() {
    let cell = Cell::start();
    let soft = Options::new(cell.address(), "main").timeout(Duration::from_millis(200));
    let volume = Volume::connect(soft).await.unwrap();
    volume.write("f", "x").await.unwrap();
    let address = cell.address();
    drop(cell);
    assert_eq!(volume.write("g", "x").await.unwrap_err().errno(), Errno::Io);
    assert!(Volume::connect(Options::new(address, "main")).await.is_err());
}

/// Its goodbye must not be lost with what the server had just sent it: others would wait for the end of its term.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_dropped_keeps_nobody_waiting() {
    let cell = Cell::with_term(Duration::from_secs(3600));
    for _ in 0..20 {
        let (here, there) = (cell.volume(Writes::Through).await, cell.volume(Writes::Delayed).await);
        let changed = async {
            here.write("f", "text").await.unwrap();
            assert_eq!(there.read("f").await.unwrap(), "text");
            // Recalls what the other one has, and is going to be dropped with.
            let file = there.open("f", OpenOptions::new().write(true)).await.unwrap();
            file.write_at(100, "more").await.unwrap();
            assert_eq!(here.metadata("f").await.unwrap().size, 104);
            file.set_len(3).await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), changed).await.expect("somebody is waited for");
    }
}

/// As long as its runtime goes on: what cannot be told any more is lost with a word in the log.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_dropped_tells_what_it_has_delayed() {
    let cell = Cell::with_term(Duration::from_secs(3600));
    for number in 0..20 {
        let (name, data) = (number.to_string(), pattern(100_000, number));
        let here = cell.volume(Writes::Delayed).await;
        here.create_dir(&name).await.unwrap();
        here.write(format!("{name}/f"), data.clone()).await.unwrap();
        drop(here);
        let there = cell.volume(Writes::Through).await;
        let read = async { assert!(there.read(format!("{name}/f")).await.unwrap() == data, "{number}") };
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("somebody is waited for");
    }
}

/// Tasks of a client that nobody has would keep a session at the server for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_connect_that_is_given_up_leaves_nothing_behind() {
    let cell = Cell::start();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut given_up = 0;
    for step in 0..200 {
        let limit = Duration::from_micros(50 * step);
        let connect = tokio::time::timeout(limit, cell.volume(Writes::Delayed));
        given_up += u32::from(connect.await.is_err());
    }
    assert!(given_up > 0);
    let ended = async {
        while tasks() > before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let left = tokio::time::timeout(Duration::from_secs(60), ended).await;
    assert!(left.is_ok(), "{} tasks go on", tasks() - before);
}

/// Each would block the runtime's only thread for as long as a local disk takes, or panic later.
#[test]
fn where_there_is_no_multi_thread_runtime_connect_says_so() {
    let connect = || Volume::connect(Options::new("127.0.0.1:1", "main"));
    let alone = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = alone.block_on(connect()).unwrap_err();
    assert!(matches!(error, libsoda::ConnectError::Runtime), "{error}");
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = std::pin::pin!(connect()).poll(&mut context);
    assert!(matches!(polled, std::task::Poll::Ready(Err(libsoda::ConnectError::Runtime))));
}
