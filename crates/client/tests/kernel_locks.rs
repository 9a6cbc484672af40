//! Machines whose kernels hold a directory's lock during a change, and need it to drop names: who waits for whom must never
//! close a circle.

use crate::common::{Cell, eventually, file, name, new_node, write};
use soda_client::{Client, KernelHooks, NAMES_RUN_OUT, Names, NamesLock, Validity};
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
    asked: AtomicU64,
    dropped: AtomicU64,
    second_tries: AtomicU64,
}

struct KernelOf(Arc<Kernel>);

impl KernelHooks for KernelOf {
    fn invalidate_attr(&self, _: Fid) {}
    fn invalidate_data(&self, _: Fid, _: Range<u64>) {}
    fn invalidate_everything(&self) {}

    fn settle_names(&self, _: Fid) {
        drop(self.0.directory.blocking_write());
    }

    fn invalidate_names(&self, _: Fid, _: &Names) {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
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
    assert!(began.elapsed() < Duration::from_secs(30), "TIMED OUT: {:?}", began.elapsed());
    for (client, _) in &machines {
        let open = client.open_dir(client.root()).await.unwrap();
        assert_eq!(client.read_dir(&open, 0, 1000).await.unwrap().len(), 3 * FILES);
    }
}

/// A's unlink waits for B's answer, B's kernel for the lock of its look-up, and this stands at the server behind the unlink: it
/// needs A's write lease, so that it cannot be let pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_behind_the_change_that_waits_for_its_kernel_ends_no_session() {
    let cell = Cell::with_term(Duration::from_secs(3));
    let a = cell.client().await;
    let kernel = Arc::<Kernel>::default();
    let b = cell.client_with(Box::new(KernelOf(Arc::clone(&kernel)))).await;
    let root = a.root();
    let x = file(&a, "x", "1").await;
    file(&a, "y", "1").await;
    let y = b.lookup(root, &name("y")).await.unwrap();
    let (told, promised) = (Instant::now(), b.answer().remaining(y.names));
    assert!(promised > Duration::ZERO && promised < NAMES_RUN_OUT, "{promised:?}");
    write(&a, &x, 0, "2").await;

    let shared = kernel.directory.read().await;
    let unlinking = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.unlink(root, &name("x")).await.map(|()| Instant::now()) }
    });
    eventually("a recall", || kernel.asked.load(Ordering::Relaxed) > 0).await;
    let began = Instant::now();
    b.lookup(root, &name("x")).await.unwrap();
    drop(shared);
    let unlinked = unlinking.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(6), "TIMED OUT: {:?}: a circle", began.elapsed());
    assert!(unlinked > told + promised, "B's kernel may still have used the name");
    let stats = b.stats();
    assert_eq!((stats.count("sessions_lost"), stats.count("recalls_forced")), (0, 0));
    assert_eq!(stats.count("recalls_run_out"), 1);
    assert_eq!(b.lookup(root, &name("x")).await.unwrap().node, None);

    // Whoever shares a directory keeps no names of it: there is nothing to wait for any more.
    assert_eq!(b.lookup(root, &name("y")).await.unwrap().names, Validity::NONE);
    let shared = kernel.directory.read().await;
    let began = Instant::now();
    a.create(root, &name("z"), new_node(FileKind::File)).await.unwrap();
    drop(shared);
    assert!(began.elapsed() < NAMES_RUN_OUT, "TIMED OUT: {:?}", began.elapsed());
    assert!(b.lookup(root, &name("z")).await.unwrap().node.is_some());
}
