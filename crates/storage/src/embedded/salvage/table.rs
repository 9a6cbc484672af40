//! A table: a file of sorted records in blocks, of which any may be damaged.
//!
//! The sections: `data` (blocks of records), `tli` and, in large ones, `index` (which block has which keys), `filter`, `meta`
//! (facts of the table, as records). Of each block the header says how long it is. Where a header is damaged the index says
//! where the next block begins; where that is damaged, too, the rest is given up: to search for something that looks like a
//! header would take for one what a user has put into a file.

use super::archive::{self, Section};
use super::block::{self, Compression, Entry, Filter, HEADER, Handle, Header, Kind};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Table {
    file: File,
    pub(super) path: PathBuf,
    len: u64,
    /// Where the blocks of records end, if that is known.
    data_end: Option<u64>,
    facts: Option<Facts>,
    /// By where the block begins.
    index: BTreeMap<u64, Handle>,
    filter: Option<Filter>,
    /// What beside records is damaged.
    pub(super) damaged_parts: Vec<&'static str>,
}

#[derive(Clone, Debug)]
struct Facts {
    first_key: Bytes,
    last_key: Bytes,
    last_seqno: u64,
    compression: Compression,
}

/// Records that follow one another, or what cannot be read of them.
#[derive(Debug)]
pub(super) enum Piece {
    Records(Vec<Entry>),
    /// Up to this key, included; `None`: up to where the next begin.
    Damaged(Option<Bytes>),
}

/// Keys of which the table may have records that cannot be read: from the first, included, up to the last, included, if there is
/// one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    pub(super) first: Bytes,
    pub(super) last: Option<Bytes>,
}

impl Gap {
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.first <= key && self.last.as_ref().is_none_or(|last| key <= last)
    }
}

impl Table {
    /// Opens it whatever is left of it.
    pub(super) fn open(path: &Path) -> io::Result<Table> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut table = Table {
            file,
            path: path.to_owned(),
            len,
            data_end: None,
            facts: None,
            index: BTreeMap::new(),
            filter: None,
            damaged_parts: Vec::new(),
        };
        match archive::sections(&table.file) {
            None => table.damaged_parts.push("where its parts are"),
            Some(sections) => table.read_parts(&sections),
        }
        Ok(table)
    }

    fn read_parts(&mut self, sections: &BTreeMap<Vec<u8>, Section>) {
        let section = |name: &str| sections.get(name.as_bytes()).copied();
        self.data_end = section("data").map(|(from, len)| from + len);
        self.facts = section("meta").and_then(|place| self.facts(place));
        if self.facts.is_none() {
            self.damaged_parts.push("what it says of itself");
        }
        let top = section("tli").and_then(|place| self.index_blocks(place));
        let is_whole = match section("index") {
            None => {
                self.index = top.unwrap_or_default();
                !self.index.is_empty()
            }
            Some(place) => {
                let parts = self.index_blocks(place);
                let is_whole = top.is_some() && parts.is_some();
                self.index = parts.unwrap_or_default();
                is_whole
            }
        };
        if !is_whole {
            self.damaged_parts.push("its index");
        }
        let is_parted = section("filter_tli").is_some();
        if let Some(place) = section("filter_tli")
            && self.index_blocks(place).is_none()
        {
            self.damaged_parts.push("its filter");
        }
        let Some(place) = section("filter") else { return };
        match self.blocks(place, Kind::Filter) {
            None => self.damaged_parts.push("its filter"),
            // That of each part is not looked for: who has no filter takes a key for one that may be there.
            Some(blocks) if !is_parted => self.filter = blocks.first().and_then(Filter::decode),
            Some(_) => {}
        }
    }

    /// All blocks of a section, if each is one of this kind.
    fn blocks(&self, (from, len): Section, kind: Kind) -> Option<Vec<Bytes>> {
        let bytes = Bytes::from(archive::read(&self.file, (from, len)).ok()?);
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let header = Header::decode(&bytes[at..]).filter(|header| header.kind == kind)?;
            let end = at + HEADER + header.stored as usize;
            if end > bytes.len() {
                return None;
            }
            blocks.push(block::whole(&bytes.slice(at..end), kind, Compression::None)?);
            at = end;
        }
        Some(blocks)
    }

    fn index_blocks(&self, place: Section) -> Option<BTreeMap<u64, Handle>> {
        let mut index = BTreeMap::new();
        for content in self.blocks(place, Kind::Index)? {
            index.extend(block::handles(&content)?.into_iter().map(|handle| (handle.offset, handle)));
        }
        Some(index)
    }

    fn facts(&self, place: Section) -> Option<Facts> {
        let blocks = self.blocks(place, Kind::Facts)?;
        let entries = block::entries(blocks.first()?)?;
        let fact = |name: &str| {
            let entry = entries.iter().find(|entry| entry.key == name.as_bytes())?;
            entry.value.clone()
        };
        let compression = match fact("compression#data")?.first()? {
            0 => Compression::None,
            1 => Compression::Lz4,
            _ => return None,
        };
        let last_seqno = u64::from_le_bytes(fact("seqno#max")?[..].try_into().ok()?);
        Some(Facts { first_key: fact("key#min")?, last_key: fact("key#max")?, last_seqno, compression })
    }

    /// The newest change that it can have.
    pub(super) fn last_seqno(&self) -> u64 {
        self.facts.as_ref().map_or(u64::MAX, |facts| facts.last_seqno)
    }

    /// Whether it can have something of a key, as far as is known.
    pub(super) fn may_have(&self, key: &[u8]) -> Possible {
        match &self.filter {
            Some(filter) if filter.may_have(key) => Possible::Likely,
            Some(_) => Possible::No,
            None => Possible::Unknown,
        }
    }

    /// Its records, in the order of keys, and between them what cannot be read.
    pub(super) fn pieces(&self) -> Pieces<'_> {
        Pieces { table: self, at: Some(0) }
    }

    /// What cannot be read of its records.
    pub(super) fn gaps(&self) -> Vec<Gap> {
        let mut gaps: Vec<Gap> = Vec::new();
        let mut before: Option<Bytes> = None;
        let mut open = false;
        for piece in self.pieces() {
            match piece {
                Piece::Records(entries) => {
                    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { continue };
                    if let Some(gap) = gaps.last_mut().filter(|_| open)
                        && gap.last.is_none()
                    {
                        gap.last = Some(first.key.clone());
                    }
                    open = false;
                    before = Some(last.key.clone());
                }
                Piece::Damaged(last) => {
                    match gaps.last_mut().filter(|_| open) {
                        Some(gap) => gap.last = last,
                        None => gaps.push(Gap { first: self.first_after(before.as_ref()), last }),
                    }
                    open = true;
                }
            }
        }
        if let Some(gap) = gaps.last_mut().filter(|_| open)
            && gap.last.is_none()
        {
            gap.last = self.facts.as_ref().map(|facts| facts.last_key.clone());
        }
        gaps
    }

    fn first_after(&self, key: Option<&Bytes>) -> Bytes {
        match (key, &self.facts) {
            (Some(key), _) => [key, &[0][..]].concat().into(),
            (None, Some(facts)) => facts.first_key.clone(),
            (None, None) => Bytes::new(),
        }
    }

    fn header_at(&self, at: u64) -> Option<Header> {
        let bytes = archive::read(&self.file, (at, HEADER as u64)).ok()?;
        let header = Header::decode(&bytes)?;
        (at + HEADER as u64 + u64::from(header.stored) <= self.len).then_some(header)
    }

    fn records_at(&self, at: u64, header: &Header) -> Option<Vec<Entry>> {
        let place = (at + HEADER as u64, header.stored.into());
        let stored = Bytes::from(archive::read(&self.file, place).ok()?);
        let read = |compression| block::entries(&header.content(stored.clone(), compression)?);
        match &self.facts {
            Some(facts) => read(facts.compression),
            None => read(Compression::None).or_else(|| read(Compression::Lz4)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Possible {
    No,
    /// Nothing says whether it has.
    Unknown,
    /// The filter is wrong in one of a hundred cases at most.
    Likely,
}

#[derive(Debug)]
pub(super) struct Pieces<'a> {
    table: &'a Table,
    at: Option<u64>,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let at = self.at.take()?;
        let table = self.table;
        if table.data_end.is_some_and(|end| at >= end) {
            return None;
        }
        let handle = table.index.get(&at).filter(|handle| handle.size > 0);
        match table.header_at(at) {
            Some(header) if header.kind == Kind::Records => {
                self.at = Some(at + HEADER as u64 + u64::from(header.stored));
                let records = table.records_at(at, &header);
                Some(records.map_or_else(
                    || Piece::Damaged(handle.map(|handle| handle.last_key.clone())),
                    Piece::Records,
                ))
            }
            // The records have ended: nothing else says where.
            Some(_) if table.data_end.is_none() => None,
            _ => {
                self.at = handle.map(|handle| at + handle.size);
                Some(Piece::Damaged(handle.map(|handle| handle.last_key.clone())))
            }
        }
    }
}
