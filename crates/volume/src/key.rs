//! Keys. Numbers are big-endian, so that the order of keys is that of numbers; every key starts with the volume.

use bytes::Bytes;
use soda_storage::ChunkRef;
use soda_types::{Ino, Name, VolumeId};

const SUPERBLOCK: u8 = 0;
const COUNTERS: u8 = 1;
const INODE_MARK: u8 = 2;
const SWEPT: u8 = 3;
const RUNS: u8 = 4;

/// A range of keys: from the first (included) to the second (excluded).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

fn with_prefix(volume: VolumeId, number: u64, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(12 + rest.len());
    key.extend_from_slice(&volume.0.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// The first key after all that start with `prefix`.
fn after_prefix(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return prefix;
        }
    }
    // All ones: no key of ours is that long.
    vec![u8::MAX; 16]
}

/// All keys of a volume.
pub(crate) fn volume_range(volume: VolumeId) -> KeyRange {
    let start = volume.0.to_be_bytes().to_vec();
    KeyRange { end: after_prefix(start.clone()), start }
}

/// All keys of a volume that go on with this number.
pub(crate) fn number_range(volume: VolumeId, number: u64) -> KeyRange {
    let start = with_prefix(volume, number, &[]);
    KeyRange { end: after_prefix(start.clone()), start }
}

fn meta(volume: VolumeId, what: u8) -> Vec<u8> {
    let mut key = volume.0.to_be_bytes().to_vec();
    key.push(what);
    key
}

pub(crate) fn superblock(volume: VolumeId) -> Vec<u8> {
    meta(volume, SUPERBLOCK)
}

pub(crate) fn counters(volume: VolumeId) -> Vec<u8> {
    meta(volume, COUNTERS)
}

pub(crate) fn inode_mark(volume: VolumeId) -> Vec<u8> {
    meta(volume, INODE_MARK)
}

pub(crate) fn runs(volume: VolumeId) -> Vec<u8> {
    meta(volume, RUNS)
}

/// Of the mark of the last sweep. Segments belong to no volume.
pub(crate) fn swept() -> Vec<u8> {
    meta(VolumeId(0), SWEPT)
}

/// After all keys of a table.
pub(crate) fn end_of_table() -> Vec<u8> {
    vec![u8::MAX; 17]
}

/// Of an inode, an orphan.
pub(crate) fn inode(volume: VolumeId, ino: Ino) -> Vec<u8> {
    with_prefix(volume, ino.0, &[])
}

pub(crate) fn reclaim(volume: VolumeId, stream: u64) -> Vec<u8> {
    with_prefix(volume, stream, &[])
}

pub(crate) fn dirent(volume: VolumeId, parent: Ino, name: &Name) -> Vec<u8> {
    with_prefix(volume, parent.0, name.as_bytes())
}

/// The names of a directory after a given one, or all.
pub(crate) fn dirents_after(volume: VolumeId, parent: Ino, after: Option<&Name>) -> KeyRange {
    let mut range = number_range(volume, parent.0);
    if let Some(name) = after {
        range.start.extend_from_slice(name.as_bytes());
        // The first key after a name is the name and a zero byte, which no name contains.
        range.start.push(0);
    }
    range
}

pub(crate) fn extent(volume: VolumeId, stream: u64, end: u64) -> Vec<u8> {
    with_prefix(volume, stream, &end.to_be_bytes())
}

/// The extents that end after `offset`: the ones that hold data from there on.
pub(crate) fn extents_from(volume: VolumeId, stream: u64, offset: u64) -> KeyRange {
    let mut range = number_range(volume, stream);
    range.start.extend_from_slice(&offset.saturating_add(1).to_be_bytes());
    range
}

pub(crate) fn xattr(volume: VolumeId, ino: Ino, name: &[u8]) -> Vec<u8> {
    with_prefix(volume, ino.0, name)
}

/// Of what is recorded of a chunk. Chunks are shared ground of all volumes.
pub(crate) fn chunk(chunk: &ChunkRef) -> Bytes {
    let mut key = chunk.segment.0.to_be_bytes().to_vec();
    key.extend_from_slice(&chunk.offset.to_be_bytes());
    key.into()
}

/// What follows volume and number in a key.
pub(crate) fn rest(key: &[u8]) -> &[u8] {
    key.get(12..).unwrap_or_default()
}

/// The number after the volume; `None` in keys that are too short.
pub(crate) fn number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(4..12)?.try_into().ok()?))
}

/// The end of an extent, from its key.
pub(crate) fn extent_end(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(rest(key).try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next() {
        assert_eq!(after_prefix(vec![1, 255]), vec![2]);
        assert_eq!(after_prefix(vec![1, 2]), vec![1, 3]);
        assert_eq!(after_prefix(vec![255, 255]).len(), 16);
        let range = number_range(VolumeId(1), u64::MAX);
        assert!(extent(VolumeId(1), u64::MAX, u64::MAX) < range.end && range.start < range.end);
    }

    #[test]
    fn an_extent_is_found_from_every_offset_it_covers() {
        let volume = VolumeId(1);
        let key = extent(volume, 7, 100);
        let finds = |offset| {
            let range = extents_from(volume, 7, offset);
            range.start <= key && key < range.end
        };
        assert!(finds(0) && finds(99) && !finds(100));
        assert_eq!(extent_end(&key), Some(100));
    }

    #[test]
    fn names_continue_after_the_cursor() {
        let (volume, parent) = (VolumeId(1), Ino(5));
        let name = |text: &str| Name::try_from(text).unwrap();
        let range = dirents_after(volume, parent, Some(&name("b")));
        let inside = |text| range.start <= dirent(volume, parent, &name(text));
        assert!(!inside("a") && !inside("b") && inside("ba") && inside("c"));
    }
}
