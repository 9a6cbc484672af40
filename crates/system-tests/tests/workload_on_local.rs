//! The workload and the checker together, on the local disk, which is one copy; and on a directory that is not.

use soda_system_tests::linear::{assert_linearizable, check};
use soda_system_tests::workload::{Descriptors, Pieces, Syncs, Workload, seed};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn workload(seed: u64) -> Workload {
    Workload {
        seed,
        threads_per_mount: 2,
        operations: 3000,
        pieces: Pieces::Words,
        descriptors: Descriptors::Any,
        syncs: Syncs::Never,
        pause: Duration::from_micros(20),
        readers: 0,
    }
}

#[test]
fn the_local_disk_is_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_path_buf();
    let run = workload(seed(1)).run("the_local_disk_is_one_copy", &[root.clone(), root], |progress| {
        progress.complete(Duration::from_secs(60));
    });
    assert_eq!(run.errors, vec![Vec::<String>::new(); 2]);
    assert_linearizable(&run.history);
}

/// Two directories, the second refreshed from the first now and then: a shared file system with a cache that is stale.
#[test]
fn a_stale_copy_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let roots: Vec<PathBuf> = ["one", "two"].map(|name| dir.path().join(name)).to_vec();
    for root in &roots {
        std::fs::create_dir(root).unwrap();
    }
    let copy = |from: &Path, to: &Path| {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                let _ = std::fs::create_dir(to.join(entry.file_name()));
            } else {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    let run = workload(seed(1)).run("a_stale_copy_is_found_out", &roots, |progress| {
        copy(&roots[0], &roots[1]);
        progress.advance(3000, Duration::from_secs(60));
    });
    assert!(!check(&run.history).is_empty(), "the checker believes that two directories are one");
}
