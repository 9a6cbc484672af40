//! Inodes that are gone at the end of the digest.

use crate::{Change, Fate, Lsn, Place, Record};
use soda_types::semantics::is_access_list;
use soda_types::{Fid, FileKind, SetAttr, SetTime, Timestamp};
use std::collections::{HashMap, HashSet};

/// Leaves out all changes of inodes that were made in this digest and are gone in the end. Directories that changed by what is
/// left out keep the times that they got.
///
/// What was done to an inode that was there before is told although it is gone: another machine may have it open, and the
/// server does not tell who has.
pub(super) fn without_dead(records: Vec<Record>) -> Vec<Record> {
    let passing = Passing::of(&records);
    if passing.files.is_empty() && passing.directories.is_empty() {
        return records;
    }
    let mut steps: Vec<Step> = records.into_iter().map(Step::from).collect();
    steps.iter_mut().for_each(|step| step.erase(&passing.files, Kind::File));
    let unused = unused_directories(&steps, passing.directories.clone());
    for step in &mut steps {
        step.erase(&unused, Kind::Directory);
        let idle = |change: &Change| is_contents_of(change, &passing.directories) && !is_handed_on(change);
        if step.change.as_ref().is_some_and(idle) {
            step.change = None;
        }
    }
    with_times(steps, unused)
}

/// Which inodes come and go.
struct Passing {
    /// All but directories.
    files: HashSet<Fid>,
    directories: HashSet<Fid>,
}

impl Passing {
    fn of(records: &[Record]) -> Passing {
        let mut made: HashMap<Fid, FileKind> = HashMap::new();
        let mut gone = HashSet::new();
        // Without what is moved away from under a whiteout, that would have to be made by a change of its own: it stays.
        let mut covered = HashSet::new();
        for record in records {
            match &record.change {
                Change::Whiteout { moved, left, replaced, .. } => {
                    covered.insert(*moved);
                    made.insert(left.0, FileKind::CharDevice);
                    gone.extend(replaced.filter(|(_, then)| *then == Fate::Gone).map(|(fid, _)| fid));
                }
                Change::Create { fid, new, .. } | Change::TmpFile { fid, new, .. } => {
                    made.insert(*fid, new.kind);
                }
                Change::Unlink { fid, then: Fate::Gone, .. }
                | Change::RemoveDirectory { fid, .. }
                | Change::Release { fid }
                | Change::Rename { replaced: Some((fid, Fate::Gone)), .. } => {
                    gone.insert(*fid);
                }
                _ => {}
            }
        }
        let passing = gone.difference(&covered).filter(|fid| made.contains_key(fid)).copied();
        let (directories, files) = passing.partition(|fid| made.get(fid) == Some(&FileKind::Directory));
        Passing { files, directories }
    }
}

/// A record, or what is left of it.
struct Step {
    lsn: Lsn,
    at: Timestamp,
    change: Option<Change>,
    /// Directories that changed by what is left out.
    changed: Vec<Fid>,
}

#[derive(Clone, Copy)]
enum Kind {
    File,
    Directory,
}

impl From<Record> for Step {
    fn from(record: Record) -> Step {
        Step { lsn: record.lsn, at: record.at, change: Some(record.change), changed: Vec::new() }
    }
}

impl Step {
    /// What is left of it in a world in which these inodes never were.
    fn erase(&mut self, never: &HashSet<Fid>, kind: Kind) {
        let Some(change) =
            self.change.take_if(|change| subjects(change).iter().any(|fid| never.contains(fid)))
        else {
            return;
        };
        let before = directories_of(&change);
        self.change = match change {
            Change::Rename { from, to, moved, what, replaced } => {
                let replaced = replaced.filter(|(fid, _)| !never.contains(fid));
                match (never.contains(&moved), replaced) {
                    (false, replaced) => Some(Change::Rename { from, to, moved, what, replaced }),
                    (true, None) => None,
                    (true, Some((fid, then))) => Some(match kind {
                        Kind::File => Change::Unlink { place: to, fid, then },
                        Kind::Directory => Change::RemoveDirectory { place: to, fid },
                    }),
                }
            }
            Change::Whiteout { from, to, moved, what, replaced, left } => {
                let replaced = replaced.filter(|(fid, _)| !never.contains(fid));
                Some(if never.contains(&left.0) {
                    Change::Rename { from, to, moved, what, replaced }
                } else {
                    Change::Whiteout { from, to, moved, what, replaced, left }
                })
            }
            Change::Exchange { one, other, what } => {
                let rename = |moved: (Place, Fid), to: Place| {
                    Some(Change::Rename { from: moved.0, to, moved: moved.1, what, replaced: None })
                };
                match (never.contains(&one.1), never.contains(&other.1)) {
                    (true, true) => None,
                    (true, false) => rename(other, one.0),
                    (false, _) => rename(one, other.0),
                }
            }
            _ => None,
        };
        let after = self.change.as_ref().map(directories_of).unwrap_or_default();
        self.changed.extend(before.into_iter().filter(|directory| !after.contains(directory)));
    }
}

/// The inodes that a change is about: all that would not be there if they had never been made.
fn subjects(change: &Change) -> Vec<Fid> {
    match change {
        Change::Rename { moved, replaced, .. } => {
            [*moved].into_iter().chain(replaced.map(|(fid, _)| fid)).collect()
        }
        Change::Whiteout { moved, replaced, left, .. } => {
            [*moved, left.0].into_iter().chain(replaced.map(|(fid, _)| fid)).collect()
        }
        Change::Exchange { one, other, .. } => vec![one.1, other.1],
        Change::Create { fid, .. }
        | Change::TmpFile { fid, .. }
        | Change::Link { fid, .. }
        | Change::Unlink { fid, .. }
        | Change::RemoveDirectory { fid, .. }
        | Change::Release { fid }
        | Change::SetAttr { fid, .. }
        | Change::Write { fid, .. }
        | Change::Allocate { fid, .. }
        | Change::SetXattr { fid, .. }
        | Change::RemoveXattr { fid, .. } => vec![*fid],
    }
}

/// The directories whose names, and so times, change.
fn directories_of(change: &Change) -> Vec<Fid> {
    match change {
        Change::Create { place, .. }
        | Change::Link { place, .. }
        | Change::Unlink { place, .. }
        | Change::RemoveDirectory { place, .. } => vec![place.directory],
        Change::Rename { from, to, .. } | Change::Whiteout { from, to, .. } => {
            vec![from.directory, to.directory]
        }
        Change::Exchange { one, other, .. } => vec![one.0.directory, other.0.directory],
        _ => Vec::new(),
    }
}

fn is_contents_of(change: &Change, inodes: &HashSet<Fid>) -> bool {
    match change {
        Change::SetAttr { fid, .. }
        | Change::Write { fid, .. }
        | Change::Allocate { fid, .. }
        | Change::SetXattr { fid, .. }
        | Change::RemoveXattr { fid, .. } => inodes.contains(fid),
        _ => false,
    }
}

/// Whether what is made in a directory afterwards may be another for it: its group and set-group-ID are inherited, and its
/// default list.
fn is_handed_on(change: &Change) -> bool {
    match change {
        Change::SetAttr { set, .. } => set.perm.is_some() || set.gid.is_some(),
        Change::SetXattr { name, .. } | Change::RemoveXattr { name, .. } => is_access_list(name),
        _ => false,
    }
}

/// Of directories that were made and are gone: those through which nothing went that is left. A file that was made in one
/// and moved elsewhere needs it, for what it inherited.
fn unused_directories(steps: &[Step], passing: HashSet<Fid>) -> HashSet<Fid> {
    if passing.is_empty() {
        return passing;
    }
    let mut uses: HashMap<Fid, u32> = HashMap::new();
    // For each, where it was itself: what falls with it.
    let mut was_in: HashMap<Fid, Vec<Fid>> = HashMap::new();
    for change in steps.iter().filter_map(|step| step.change.as_ref()) {
        let mut needed = directories_of(change);
        if let Change::TmpFile { directory, .. } = change {
            needed.push(*directory);
        }
        let falls_with = match subjects(change).as_slice() {
            [one] if passing.contains(one) => Some(*one),
            _ => None,
        };
        for directory in needed.into_iter().filter(|directory| passing.contains(directory)) {
            *uses.entry(directory).or_default() += 1;
            if let Some(one) = falls_with {
                was_in.entry(one).or_default().push(directory);
            }
        }
    }
    let mut unused: HashSet<Fid> = passing.iter().filter(|fid| !uses.contains_key(fid)).copied().collect();
    let mut to_do: Vec<Fid> = unused.iter().copied().collect();
    while let Some(fid) = to_do.pop() {
        for parent in was_in.remove(&fid).unwrap_or_default() {
            let left = uses.entry(parent).or_insert(1);
            *left -= 1;
            if *left == 0 && unused.insert(parent) {
                to_do.push(parent);
            }
        }
    }
    unused
}

/// The steps as records again. A directory that changed last by a change that is left out gets the times of that change,
/// unless it `never` was either.
fn with_times(steps: Vec<Step>, never: HashSet<Fid>) -> Vec<Record> {
    // Directories that need no times: a later record sets them anyway, or they are gone.
    let mut timed = never;
    let mut records = Vec::with_capacity(steps.len());
    for step in steps.into_iter().rev() {
        let Step { lsn, at, change, changed } = step;
        if let Some(change) = change {
            timed.extend(directories_of(&change));
            if let Change::RemoveDirectory { fid, .. }
            | Change::SetAttr { fid, set: SetAttr { mtime: Some(_), .. } } = &change
            {
                timed.insert(*fid);
            }
            records.push(Record { lsn, at, change });
        }
        for fid in changed {
            if timed.insert(fid) {
                let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
                records.push(Record { lsn, at, change: Change::SetAttr { fid, set } });
            }
        }
    }
    records.reverse();
    records
}
