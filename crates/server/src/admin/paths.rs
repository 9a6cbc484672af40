//! Paths of inodes, for people. The store has names by directory and no way back, so the tree is searched, breadth first,
//! for as long as a person is willing to wait.

use soda_types::{Fid, FileKind};
use soda_volume::{Listing, Volume};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_millis(500);
const PAGE: usize = 1000;

/// One path for each inode that is found in time.
pub(super) fn paths_of(volume: &Volume, fids: impl IntoIterator<Item = Fid>) -> HashMap<Fid, String> {
    let mut wanted: HashSet<Fid> = fids.into_iter().collect();
    let mut found = HashMap::new();
    if wanted.remove(&volume.root()) {
        found.insert(volume.root(), "/".to_owned());
    }
    let end = Instant::now() + PATIENCE;
    let mut directories = VecDeque::from([(volume.root(), String::new())]);
    while let Some((directory, path)) = directories.pop_front() {
        let mut after = None;
        loop {
            if wanted.is_empty() || Instant::now() > end {
                return found;
            }
            // A directory that has just gone has nothing that is looked for.
            let Ok(page) = volume.read_dir(directory, after.as_ref(), PAGE, Listing::Names) else { break };
            for entry in &page {
                let below = || format!("{path}/{}", entry.name);
                if wanted.remove(&entry.fid) {
                    found.insert(entry.fid, below());
                }
                if entry.kind == FileKind::Directory {
                    directories.push_back((entry.fid, below()));
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.name.clone()),
                _ => break,
            }
        }
    }
    found
}
