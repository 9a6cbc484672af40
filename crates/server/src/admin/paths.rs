//! Paths of inodes, for people. The store has names by directory. Of an inode with one name it knows the directory; for others
//! the tree is searched, breadth first. Both for as long as a person is willing to wait.

use soda_protocol::Whereabouts;
use soda_types::{Errno, Fid, FileKind, Name};
use soda_volume::{Ancestry, DirEntry, Listing, Volume};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_millis(500);
const PAGE: usize = 1000;

/// Most inodes in one answer.
const PATHS_MAX: usize = 1000;

/// Most directories on the ways to all of them: where somebody has made very deep ones.
const STEPS_MAX: usize = 1 << 20;

/// Most bytes of names in one answer.
const PATHS_BYTES: usize = 1 << 20;

/// One path for each inode that is found in time.
pub(super) fn paths_of(volume: &Volume, fids: impl IntoIterator<Item = Fid>) -> HashMap<Fid, String> {
    let path = |names: Vec<Name>| match names.is_empty() {
        true => "/".to_owned(),
        false => names.iter().map(|name| format!("/{name}")).collect(),
    };
    names_of(volume, fids).into_iter().map(|(fid, names)| (fid, path(names))).collect()
}

/// Where each of the inodes lies, in their order.
pub(super) fn whereabouts(volume: &Volume, fids: &[Fid]) -> Vec<Whereabouts> {
    let fids = &fids[..fids.len().min(PATHS_MAX)];
    let found = names_of(volume, fids.iter().copied());
    let mut room = PATHS_BYTES;
    let place = |fid: &Fid| match found.get(fid) {
        Some(names) => {
            let bytes: usize = names.iter().map(|name| name.as_bytes().len() + 1).sum();
            match room.checked_sub(bytes) {
                Some(left) => {
                    room = left;
                    Whereabouts::At(names.clone())
                }
                None => Whereabouts::NotFound,
            }
        }
        None if volume.getattr(*fid).is_err_and(|error| error.errno == Errno::Stale) => Whereabouts::Gone,
        None => Whereabouts::NotFound,
    };
    fids.iter().map(place).collect()
}

fn names_of(volume: &Volume, fids: impl IntoIterator<Item = Fid>) -> HashMap<Fid, Vec<Name>> {
    let mut wanted: HashSet<Fid> = fids.into_iter().collect();
    let end = Instant::now() + PATIENCE;
    let mut found = from_above(volume, &wanted, end);
    wanted.retain(|fid| !found.contains_key(fid));
    search(volume, &mut wanted, &mut found, end);
    found
}

/// Of those whose directories are known.
fn from_above(volume: &Volume, wanted: &HashSet<Fid>, end: Instant) -> HashMap<Fid, Vec<Name>> {
    let mut steps = STEPS_MAX;
    let chain = |fid: &Fid| match volume.ancestry(*fid) {
        Ok(Ancestry::Below(chain)) => {
            steps = steps.checked_sub(chain.len())?;
            Some((*fid, chain))
        }
        Ok(Ancestry::Nowhere) | Err(_) => None,
    };
    let in_time = wanted.iter().take_while(|_| Instant::now() <= end);
    let chains: Vec<(Fid, Vec<Fid>)> = in_time.filter_map(chain).collect();
    let mut children: HashMap<Fid, HashSet<Fid>> = HashMap::new();
    for (fid, chain) in &chains {
        let mut child = *fid;
        for above in chain {
            children.entry(*above).or_default().insert(child);
            child = *above;
        }
    }
    let mut names: HashMap<Fid, Name> = HashMap::new();
    for (directory, mut missing) in children {
        let _ = each_entry(volume, directory, end, |entry| {
            if missing.remove(&entry.fid) {
                names.insert(entry.fid, entry.name.clone());
            }
            if missing.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
    let named = |(fid, chain): (Fid, Vec<Fid>)| {
        let below_root = chain.len();
        let way = std::iter::once(&fid).chain(&chain).take(below_root);
        let names: Option<Vec<Name>> = way.map(|fid| names.get(fid).cloned()).collect();
        names.map(|names| (fid, names.into_iter().rev().collect()))
    };
    chains.into_iter().filter_map(named).collect()
}

fn search(volume: &Volume, wanted: &mut HashSet<Fid>, found: &mut HashMap<Fid, Vec<Name>>, end: Instant) {
    /// A directory, and where its name is: the place of its parent in the list, which comes before it.
    struct Seen {
        fid: Fid,
        below: Option<(usize, Name)>,
    }
    let mut seen = vec![Seen { fid: volume.root(), below: None }];
    let mut place = 0;
    while place < seen.len() && !wanted.is_empty() {
        let directory = seen[place].fid;
        let ended = each_entry(volume, directory, end, |entry| {
            if wanted.remove(&entry.fid) {
                let mut names = vec![entry.name.clone()];
                let mut above = &seen[place].below;
                while let Some((place, name)) = above {
                    names.push(name.clone());
                    above = &seen[*place].below;
                }
                names.reverse();
                found.insert(entry.fid, names);
            }
            if entry.kind == FileKind::Directory {
                seen.push(Seen { fid: entry.fid, below: Some((place, entry.name.clone())) });
            }
            if wanted.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if ended.is_break() {
            return;
        }
        place += 1;
    }
}

/// Breaks where `look` does, and when the time is over.
fn each_entry(
    volume: &Volume,
    directory: Fid,
    end: Instant,
    mut look: impl FnMut(&DirEntry) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut after = None;
    loop {
        if Instant::now() > end {
            return ControlFlow::Break(());
        }
        // A directory that has just gone has nothing that is looked for.
        let Ok(page) = volume.read_dir(directory, after.as_ref(), PAGE, Listing::Names) else { break };
        page.iter().try_for_each(&mut look)?;
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.name.clone()),
            _ => break,
        }
    }
    ControlFlow::Continue(())
}
