//! The census compared with itself.

use super::Problem;
use super::census::{Census, Stream, UsedChunk};
use super::sharing;
use crate::key;
use crate::record::{InodeMark, Runs};
use crate::sweep::{spans_of, subtract};
use crate::versions::run_of;
use crate::view::View;
use crate::volume::Volume;
use soda_storage::{ChunkRef, Table};
use soda_types::{FileKind, FsResult, Ino};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

pub(super) fn problems(volume: &Volume, census: &Census) -> FsResult<Vec<Problem>> {
    let mut problems = Vec::new();
    // First, so that what repair makes gets numbers that are free.
    numbers(volume, census, &mut problems)?;
    runs(volume, census, &mut problems)?;
    problems.extend(census.unreadable.iter().cloned());
    let names = names(census, &mut problems);
    reachability(census, &names, &mut problems);
    links(census, &names, &mut problems);
    orphans(census, &names, &mut problems);
    data(census, &names, &mut problems);
    sharing::problems(census, &mut problems);
    xattrs(census, &mut problems);
    space(census, &mut problems);
    totals(volume, census, &mut problems);
    Ok(problems)
}

/// What the names say that are in order.
#[derive(Default)]
struct Names {
    /// Names of each inode.
    links: HashMap<Ino, u32>,
    entries: HashMap<Ino, u64>,
    subdirectories: HashMap<Ino, u32>,
    /// Where each other inode is, of several places one.
    places: HashMap<Ino, Ino>,
    /// Files whose record is lost, and that are made anew: their streams have their numbers.
    remade: BTreeSet<Ino>,
    /// Where each directory is, and the place of its name in the census.
    parents: BTreeMap<Ino, (Ino, usize)>,
}

fn names(census: &Census, problems: &mut Vec<Problem>) -> Names {
    let mut names = Names::default();
    // What has names is a directory, also if its record is lost.
    let lost: BTreeSet<Ino> =
        census.names.iter().map(|name| name.0).filter(|parent| !census.inodes.contains_key(parent)).collect();
    let lost_directories = lost.iter().filter(|ino| **ino != Ino::ROOT);
    problems.extend(lost_directories.map(|ino| Problem::LostDirectory { ino: *ino }));
    let owners = census.owners();
    let is_directory = |ino: &Ino| match census.inodes.get(ino) {
        Some(inode) => inode.kind == FileKind::Directory || *ino == Ino::ROOT,
        None => true,
    };
    for (place, (parent, name, dirent)) in census.names.iter().enumerate() {
        let (parent, name, ino) = (*parent, name.clone(), dirent.ino);
        if !is_directory(&parent) {
            problems.push(Problem::NameInNoDirectory { parent, name, ino });
            continue;
        }
        // Counted as long as it is there: the count is put right once the name is gone.
        *names.entries.entry(parent).or_default() += 1;
        let Some(inode) = census.inodes.get(&ino) else {
            if lost.contains(&ino) {
                continue;
            }
            // What a new file has its data under, unless it was emptied since.
            let stream = census.streams.get(&ino.0).filter(|_| dirent.kind == FileKind::File);
            if let Some(stream) = stream
                && !owners.contains_key(&ino.0)
                && !census.reclaims.contains_key(&ino.0)
            {
                if names.remade.insert(ino) {
                    let size = stream.extents.iter().map(|extent| extent.range.end).max().unwrap_or(0);
                    problems.push(Problem::LostFile { ino, size, allocated: stream.allocated() });
                }
                continue;
            }
            problems.push(Problem::DanglingName { parent, name, ino });
            *names.subdirectories.entry(parent).or_default() += u32::from(dirent.kind == FileKind::Directory);
            continue;
        };
        if inode.kind != dirent.kind {
            problems.push(Problem::WrongKind { parent, name: name.clone(), ino, kind: inode.kind });
        }
        if inode.kind != FileKind::Directory {
            *names.links.entry(ino).or_default() += 1;
            names.places.insert(ino, parent);
            continue;
        }
        *names.subdirectories.entry(parent).or_default() += 1;
        match names.parents.get(&ino) {
            None if ino == Ino::ROOT => problems.push(Problem::SecondName { parent, name, ino }),
            None => {
                names.parents.insert(ino, (parent, place));
            }
            // Of several names the one that the directory itself knows is right.
            Some((_, other)) if parent == inode.parent => {
                let (other_parent, other_name, _) = &census.names[*other];
                problems.push(Problem::SecondName { parent: *other_parent, name: other_name.clone(), ino });
                names.parents.insert(ino, (parent, place));
            }
            Some(_) => problems.push(Problem::SecondName { parent, name, ino }),
        }
    }
    names
}

fn reachability(census: &Census, names: &Names, problems: &mut Vec<Problem>) {
    if !census.inodes.get(&Ino::ROOT).is_some_and(|root| root.kind == FileKind::Directory) {
        problems.push(Problem::NoRoot);
    }
    // Directories known to end in the root, or in something that is reported as unreachable itself.
    let mut settled: HashSet<Ino> = HashSet::from([Ino::ROOT]);
    for ino in names.parents.keys() {
        let mut path = Vec::new();
        let mut on_path = HashSet::new();
        let mut at = *ino;
        while !settled.contains(&at) {
            if !on_path.insert(at) {
                let (parent, place) = names.parents[&at];
                problems.push(Problem::Loop { parent, name: census.names[place].1.clone(), ino: at });
                break;
            }
            path.push(at);
            match names.parents.get(&at) {
                Some((parent, _)) => at = *parent,
                None => break,
            }
        }
        settled.extend(path);
    }
    for (ino, inode) in &census.inodes {
        let named = match inode.kind {
            FileKind::Directory => *ino == Ino::ROOT || names.parents.contains_key(ino),
            _ => names.links.contains_key(ino),
        };
        if !named && !census.orphans.contains(ino) {
            problems.push(Problem::Unreachable { ino: *ino, kind: inode.kind });
        }
    }
}

fn links(census: &Census, names: &Names, problems: &mut Vec<Problem>) {
    for (ino, inode) in &census.inodes {
        let ino = *ino;
        let recorded = inode.nlink;
        if inode.kind != FileKind::Directory {
            let actual = names.links.get(&ino).copied().unwrap_or(0);
            // One without any name gets one first.
            if recorded != actual && (actual > 0 || census.orphans.contains(&ino)) {
                problems.push(Problem::WrongLinkCount { ino, recorded, actual });
            }
            // That it is not known is always right.
            let place = names.places.get(&ino).copied().filter(|_| actual == 1).unwrap_or_default();
            if inode.parent != Ino::default() && inode.parent != place {
                problems.push(Problem::WrongParent { ino, recorded: inode.parent, actual: place });
            }
            continue;
        }
        let entries = names.entries.get(&ino).copied().unwrap_or(0);
        if entries != inode.entries {
            problems.push(Problem::WrongNameCount { ino, recorded: inode.entries, actual: entries });
        }
        let parent = names.parents.get(&ino).map(|(parent, _)| *parent).or((ino == Ino::ROOT).then_some(ino));
        match parent {
            Some(actual) => {
                if inode.parent != actual {
                    problems.push(Problem::WrongParent { ino, recorded: inode.parent, actual });
                }
                let actual = 2 + names.subdirectories.get(&ino).copied().unwrap_or(0);
                if recorded != actual {
                    problems.push(Problem::WrongLinkCount { ino, recorded, actual });
                }
            }
            None if census.orphans.contains(&ino) && recorded != 0 => {
                problems.push(Problem::WrongLinkCount { ino, recorded, actual: 0 });
            }
            None => {}
        }
    }
}

fn orphans(census: &Census, names: &Names, problems: &mut Vec<Problem>) {
    for ino in &census.orphans {
        let ino = *ino;
        if !census.inodes.contains_key(&ino) {
            problems.push(Problem::OrphanWithoutInode { ino });
        } else if names.links.contains_key(&ino) || names.parents.contains_key(&ino) || ino == Ino::ROOT {
            problems.push(Problem::OrphanWithNames { ino });
        }
    }
}

fn data(census: &Census, names: &Names, problems: &mut Vec<Problem>) {
    let owners = census.owners();
    let none = Stream::default();
    for (stream, reclaim) in &census.reclaims {
        let xattrs_of = reclaim.xattrs_of.filter(|ino| census.inodes.contains_key(ino));
        if let Some(ino) = owners.get(stream).copied().or(xattrs_of) {
            problems.push(Problem::ReclaimedInUse { stream: *stream, ino });
        }
    }
    for (stream, extents) in &census.streams {
        match owners.get(stream) {
            Some(ino) => file_extents(census, *ino, *stream, extents, problems),
            None if census.reclaims.contains_key(stream) || names.remade.contains(&Ino(*stream)) => {}
            None => problems.push(Problem::LeakedExtents { stream: *stream }),
        }
    }
    for (ino, inode) in census.inodes.iter().filter(|(_, inode)| inode.kind == FileKind::File) {
        let actual = census.streams.get(&inode.stream).unwrap_or(&none).allocated();
        let recorded = (inode.allocated, inode.inline);
        if recorded != actual {
            problems.push(Problem::WrongAllocation { ino: *ino, recorded, actual });
        }
    }
}

fn file_extents(census: &Census, ino: Ino, stream: u64, extents: &Stream, problems: &mut Vec<Problem>) {
    let size = census.inodes[&ino].size;
    let mut end = 0;
    for extent in &extents.extents {
        let range = extent.range.clone();
        if range.start < end {
            problems.push(Problem::Overlap { ino, stream, range });
            continue;
        }
        end = range.end;
        if let Some(UsedChunk { chunk, bad: Some(why), .. }) = extent.chunk {
            problems.push(Problem::LostData { ino, stream, range: range.clone(), chunk, why });
        }
        if range.end > size {
            problems.push(Problem::PastEnd { ino, stream, range, size });
        }
    }
}

fn xattrs(census: &Census, problems: &mut Vec<Problem>) {
    let dying: HashSet<Ino> = census.reclaims.values().filter_map(|reclaim| reclaim.xattrs_of).collect();
    for (ino, keys) in &census.xattrs {
        if !census.inodes.contains_key(ino) && !dying.contains(ino) {
            problems.extend(keys.iter().map(|key| Problem::LeakedXattr { ino: *ino, key: key.clone() }));
        }
    }
    for (ino, inode) in &census.inodes {
        let actual = census.xattrs.get(ino).map_or(0, Vec::len) as u32;
        if actual != inode.xattrs {
            problems.push(Problem::WrongXattrCount { ino: *ino, recorded: inode.xattrs, actual });
        }
    }
}

fn space(census: &Census, problems: &mut Vec<Problem>) {
    let in_use = |chunk: &&ChunkRef| census.in_use.contains(chunk);
    problems
        .extend(census.released.iter().filter(in_use).map(|chunk| Problem::ReleasedInUse { chunk: *chunk }));
    let mut known: Vec<ChunkRef> = census.in_use.iter().chain(&census.released).copied().collect();
    known.sort_unstable();
    for (segment, stored) in &census.stored {
        let spans = spans_of(&known, *segment);
        let leaked = stored.iter().flat_map(|range| subtract(range.clone(), &spans));
        problems.extend(leaked.map(|range| Problem::LeakedSpace { segment: *segment, range }));
    }
}

fn totals(volume: &Volume, census: &Census, problems: &mut Vec<Problem>) {
    let recorded = volume.usage();
    let actual = (census.inodes.len() as u64, census.inodes.values().map(|inode| inode.allocated).sum());
    if recorded != actual {
        problems.push(Problem::WrongTotals { recorded, actual });
    }
}

/// Numbers given out must be below the mark.
fn numbers(volume: &Volume, census: &Census, problems: &mut Vec<Problem>) -> FsResult<()> {
    let numbers = census.inodes.iter().flat_map(|(ino, inode)| [ino.0, inode.stream]);
    // What names and attributes are of may be lost, and was given nevertheless.
    let named = census.names.iter().map(|(_, _, dirent)| dirent.ino).chain(census.xattrs.keys().copied());
    let others = census.reclaims.keys().copied().chain(named.map(|ino| ino.0));
    let highest = numbers.chain(others).max().unwrap_or(0);
    // Not where this run goes on: that is above the mark, by chance.
    let mark: Option<InodeMark> = volume.record(Table::Meta, &key::inode_mark(volume.id))?;
    let recorded = mark.map_or(0, |mark| mark.next);
    if recorded <= highest {
        problems.push(Problem::LowInodeMark { recorded, highest });
    }
    Ok(())
}

/// No version may be of a run that is yet to come.
fn runs(volume: &Volume, census: &Census, problems: &mut Vec<Problem>) -> FsResult<()> {
    let versions = census.inodes.values().map(|inode| inode.version.max(inode.data_version));
    let highest = versions.map(run_of).max().unwrap_or(0);
    let recorded = volume.record(Table::Meta, &key::runs(volume.id))?.unwrap_or(Runs::default()).begun;
    if recorded < highest {
        problems.push(Problem::LowRuns { recorded, highest });
    }
    Ok(())
}
