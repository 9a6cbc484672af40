//! A tree of the engine: the tables that it consists of, and which of them are newer.
//!
//! The file `current` names the list of tables (`v<number>`: u64, xxh3-128 of it: u128, 0). The list's section `tables` has the
//! number of levels: u8; for each the number of runs: u8; for each of these how many tables: u32; and of each table its number:
//! u64, 0, its check sum: u128, and a u64. What is in a lower level is newer than what a higher one has of the same key.

use super::archive;
use super::block::{Entry, Reader};
use super::table::{Gap, Piece, Possible, Table};
use bytes::Bytes;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// The newest that the journals have of a tree's keys: the engine's number of the change, and what it put.
pub(super) type Journalled = BTreeMap<Bytes, (u64, Option<Bytes>)>;

#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    tables: Vec<Placed>,
    /// Files that are damaged where no record is lost by it, and what of them.
    pub(super) damaged_parts: Vec<(PathBuf, &'static str)>,
    /// A table that is not there, or the directory itself: anything may be lost.
    pub(super) missing: Vec<PathBuf>,
}

#[derive(Debug)]
struct Placed {
    table: Table,
    gaps: Vec<Gap>,
    /// `None`: that list is lost.
    level: Option<usize>,
}

/// What is left of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) key: Bytes,
    pub(super) value: Option<Bytes>,
    pub(super) age: Age,
}

/// Whether something newer of the same key was where nothing can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Age {
    Newest,
    /// Perhaps: nobody can tell.
    Doubtful,
    /// All but certainly.
    Outdated,
}

impl Tree {
    /// Opens what is left of it, and reads all of it once.
    pub(super) fn open(path: &Path) -> io::Result<Tree> {
        let mut tree = Tree { path: path.to_owned(), tables: vec![], damaged_parts: vec![], missing: vec![] };
        let tables = path.join("tables");
        let levels = list_of_tables(path);
        let numbers: Vec<(u64, Option<usize>)> = match &levels {
            Some(levels) => levels.iter().map(|(number, level)| (*number, Some(*level))).collect(),
            None => {
                tree.damaged_parts.push((path.join("current"), "the list of its tables"));
                numbers_in(&tables).into_iter().map(|number| (number, None)).collect()
            }
        };
        if !tables.is_dir() {
            tree.missing.push(tables);
            return Ok(tree);
        }
        for (number, level) in numbers {
            let path = tables.join(number.to_string());
            let table = match Table::open(&path) {
                Ok(table) => table,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tree.missing.push(path);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let parts = table.damaged_parts.iter().map(|part| (path.clone(), *part));
            tree.damaged_parts.extend(parts);
            tree.tables.push(Placed { gaps: table.gaps(), table, level });
        }
        Ok(tree)
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damaged_parts.is_empty()
            && self.missing.is_empty()
            && self.tables.iter().all(|placed| placed.gaps.is_empty())
    }

    /// What cannot be read, and in which file.
    pub(super) fn gaps(&self) -> impl Iterator<Item = (&Path, Gap)> {
        let anything = || Gap { first: Bytes::new(), last: None };
        let missing = self.missing.iter().map(move |path| (&**path, anything()));
        let in_tables = self
            .tables
            .iter()
            .flat_map(|placed| placed.gaps.iter().map(|gap| (&*placed.table.path, gap.clone())));
        missing.chain(in_tables)
    }

    /// Hands on the newest that is left of each key, in their order. Deletions, too, where they may not be the last word.
    pub(super) fn each<E>(
        &self,
        journalled: &Journalled,
        mut visit: impl FnMut(Found) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut sources: Vec<Source<'_>> = self.tables.iter().map(|placed| Source::of(placed)).collect();
        let mut heap: BinaryHeap<Next> = BinaryHeap::new();
        for (number, source) in sources.iter_mut().enumerate() {
            heap.extend(source.next().map(|entry| Next { entry, source: number }));
        }
        let mut journalled = journalled.iter().peekable();
        loop {
            let in_table = heap.peek().map(|next| next.entry.key.clone());
            let in_journal = journalled.peek().map(|(key, _)| (*key).clone());
            let Some(key) = in_table.into_iter().chain(in_journal).min() else { return Ok(()) };
            let mut newest: Option<Next> = None;
            while heap.peek().is_some_and(|next| next.entry.key == key) {
                let Some(next) = heap.pop() else { break };
                heap.extend(sources[next.source].next().map(|entry| Next { entry, source: next.source }));
                newest.get_or_insert(next);
            }
            let of_journal = journalled.next_if(|(journalled, _)| **journalled == key);
            let found = match (newest, of_journal) {
                // The journals that are left have all that happened since the first of them began.
                (next, Some((_, (seqno, value))))
                    if next.as_ref().is_none_or(|next| next.entry.seqno <= *seqno) =>
                {
                    Found { key, value: value.clone(), age: Age::Newest }
                }
                (Some(next), _) => {
                    let age = self.age(&next);
                    Found { key, value: next.entry.value, age }
                }
                (None, _) => continue,
            };
            visit(found)?;
        }
    }

    fn age(&self, found: &Next) -> Age {
        let level = self.tables[found.source].level;
        let newer = self.tables.iter().filter(|placed| {
            let is_above = level.zip(placed.level).is_some_and(|(own, other)| own < other);
            !is_above
                && found.entry.seqno <= placed.table.last_seqno()
                && placed.gaps.iter().any(|gap| gap.has(&found.entry.key))
        });
        let possible = newer.map(|placed| placed.table.may_have(&found.entry.key)).max();
        match possible {
            // Nothing is known of a table that is not there.
            None | Some(Possible::No) if self.missing.is_empty() => Age::Newest,
            Some(Possible::Likely) => Age::Outdated,
            _ => Age::Doubtful,
        }
    }

    pub(super) fn name_of(&self, file: &Path) -> String {
        let above = self.path.parent().and_then(Path::parent).unwrap_or(&self.path);
        file.strip_prefix(above).unwrap_or(file).display().to_string()
    }
}

/// The records of a table that can be read, one after the other.
struct Source<'a> {
    pieces: super::table::Pieces<'a>,
    entries: std::vec::IntoIter<Entry>,
}

impl Source<'_> {
    fn of(placed: &Placed) -> Source<'_> {
        Source { pieces: placed.table.pieces(), entries: Vec::new().into_iter() }
    }
}

impl Iterator for Source<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            if let Piece::Records(entries) = self.pieces.next()? {
                self.entries = entries.into_iter();
            }
        }
    }
}

/// The next record of a source. The greatest is the first by key, and of one key the newest.
struct Next {
    entry: Entry,
    source: usize,
}

impl Next {
    fn order(&self) -> (&Bytes, std::cmp::Reverse<u64>) {
        (&self.entry.key, std::cmp::Reverse(self.entry.seqno))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Next) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Next) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Next) -> std::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

/// The numbers of a tree's tables, and their levels. `None` if that is not what was written.
fn list_of_tables(path: &Path) -> Option<BTreeMap<u64, usize>> {
    let current = fs::read(path.join("current")).ok()?;
    let mut at = Reader { bytes: &current, at: 0 };
    let (number, sum) = (u64::from_le_bytes(at.array()?), u128::from_le_bytes(at.array()?));
    let path = path.join(format!("v{number}"));
    if xxh3_128(&fs::read(&path).ok()?) != sum {
        return None;
    }
    let file = File::open(&path).ok()?;
    let section = *archive::sections(&file)?.get(&b"tables"[..])?;
    let tables = archive::read(&file, section).ok()?;
    let mut at = Reader { bytes: &tables, at: 0 };
    let mut levels = BTreeMap::new();
    for level in 0..at.byte()? {
        for _ in 0..at.byte()? {
            for _ in 0..u32::from_le_bytes(at.array()?) {
                levels.insert(u64::from_le_bytes(at.array()?), level.into());
                at.take(1 + 16 + 8)?;
            }
        }
    }
    Some(levels)
}

fn numbers_in(tables: &Path) -> Vec<u64> {
    let entries = fs::read_dir(tables).into_iter().flatten().flatten();
    let mut numbers: Vec<u64> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
