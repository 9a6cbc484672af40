//! What is lost of damaged metadata, in words for those above.

use super::super::meta::{self, hex};
use super::table::Gap;
use super::tree::Age;
use crate::Table;
use bytes::Bytes;
use std::fmt;

/// What could be read of damaged metadata, and what could not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Salvaged {
    /// How many records there are.
    pub records: u64,
    /// Keys of which records may be lost.
    pub lost: Vec<LostRange>,
    /// Records that are kept although newer ones of them are lost, or may be.
    pub old: Vec<OldRecord>,
    /// Files that are damaged where no record was, and what of them: the new ones have all that.
    pub damaged: Vec<String>,
    /// Batches of changes, at least, that the journal has lost.
    pub lost_batches: Option<u64>,
}

/// Some keys of a table: from the first, included, up to the last, included, or to the end of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostRange {
    pub table: Table,
    pub first: Bytes,
    pub last: Option<Bytes>,
    /// The damaged file.
    pub file: String,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OldRecord {
    pub table: Table,
    pub key: Bytes,
}

impl LostRange {
    /// Whether any key may be lost that begins with this.
    pub fn touches(&self, prefix: &[u8]) -> bool {
        let first = &self.first[..self.first.len().min(prefix.len())];
        first <= prefix && self.last.as_ref().is_none_or(|last| prefix <= &last[..])
    }
}

impl fmt::Display for LostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: records of table {} cannot be read, ", self.file, self.table.name())?;
        match (&self.first[..], &self.last) {
            ([], None) => f.write_str("of any key"),
            ([], Some(last)) => write!(f, "up to key {}", hex(last)),
            (first, None) => write!(f, "from key {} on", hex(first)),
            (first, Some(last)) => write!(f, "from key {} to {}", hex(first), hex(last)),
        }
    }
}

/// A gap of a tree, by the tables that are in it.
pub(super) fn ranges(tree: usize, gap: &Gap, file: &str) -> Vec<LostRange> {
    let range = |(table, prefix): (Table, Option<u8>)| {
        let whole =
            LostRange { table, first: gap.first.clone(), last: gap.last.clone(), file: file.to_owned() };
        let Some(prefix) = prefix else { return Some(whole) };
        let first = match gap.first.first() {
            Some(first) if *first > prefix => return None,
            Some(first) if *first == prefix => gap.first.slice(1..),
            _ => Bytes::new(),
        };
        let last = match gap.last.as_ref().and_then(|last| last.split_first()) {
            Some((last, _)) if *last < prefix => return None,
            Some((last, rest)) if *last == prefix => Some(Bytes::copy_from_slice(rest)),
            _ => None,
        };
        Some(LostRange { first, last, ..whole })
    };
    meta::tables_of(tree).filter_map(range).collect()
}

/// Whether a record is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    No,
    Yes,
    /// It may be an old one.
    Named,
}

pub(super) fn kept(table: Table, age: Age) -> Kept {
    let counts_on =
        matches!(table, Table::Meta | Table::Session | Table::Reply | Table::Server | Table::Reservation);
    match (age, table) {
        (Age::Newest, _) => Kept::Yes,
        (Age::Doubtful, _) if counts_on => Kept::No,
        (Age::Doubtful, _) | (Age::Outdated, Table::Inode) => Kept::Named,
        (Age::Outdated, _) => Kept::No,
    }
}
