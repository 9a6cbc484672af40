//! The reference model agrees with the local file system: only then does a difference on a mount mean something.

use soda_model::{Alphabet, Generator, Placement};
use soda_system_tests::tree::{Comparison, RealTree};

/// Operations for each seed.
const OPERATIONS: usize = 4000;

fn compare(seed: u64, alphabet: Alphabet, placement: Placement) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut comparison = Comparison::new(RealTree::new(vec![dir.path().to_path_buf()]));
    for op in Generator::new(seed, alphabet, placement).take(OPERATIONS) {
        if let Err(difference) = comparison.step(0, &op) {
            panic!("seed {seed}: {difference}");
        }
    }
    if let Err(difference) = comparison.inspect() {
        panic!("seed {seed}, in the end: {difference}");
    }
}

#[test]
fn names_attributes_and_data() {
    for seed in 0..10 {
        compare(seed, Alphabet::Full, Placement::Within { bytes: 300_000 });
    }
}

#[test]
fn sparse_files_beyond_four_gibibytes() {
    for seed in 100..103 {
        compare(seed, Alphabet::Full, Placement::Sparse);
    }
}

#[test]
fn data_of_few_files() {
    for seed in 200..203 {
        compare(seed, Alphabet::Data, Placement::Within { bytes: 1 << 20 });
    }
}
