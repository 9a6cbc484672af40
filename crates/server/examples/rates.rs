//! How many operations a second one client gets, one after the other and many at once: `cargo run --release -p soda-server
//! --example rates -- DIR`.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use soda_protocol::{Call, WriteAt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const COUNT: u32 = 5000;
const BIG: u32 = 256;

fn main() {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from).join("soda-rates");
    let _ = std::fs::remove_dir_all(&dir);
    let server = start(&dir);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Arc::new(Client::connect(&server).await);
        report("renew", COUNT, async {
            for _ in 0..COUNT {
                client.ask(Call::Renew).await.result.unwrap();
            }
        })
        .await;
        let home = client.mkdir(client.root, "home").await.unwrap().fid;
        let mut files = Vec::new();
        report("create + write 4 KiB", COUNT, async {
            for index in 0..COUNT {
                let file = client.create(home, &format!("file{index}")).await.unwrap().fid;
                client.write(file, WriteAt::Offset(0), &[7; 4096]).await.unwrap();
                files.push(file);
            }
        })
        .await;
        report("getattr", COUNT, async {
            for file in &files {
                client.ask(Call::GetAttr { fid: *file }).await.result.unwrap();
            }
        })
        .await;
        report("lookup", COUNT, async {
            for index in 0..COUNT {
                client.lookup(home, &format!("file{index}")).await.unwrap();
            }
        })
        .await;
        report("read 4 KiB", COUNT, async {
            for file in &files {
                client.read(*file, 0, 4096).await.unwrap();
            }
        })
        .await;
        report("create, 32 at once", COUNT, async {
            let tasks = (0..32).map(|task| {
                let client = client.clone();
                tokio::spawn(async move {
                    for index in 0..COUNT / 32 {
                        client.create(home, &format!("many{task}.{index}")).await.unwrap();
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        })
        .await;
        report("create + sync", 500, async {
            for index in 0..500 {
                client.create(home, &format!("synced{index}")).await.unwrap();
                client.sync().await;
            }
        })
        .await;
        report("unlink", COUNT, async {
            for index in 0..COUNT {
                client.unlink(home, &format!("file{index}"), soda_types::InUse::No).await.unwrap();
            }
        })
        .await;
        let big = client.create(home, "big").await.unwrap().fid;
        let data = vec![1; 1 << 20];
        report("write 1 MiB", BIG, async {
            for index in 0..u64::from(BIG) {
                client.write(big, WriteAt::Offset(index << 20), &data).await.unwrap();
            }
        })
        .await;
        report("read 1 MiB", BIG, async {
            for index in 0..u64::from(BIG) {
                client.read(big, index << 20, 1 << 20).await.unwrap();
            }
        })
        .await;
        let other = Client::connect(&server).await;
        report("ping-pong of a write lease", 1000, async {
            for _ in 0..500 {
                client.write(big, WriteAt::Offset(0), b"x").await.unwrap();
                other.write(big, WriteAt::Offset(0), b"x").await.unwrap();
            }
        })
        .await;
        report("write, then another's read", 1000, async {
            for _ in 0..500 {
                client.write(big, WriteAt::Offset(0), b"x").await.unwrap();
                other.ask(Call::GetAttr { fid: big }).await.result.unwrap();
            }
        })
        .await;
        print_server_times(&server).await;
        server.shutdown().await;
    });
    let _ = std::fs::remove_dir_all(&dir);
}

/// Mean time of each call on the server, from its arrival to its reply.
async fn print_server_times(server: &soda_server::RunningServer) {
    use soda_protocol::{AdminAnswer, AdminCall, Answer, Role};
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let call = Call::Admin(AdminCall::Stats);
    let Ok(Answer::Admin(AdminAnswer::Stats(stats))) =
        admin.call(None, call, bytes::Bytes::new()).await.unwrap().0.result
    else {
        return;
    };
    let value = |name: &str| stats.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
    for (name, total) in &stats {
        if let Some(call) = name.strip_suffix(".total_us") {
            println!("server: {call:20} {:8.1} us", *total as f64 / value(call).max(1) as f64);
        }
    }
}

async fn report(what: &str, count: u32, work: impl Future<Output = ()>) {
    let started = Instant::now();
    work.await;
    let took = started.elapsed();
    println!(
        "{what:30} {:9.0} /s {:9.1} us",
        f64::from(count) / took.as_secs_f64(),
        took.as_secs_f64() * 1e6 / f64::from(count)
    );
}
