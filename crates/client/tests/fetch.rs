//! Who reads what another machine has changed asks once: attributes, the lease and a small file's data come together. Who only
//! looks at it moves no data.

use crate::common::delayed::find;
use crate::common::script::{FILE, Script, attr, grant, node};
use crate::common::*;
use bytes::Bytes;
use soda_client::{Client, ClientConfig, Consistency, NoKernel, OpenFile, OpenMode};
use soda_protocol::{Answer, Call, FrameKind, FromHolder, Reply};
use soda_types::{Errno, Fid, Mode, ObjectTerm, SetAttr, Version};
use std::sync::Arc;
use std::time::Duration;

/// Nothing but `read` moves data by itself.
const QUESTIONS: [&str; 7] = ["lookup", "lookupstat", "getattr", "stat", "opened", "read", "fetch"];

/// What a client asks, since it was last looked at, by name.
struct Questions<'a>(&'a Client, Vec<u64>);

impl Questions<'_> {
    fn of(client: &Client) -> Questions<'_> {
        Questions(client, Questions::counts(client))
    }

    fn counts(client: &Client) -> Vec<u64> {
        let stats = client.stats();
        QUESTIONS.iter().map(|call| stats.count(&format!("msg_{call}"))).collect()
    }

    fn asked(&mut self) -> Vec<(&'static str, u64)> {
        let now = Questions::counts(self.0);
        let before = std::mem::replace(&mut self.1, now.clone());
        let counts = QUESTIONS.into_iter().zip(now.iter().zip(before).map(|(now, before)| now - before));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// As `cat` on a mount, where the kernel has the name: stat(2) and open(2) ask for attributes, then come the pages.
async fn cat(client: &Arc<Client>, fid: Fid) -> Bytes {
    client.stat(fid).await.unwrap();
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    client.getattr_open(&file).await.unwrap();
    read(client, &file).await
}

/// A file that one client has written and the other one has read, and the first one's handle.
async fn shared(a: &Arc<Client>, b: &Arc<Client>, text: impl Into<Bytes>) -> (Arc<OpenFile>, Fid) {
    let mine = file(a, "f", text).await;
    let fid = find(b, &["f"]).await.unwrap();
    cat(b, fid).await;
    (mine, fid)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_machine_has_changed_is_read_in_one_exchange() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let (mine, fid) = shared(&a, &b, "one").await;
    let (mut asked, open) = (Questions::of(&b), b.open(fid, OpenMode::Read).await.unwrap());
    for text in ["two", "three", "four"] {
        write(&a, &mine, 0, text).await;
        assert!(cat(&b, fid).await.starts_with(text.as_bytes()));
        assert_eq!(asked.asked(), [("fetch", 1)], "by stat, open and read: {text}");
        write(&a, &mine, 0, text).await;
        assert!(read(&b, &open).await.starts_with(text.as_bytes()));
        assert_eq!(asked.asked(), [("fetch", 1)], "by a read of an open file: {text}");
        write(&a, &mine, 0, text).await;
        b.getattr_open(&open).await.unwrap();
        assert!(at_once(b.read(&open, 0, 2)).unwrap().to_bytes() == text[..2]);
        assert_eq!(asked.asked(), [("fetch", 1)], "as the kernel does before it reads: {text}");
    }
    assert_eq!(b.stats().count("fetched"), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_at_a_file_moves_no_data() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let mine = file(&a, "f", "one").await;
    let fid = find(&b, &["f"]).await.unwrap();
    let mut asked = Questions::of(&b);
    for text in ["two", "three"] {
        write(&a, &mine, 0, text).await;
        assert_eq!(b.stat(fid).await.unwrap().value.size, text.len() as u64);
        assert_eq!(asked.asked(), [("stat", 1)], "nothing of it was ever read here");
    }
    cat(&b, fid).await;
    asked.asked();
    for expected in ["fetch", "stat", "stat"] {
        write(&a, &mine, 0, "a change").await;
        b.stat(fid).await.unwrap();
        assert_eq!(asked.asked(), [(expected, 1)], "once for nothing at most");
    }
    // Who appends has it open, but cannot read.
    let appends = b.open(fid, OpenMode::Write).await.unwrap();
    write(&a, &mine, 0, "another").await;
    b.getattr_open(&appends).await.unwrap();
    assert_eq!(asked.asked(), [("getattr", 1)]);
    assert_eq!(b.stats().count("fetched"), 1);
}

/// It may be cut to nothing at once.
#[tokio::test(flavor = "multi_thread")]
async fn who_opens_a_file_to_write_as_well_has_its_data_come_only_if_it_read_it_the_last_time() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let (mine, fid) = shared(&a, &b, "one").await;
    let mut asked = Questions::of(&b);
    for (reads, expected) in [(false, "fetch"), (false, "getattr"), (true, "getattr"), (false, "fetch")] {
        write(&a, &mine, 0, "two").await;
        let open = b.open(fid, OpenMode::ReadWrite).await.unwrap();
        assert_eq!(asked.asked(), [(expected, 1)]);
        if reads {
            assert_eq!(read(&b, &open).await, "two");
            assert_eq!(asked.asked(), [("read", 1)]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_are_here_or_large_are_not_sent() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let (mine, fid) = shared(&a, &b, "small").await;
    let mut asked = Questions::of(&b);
    a.setattr(fid, SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    assert_eq!(cat(&b, fid).await, "small");
    assert_eq!((asked.asked(), b.stats().count("fetched")), (vec![("fetch", 1)], 0));
    for (len, fetched) in [(128 << 10, 1), ((128 << 10) + 1, 1)] {
        write(&a, &mine, 0, vec![7; len]).await;
        assert_eq!(cat(&b, fid).await.len(), len);
        assert_eq!(b.stats().count("fetched"), fetched, "{len} bytes");
    }
    assert_eq!(asked.asked(), [("read", 1), ("fetch", 2)]);
    // Of an empty one there are none.
    a.setattr(fid, SetAttr { size: Some(0), ..SetAttr::default() }).await.unwrap();
    assert_eq!(cat(&b, fid).await, "");
    assert_eq!((asked.asked(), b.stats().count("fetched")), (vec![("fetch", 1)], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_leases_to_keep_data_under_asks_as_ever() {
    let cell = Cell::start();
    let default = cell.client_config();
    let a = cell.client().await;
    let mine = file(&a, "f", "one").await;
    for config in [
        ClientConfig { consistency: Consistency::Verify, ..default.clone() },
        ClientConfig { consistency: Consistency::Ttl(Duration::ZERO), ..default.clone() },
        ClientConfig { lease_term: Some(ObjectTerm::None), ..default },
    ] {
        let mode = format!("{:?} {:?}", config.consistency, config.lease_term);
        let b = Client::connect(config, Box::new(NoKernel)).await.unwrap();
        let fid = find(&b, &["f"]).await.unwrap();
        for round in 0..5 {
            write(&a, &mine, 0, format!("{round}")).await;
            assert!(cat(&b, fid).await.starts_with(format!("{round}").as_bytes()), "{mode}");
        }
        assert!(b.stats().count("fetched") <= 1, "it is not tried again: {mode}, {:?}", b.stats());
    }
}

/// Its recall may never come.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_under_a_lease_that_runs_out_is_said_to_be_so_and_nothing_else() {
    let cell = Cell::with_term(Duration::from_secs(120));
    let a = cell.client().await;
    let lease_term = Some(ObjectTerm::For(Duration::from_secs(60)));
    let config = ClientConfig { lease_term, ..cell.client_config() };
    let b = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let (mine, fid) = shared(&a, &b, "one").await;
    let mut asked = Questions::of(&b);
    assert_eq!(cat(&b, fid).await, "one");
    assert_eq!(asked.asked(), [("opened", 1)]);
    write(&a, &mine, 0, "two").await;
    drop(b.open(fid, OpenMode::Read).await.unwrap());
    assert_eq!(asked.asked(), [("opened", 1), ("fetch", 1)]);
}

/// The file was read before; then its lease was asked back.
async fn read_and_recalled(script: &mut Script) -> Arc<OpenFile> {
    script.known_file(5).await;
    let file = at_once(script.client.open(FILE, OpenMode::Read)).unwrap();
    let reading = tokio::spawn({
        let (client, file) = (Arc::clone(&script.client), Arc::clone(&file));
        async move { client.read(&file, 0, 10).await.unwrap().to_bytes() }
    });
    let (tag, request) = script.control.request().await;
    assert!(matches!(request.call, Call::Read { .. }), "{request:?}");
    script.control.data(tag, attr(FILE, 1, 5), b"first", &[]).await;
    assert_eq!(reading.await.unwrap(), "first");
    script.control.recall(FILE, 1, None).await;
    script.control.acks().await;
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_that_is_known_is_said() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    let _file = read_and_recalled(&mut script).await;
    let client = Arc::clone(&script.client);
    let asking = tokio::spawn(async move { client.getattr(FILE).await });
    let (tag, request) = script.control.request().await;
    let fetch =
        Call::Fetch { fid: FILE, most: 128 << 10, known: Some(Version(1)), holder: FromHolder::Lease };
    assert_eq!(request.call, fetch);
    script.control.answer(tag, Answer::Node(node(FILE, 2, 6)), &[grant(FILE, Mode::Read, 2)]).await;
    assert_eq!(asking.await.unwrap().unwrap().value.size, 6);
}

/// What comes is not what was asked for, or comes when it is not covered any more: it is not shown to anybody.
#[tokio::test(flavor = "multi_thread")]
async fn data_of_another_length_or_without_a_lease_are_not_kept() {
    for (size, lease) in [(7, Some(grant(FILE, Mode::Read, 2))), (6, None)] {
        let mut script = Script::start(0, Box::new(NoKernel)).await;
        let file = read_and_recalled(&mut script).await;
        let client = Arc::clone(&script.client);
        let asking = tokio::spawn(async move { client.getattr(FILE).await });
        let (tag, request) = script.control.request().await;
        assert!(matches!(request.call, Call::Fetch { .. }), "{request:?}");
        let grants = lease.into_iter().collect();
        let reply = Reply { result: Ok(Answer::Fetched(node(FILE, 2, size))), grants, covered: Vec::new() };
        script.control.send(FrameKind::Reply, tag, &reply, Bytes::from_static(b"second")).await;
        let answer = asking.await.unwrap();
        assert_eq!(
            answer.map(|attr| attr.value.size).map_err(|error| error.errno),
            match size {
                7 => Err(Errno::Io),
                size => Ok(size),
            }
        );
        let client = Arc::clone(&script.client);
        let reading = tokio::spawn(async move { client.read(&file, 0, 10).await.unwrap().to_bytes() });
        let (tag, request) = script.control.request().await;
        assert!(matches!(request.call, Call::Read { .. }), "{request:?}");
        script.control.data(tag, attr(FILE, 3, 5), b"third", &[]).await;
        assert_eq!(reading.await.unwrap(), "third");
    }
}
