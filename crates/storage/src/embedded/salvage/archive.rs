//! The container that tables and lists of tables are in: sections one after the other, then what says where they are.
//!
//! The format (sfa 1.0): sections; `TOC!`, count: u32, for each `position: u64, length: u64, name length: u16, name`; and at
//! the end `SFA!`, 1, 0, xxh3-128 of the table of contents: u128, its position: u64, its length: u64. Numbers are
//! little-endian.

use super::block::Reader;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_128;

const TRAILER: u64 = 38;

/// Longer ones are none of the engine's: a few sections.
const CONTENTS_MAX: u64 = 1 << 20;

/// Where a section is: from, and how many bytes.
pub(super) type Section = (u64, u64);

/// The sections of a file by their names. `None` if that cannot be read.
pub(super) fn sections(file: &File) -> Option<BTreeMap<Vec<u8>, Section>> {
    let len = file.metadata().ok()?.len();
    let end = len.checked_sub(TRAILER)?;
    let trailer = read(file, (end, TRAILER)).ok()?;
    let mut at = Reader { bytes: &trailer, at: 0 };
    let (magic, version, hash): ([u8; 4], u8, u8) = (at.array()?, at.byte()?, at.byte()?);
    let sum = u128::from_le_bytes(at.array()?);
    let position = u64::from_le_bytes(at.array()?);
    let contents_len = end.checked_sub(position).filter(|len| *len <= CONTENTS_MAX)?;
    let contents = read(file, (position, contents_len)).ok()?;
    if (magic, version, hash) != (*b"SFA!", 1, 0) || xxh3_128(&contents) != sum {
        return None;
    }
    let mut at = Reader { bytes: &contents, at: 0 };
    if at.array()? != *b"TOC!" {
        return None;
    }
    let count = u32::from_le_bytes(at.array()?);
    let mut sections = BTreeMap::new();
    for _ in 0..count {
        let place = (u64::from_le_bytes(at.array()?), u64::from_le_bytes(at.array()?));
        let name_len = u16::from_le_bytes(at.array()?);
        let name = at.take(name_len.into())?;
        if place.0.checked_add(place.1)? > position {
            return None;
        }
        sections.insert(name.to_vec(), place);
    }
    Some(sections)
}

pub(super) fn read(file: &File, (from, len): Section) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
}
