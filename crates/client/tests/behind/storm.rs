//! One machine looks at everything that many are changing.

use super::*;
use soda_client::OpenFile;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A file that only grows, and what its size may be.
struct Growing {
    path: [String; 2],
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

type Writer = (Arc<Client>, Vec<(Arc<OpenFile>, Arc<Growing>)>);

/// `ls -lR` of what ten machines are writing.
// SEMANTICS 46
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_what_ten_others_write_is_true_and_costs_them_little() {
    const WRITERS: usize = 10;
    const FILES: usize = 10;
    let cell = Cell::start();
    let b = cell.client().await;
    let shared = mkdir(&b, b.root(), "shared").await;
    let done = Arc::new(AtomicBool::new(false));
    let (mut writers, mut files) = (Vec::new(), Vec::new());
    for number in 0..WRITERS {
        let a = Client::connect(patient(&cell), Box::new(NoKernel)).await.unwrap();
        let own = format!("own{number}");
        let dir = mkdir(&a, a.root(), &own).await;
        let mut growing = Vec::new();
        let places = (0..FILES).map(|file| (dir, own.clone(), file.to_string()));
        for (dir, dir_name, text) in places.chain([(shared, "shared".to_owned(), number.to_string())]) {
            let fid = make(&a, dir, &text, "").await;
            let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
            let (begun, acknowledged) = (AtomicU64::new(0), AtomicU64::new(0));
            growing.push((file, Arc::new(Growing { path: [dir_name, text], begun, acknowledged })));
        }
        files.extend(growing.iter().map(|(_, growing)| Arc::clone(growing)));
        writers.push((a, growing));
    }
    let clients: Vec<Arc<Client>> = writers.iter().map(|(a, _)| Arc::clone(a)).collect();
    let work = async |(a, growing): Writer, done: Arc<AtomicBool>| {
        while !done.load(Ordering::Relaxed) {
            for (file, growing) in &growing {
                growing.begun.fetch_add(5, Ordering::SeqCst);
                a.write_all(file, WriteAt::End, "line\n".into(), KillPriv::Keep).await.unwrap();
                growing.acknowledged.fetch_add(5, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let tasks: Vec<_> =
        writers.into_iter().map(|writer| tokio::spawn(work(writer, Arc::clone(&done)))).collect();
    let grown = || async { files.iter().all(|file| file.acknowledged.load(Ordering::SeqCst) >= 50) };
    wait_until("everything grows", grown).await;

    let count = |what: &str| clients.iter().map(|a| a.stats().count(what)).sum::<u64>();
    let counters = ["recalls", "digests", "recall_records", "recall_collateral"];
    let before = counters.map(count);
    let began = std::time::Instant::now();
    for file in &files {
        let least = file.acknowledged.load(Ordering::SeqCst);
        let [dir, text] = &file.path;
        let fid = find(&b, &[dir, text]).await.unwrap();
        let size = b.getattr(fid).await.unwrap().value.size;
        let most = file.begun.load(Ordering::SeqCst);
        assert!((least..=most).contains(&size), "{dir}/{text}: {size}, not {least} to {most}");
    }
    let took = began.elapsed();
    let after = counters.map(count);
    done.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let cost: Vec<u64> = after.into_iter().zip(before).map(|(after, before)| after - before).collect();
    eprintln!("{} files in {took:?}: {counters:?} {cost:?}", files.len());
    assert!(took < Duration::from_secs(20), "TIMED OUT: {took:?}");
    // Files, their directories, and what all writers may have looked at: the root and the shared directory.
    let objects = files.len() as u64 + WRITERS as u64 * 3;
    let [recalls, digests, records, collateral] = cost[..] else { panic!("{cost:?}") };
    assert!(recalls <= objects, "{recalls} recalls for {objects} objects");
    assert!(digests <= recalls + objects, "{digests} digests for {recalls} recalls");
    assert!(collateral <= records, "{collateral} changes were told that nobody asked for, beside {records}");
    assert_eq!(count("lost_records"), 0);
    for file in &files {
        let fid = find(&b, &[&file.path[0], &file.path[1]]).await.unwrap();
        assert_eq!(b.getattr(fid).await.unwrap().value.size, file.begun.load(Ordering::SeqCst));
    }
}
