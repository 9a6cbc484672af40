//! Machines whose kernels hold a directory's lock during a change, and need it to drop names: who waits for whom must never
//! close a circle.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Cell, name, new_node};
use soda_client::{Client, KernelHooks, Names, NamesLock};
use soda_types::{Errno, Fid, FileKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::RwLock;

/// The lock of the one directory, as Linux has it: shared for look-ups, exclusive for changes and for dropping names.
#[derive(Default)]
struct Kernel {
    directory: RwLock<()>,
    dropped: AtomicU64,
    second_tries: AtomicU64,
}

struct KernelOf(Arc<Kernel>);

impl KernelHooks for KernelOf {
    fn invalidate_attr(&self, _: Fid) {}
    fn invalidate_data(&self, _: Fid, _: Range<u64>) {}

    fn invalidate_names(&self, _: Fid, _: &Names) {
        drop(self.0.directory.blocking_write());
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn names_lock(&self) -> NamesLock {
        NamesLock::Directory
    }
}

/// creat(2): look the name up, create it under the lock, once more from the start after ESTALE.
async fn creat(client: &Client, kernel: &Kernel, text: &str) -> Result<(), Errno> {
    for attempt in 0..2 {
        let shared = kernel.directory.read().await;
        client.lookup(client.root(), &name(text)).await.map_err(|error| error.errno)?;
        drop(shared);
        let exclusive = kernel.directory.write().await;
        let created = client.create(client.root(), &name(text), new_node(FileKind::File)).await;
        drop(exclusive);
        match created {
            Err(error) if error.errno == Errno::Stale && attempt == 0 => {
                kernel.second_tries.fetch_add(1, Ordering::Relaxed);
            }
            result => return result.map(|_| ()).map_err(|error| error.errno),
        }
    }
    Err(Errno::Stale)
}

#[tokio::test(flavor = "multi_thread")]
async fn three_machines_create_in_one_directory_at_once() {
    const FILES: usize = 120;
    let cell = Cell::with_term(Duration::from_secs(10));
    let mut machines = Vec::new();
    for _ in 0..3 {
        let kernel = Arc::<Kernel>::default();
        machines.push((cell.client_with(Box::new(KernelOf(Arc::clone(&kernel)))).await, kernel));
    }
    let began = Instant::now();
    let tasks: Vec<_> = machines
        .iter()
        .enumerate()
        .map(|(number, (client, kernel))| {
            let (client, kernel) = (Arc::clone(client), Arc::clone(kernel));
            tokio::spawn(async move {
                for at in 0..FILES {
                    creat(&client, &kernel, &format!("{number}-{at}")).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("a circle").unwrap();
    }
    let forced: u64 = machines.iter().map(|(client, _)| client.stats().count("recalls_forced")).sum();
    let dropped: u64 = machines.iter().map(|(_, kernel)| kernel.dropped.load(Ordering::Relaxed)).sum();
    let again: u64 = machines.iter().map(|(_, kernel)| kernel.second_tries.load(Ordering::Relaxed)).sum();
    println!("{:?}: {dropped} drops of names, {again} second tries, {forced} forced", began.elapsed());
    assert!(dropped > 0, "the test does not test anything");
    assert!(began.elapsed() < Duration::from_secs(30));
    for (client, _) in &machines {
        let open = client.open_dir(client.root()).await.unwrap();
        assert_eq!(client.read_dir(&open, 0, 1000).await.unwrap().len(), 3 * FILES);
    }
}
