//! Where a file has data: many of lseek's questions for one of the client's, and never an answer of before.

use crate::common::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use soda_client::{
    Client, ClientConfig, Consistency, KillPriv, NoKernel, OpenFile, WriteBehind, WritePolicy,
};
use soda_protocol::{Allocate, Whence, WriteAt};
use soda_types::{Errno, SetAttr};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

const BLOCK: u64 = 4096;

/// One block with data in two, behind a hole.
async fn holey(client: &Arc<Client>, path: &str, stretches: u64) -> Arc<OpenFile> {
    let holey = file(client, path, "").await;
    for stretch in 0..stretches {
        write(client, &holey, (2 * stretch + 1) * BLOCK, vec![1; BLOCK as usize]).await;
    }
    holey
}

/// Where data begins and ends, as a program finds out.
async fn walk(client: &Arc<Client>, file: &OpenFile) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        match client.seek(file, at, Whence::Data).await {
            Ok(data) => {
                at = client.seek(file, data, Whence::Hole).await.unwrap();
                found.push((data, at));
            }
            Err(error) => {
                assert_eq!(error.errno, Errno::NoDevice);
                return found;
            }
        }
    }
}

async fn resize(client: &Arc<Client>, file: &OpenFile, size: u64) {
    client.setattr(file.fid(), SetAttr { size: Some(size), ..SetAttr::default() }).await.unwrap();
}

fn questions(client: &Client) -> u64 {
    let stats = client.stats();
    stats.count("msg_seek") + stats.count("msg_layout")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_over_many_holes_asks_the_server_seldom() {
    const STRETCHES: u64 = 3000;
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let mine = holey(&a, "f", STRETCHES).await;
    let theirs = open(&b, "f").await;
    let expected: Vec<_> = (0..STRETCHES).map(|at| ((2 * at + 1) * BLOCK, (2 * at + 2) * BLOCK)).collect();
    for (client, file) in [(&a, &mine), (&b, &theirs)] {
        let before = questions(client);
        assert_eq!(walk(client, file).await, expected);
        // One that may bring the lease, then 16, 64, 256, 1,024, 4,096 extents.
        assert!(questions(client) - before <= 7, "{} questions", questions(client) - before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_each_step_asks() {
    let cell = Cell::start();
    let verify = ClientConfig { consistency: Consistency::Verify, ..cell.client_config() };
    let client = Client::connect(verify, Box::new(NoKernel)).await.unwrap();
    let mine = holey(&client, "f", 10).await;
    assert_eq!(walk(&client, &mine).await.len(), 10);
    assert_eq!(client.stats().count("msg_layout"), 0);
    assert_eq!(client.stats().count("msg_seek"), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_cached_is_answered_while_an_own_change_is_on_its_way() {
    let cell = Cell::start();
    let client = cell.client().await;
    let mine = holey(&client, "f", 4).await;
    walk(&client, &mine).await;
    assert_eq!(at_once(client.seek(&mine, 0, Whence::Data)).unwrap(), BLOCK);
    let data = vec![1; BLOCK as usize].into();
    let mut writing = pin!(client.write_all(&mine, WriteAt::Offset(0), data, KillPriv::Keep));
    let mut context = Context::from_waker(Waker::noop());
    let begun = writing.as_mut().poll(&mut context);
    let asked = pin!(client.seek(&mine, 0, Whence::Data)).poll(&mut context);
    assert!(asked.is_pending(), "who reads meanwhile may see the new bytes already");
    if begun.is_pending() {
        writing.await.unwrap();
    }
    assert_eq!(client.seek(&mine, 0, Whence::Data).await.unwrap(), 0);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        at: u64,
        len: u64,
    },
    Punch {
        at: u64,
        len: u64,
    },
    Resize(u64),
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    /// What changes no data.
    Chmod,
}

fn step() -> impl Strategy<Value = Step> {
    let (at, len) = (0..40u64, 1..8u64);
    prop_oneof![
        4 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Write { at, len }),
        2 => (at.clone(), len.clone()).prop_map(|(at, len)| Step::Punch { at, len }),
        1 => at.clone().prop_map(Step::Resize),
        1 => (at.clone(), at, len).prop_map(|(from, to, len)| Step::Copy { from, to, len: len.min(from.abs_diff(to)) }),
        1 => Just(Step::Chmod),
    ]
}

/// By blocks: whether there is data.
fn apply(model: &mut Vec<bool>, step: Step) {
    let grow = |model: &mut Vec<bool>, end: u64| model.resize(model.len().max(end as usize), false);
    match step {
        Step::Write { at, len } => {
            grow(model, at + len);
            model[at as usize..(at + len) as usize].fill(true);
        }
        Step::Punch { at, len } => {
            let size = model.len() as u64;
            model[at.min(size) as usize..(at + len).min(size) as usize].fill(false);
        }
        Step::Resize(size) => model.resize(size as usize, false),
        Step::Copy { from, to, len } => {
            let size = model.len() as u64;
            let copied = model[from.min(size) as usize..(from + len).min(size) as usize].to_vec();
            if len > 0 && !copied.is_empty() {
                grow(model, to + copied.len() as u64);
                model[to as usize..to as usize + copied.len()].copy_from_slice(&copied);
            }
        }
        Step::Chmod => {}
    }
}

async fn carry_out(client: &Arc<Client>, file: &OpenFile, step: Step) {
    match step {
        Step::Write { at, len } => write(client, file, at * BLOCK, vec![1; (len * BLOCK) as usize]).await,
        Step::Punch { at, len } => {
            let (offset, len) = (at * BLOCK, len * BLOCK);
            client.fallocate(file, offset, len, Allocate::PunchHole, KillPriv::Keep).await.unwrap();
        }
        Step::Resize(size) => resize(client, file, size * BLOCK).await,
        Step::Copy { from, to, len } => {
            let (from, to) = ((file, from * BLOCK), (file, to * BLOCK));
            client.copy_range(from, to, len * BLOCK, KillPriv::Keep).await.unwrap();
        }
        Step::Chmod => {
            let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
            client.setattr(file.fid(), set).await.unwrap();
        }
    }
}

fn expected(model: &[bool], at: u64, whence: Whence) -> Result<u64, Errno> {
    let rest = model.get(at as usize..).filter(|rest| !rest.is_empty()).ok_or(Errno::NoDevice)?;
    match (rest.iter().position(|data| *data == (whence == Whence::Data)), whence) {
        (Some(found), _) => Ok((at + found as u64) * BLOCK),
        (None, Whence::Data) => Err(Errno::NoDevice),
        (None, Whence::Hole) => Ok(model.len() as u64 * BLOCK),
    }
}

/// Two clients change one file by turns; each that is asked answers as one machine would.
fn like_the_model(config: impl Fn(&Cell) -> ClientConfig) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cell = Cell::start();
    let connect = || runtime.block_on(Client::connect(config(&cell), Box::new(NoKernel))).unwrap();
    let clients = [connect(), connect()];
    let files = std::cell::Cell::new(0);
    let turns = (0..2usize, step(), prop::collection::vec((0..2usize, 0..48u64, any::<bool>()), 0..6));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(60));
    let run = runner.run(&prop::collection::vec(turns, 1..25), |turns| {
        files.set(files.get() + 1);
        let path = format!("f{}", files.get());
        runtime.block_on(async {
            let open = [file(&clients[0], &path, "").await, open(&clients[1], &path).await];
            let mut model = Vec::new();
            for (changer, step, asked) in turns {
                carry_out(&clients[changer], &open[changer], step).await;
                apply(&mut model, step);
                for (asker, at, data) in asked {
                    let whence = if data { Whence::Data } else { Whence::Hole };
                    let found = clients[asker].seek(&open[asker], at * BLOCK, whence).await;
                    let found = found.map_err(|error| error.errno);
                    prop_assert_eq!(
                        found,
                        expected(&model, at, whence),
                        "{:?} at {} after {:?}",
                        whence,
                        at,
                        step
                    );
                }
            }
            Ok(())
        })
    });
    run.unwrap();
    let asked: Vec<u64> = clients.iter().map(|client| client.stats().count("op_seek")).collect();
    let sent: Vec<u64> = clients.iter().map(|client| questions(client)).collect();
    assert!(
        (0..2).all(|client| sent[client] < asked[client]),
        "{sent:?} of {asked:?}: nothing came from a cache"
    );
    runtime.block_on(async { drop(clients) });
}

#[test]
fn two_clients_find_the_holes_of_one_machine() {
    like_the_model(Cell::client_config);
}

#[test]
fn two_clients_with_delayed_writes_find_the_holes_of_one_machine() {
    like_the_model(|cell| ClientConfig {
        write: WritePolicy::Behind(WriteBehind::default()),
        ..cell.client_config()
    });
}
