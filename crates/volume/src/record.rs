//! The records of a volume, and how they are put into bytes: a version, then postcard. What does not decode to the
//! last byte is damage.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use soda_storage::{ChunkRef, SegmentId};
use soda_types::semantics::ENTRY_SIZE;
use soda_types::{Attr, FileKind, Ino, Timestamp, Version};

/// The version every record starts with.
const RECORD_VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("an empty record")]
    Empty,
    #[error("a record of unknown version {0}")]
    UnknownVersion(u8),
    #[error("a record that does not decode")]
    Malformed,
    #[error("a record with {0} bytes too many")]
    TrailingBytes(usize),
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Bytes {
    let mut buffer = Vec::with_capacity(96);
    buffer.push(RECORD_VERSION);
    // Serialising plain data into memory has no way to fail.
    postcard::to_extend(record, buffer).map(Bytes::from).unwrap_or_default()
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    let (version, body) = bytes.split_first().ok_or(RecordError::Empty)?;
    if *version != RECORD_VERSION {
        return Err(RecordError::UnknownVersion(*version));
    }
    let (record, rest) = postcard::take_from_bytes(body).map_err(|_| RecordError::Malformed)?;
    match rest.len() {
        0 => Ok(record),
        extra => Err(RecordError::TrailingBytes(extra)),
    }
}

/// An inode. Its number is its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Inode {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    /// Bytes of a file or of a link's target; unused in directories.
    pub(crate) size: u64,
    /// Sum of the lengths of the extents, bytes.
    pub(crate) allocated: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
    pub(crate) version: Version,
    pub(crate) data_version: Version,
    /// Where it hangs, if it has one name; the root is its own parent. 0 of what has several names or none.
    pub(crate) parent: Ino,
    /// Of a directory: the number of its names.
    pub(crate) entries: u64,
    /// Number of extended attributes.
    pub(crate) xattrs: u32,
    /// Whose extents hold the data: a number of the same kind as inode numbers, so that emptying a large file is giving
    /// it a new one.
    pub(crate) stream: u64,
    /// Those of the allocated bytes that are beside the metadata, not in chunks.
    pub(crate) inline: u64,
    /// Of a symbolic link.
    pub(crate) target: Bytes,
}

impl Inode {
    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let size = match self.kind {
            FileKind::Directory => self.entries.saturating_mul(ENTRY_SIZE),
            _ => self.size,
        };
        Attr {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            allocated: self.allocated,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            version: self.version,
            data_version: self.data_version,
        }
    }

    /// One with these attributes that holds nothing yet. `parent` is where its name is.
    pub(crate) fn new(attr: &Attr, parent: Ino, target: Bytes) -> Inode {
        let mut inode = Inode {
            kind: attr.kind,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: attr.rdev,
            size: 0,
            allocated: 0,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            version: attr.version,
            data_version: attr.data_version,
            parent,
            entries: 0,
            xattrs: 0,
            stream: attr.ino.0,
            inline: 0,
            target,
        };
        inode.set_attr(attr);
        inode
    }

    /// Takes over what an operation can change in attributes.
    pub(crate) fn set_attr(&mut self, attr: &Attr) {
        match self.kind {
            FileKind::Directory => self.entries = attr.size / ENTRY_SIZE,
            _ => self.size = attr.size,
        }
        self.perm = attr.perm;
        self.nlink = attr.nlink;
        self.uid = attr.uid;
        self.gid = attr.gid;
        self.atime = attr.atime;
        self.mtime = attr.mtime;
        self.ctime = attr.ctime;
        self.version = attr.version;
        self.data_version = attr.data_version;
    }
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Dirent {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
}

/// A stretch of a file's data. Its end within the file is its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Extent {
    /// Bytes.
    pub(crate) len: u64,
    pub(crate) body: ExtentBody,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ExtentBody {
    /// The data itself.
    Inline(Bytes),
    /// The part of a chunk that starts `skip` bytes into it.
    Chunk { chunk: ChunkRef, skip: u32 },
}

impl Extent {
    /// Whether the body holds as many bytes as the extent claims.
    pub(crate) fn fits(&self) -> bool {
        match &self.body {
            ExtentBody::Inline(data) => data.len() as u64 == self.len,
            // Made-up numbers must not overflow.
            ExtentBody::Chunk { chunk, skip } => {
                u64::from(*skip).saturating_add(self.len) <= u64::from(chunk.len)
            }
        }
    }

    /// The part from `from` (included) to `to` (excluded), bytes from its start.
    pub(crate) fn part(&self, from: u64, to: u64) -> Extent {
        let body = match &self.body {
            ExtentBody::Inline(data) => ExtentBody::Inline(data.slice(from as usize..to as usize)),
            ExtentBody::Chunk { chunk, skip } => {
                ExtentBody::Chunk { chunk: *chunk, skip: skip + from as u32 }
            }
        };
        Extent { len: to - from, body }
    }

    /// Whether it is a part of this chunk.
    pub(crate) fn is_of(&self, chunk: &ChunkRef) -> bool {
        matches!(&self.body, ExtentBody::Chunk { chunk: own, .. } if own == chunk)
    }

    pub(crate) fn inline_len(&self) -> u64 {
        match &self.body {
            ExtentBody::Inline(data) => data.len() as u64,
            ExtentBody::Chunk { .. } => 0,
        }
    }
}

/// The first record of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Superblock {
    pub(crate) name: String,
    pub(crate) created: Timestamp,
}

/// Totals of a volume, kept exact in every batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) inodes: u64,
    /// Sum over the inodes' allocated bytes.
    pub(crate) allocated: u64,
}

/// The first inode number that was never reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct InodeMark {
    pub(crate) next: u64,
}

/// How many times the volume was opened to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Runs {
    pub(crate) begun: u64,
}

/// An extended attribute's value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Xattr {
    pub(crate) value: Bytes,
}

/// A stream of extents that nobody reads any more, still to be deleted. Its number is the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Reclaim {
    /// The inode that is gone with it, if it had extended attributes.
    pub(crate) xattrs_of: Option<Ino>,
    /// Extents that end here or before are deleted already: a search that begins further back has to pass all their
    /// tombstones.
    pub(crate) deleted_to: u64,
}

/// A chunk nothing refers to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Released {
    pub(crate) chunk: ChunkRef,
}

/// A chunk that may not be on the medium, and its data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RedoRecord {
    pub(crate) chunk: ChunkRef,
    pub(crate) data: Bytes,
}

/// Which segments were looked through for leaked chunks: those before this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Swept {
    pub(crate) before: SegmentId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::Acl;
    use crate::key;
    use crate::view;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use soda_types::VolumeId;

    fn timestamp() -> impl Strategy<Value = Timestamp> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Timestamp::new(secs, nanos))
    }

    fn chunk() -> impl Strategy<Value = ChunkRef> {
        let parts = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
        parts.prop_map(|(segment, offset, len, crc32c)| ChunkRef {
            segment: SegmentId(segment),
            offset,
            len,
            crc32c,
        })
    }

    fn inode() -> impl Strategy<Value = Inode> {
        let numbers = proptest::collection::vec(any::<u64>(), 12);
        (numbers, timestamp(), timestamp(), proptest::collection::vec(any::<u8>(), 0..100)).prop_map(
            |(numbers, one, other, target)| Inode {
                kind: FileKind::Symlink,
                perm: numbers[0] as u16,
                nlink: numbers[1] as u32,
                uid: numbers[2] as u32,
                gid: numbers[3] as u32,
                rdev: numbers[4] as u32,
                size: numbers[5],
                allocated: numbers[6],
                atime: one,
                mtime: other,
                ctime: one,
                btime: other,
                version: Version(numbers[7]),
                data_version: Version(numbers[8]),
                parent: Ino(numbers[9]),
                entries: numbers[10],
                xattrs: numbers[1] as u32,
                stream: numbers[11],
                inline: numbers[0],
                target: target.into(),
            },
        )
    }

    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), 0..1000u64, any::<u64>()]
    }

    fn extent() -> impl Strategy<Value = Extent> {
        let inline =
            proptest::collection::vec(any::<u8>(), 0..50).prop_map(|data| ExtentBody::Inline(data.into()));
        let in_chunk = (chunk(), any::<u32>()).prop_map(|(chunk, skip)| ExtentBody::Chunk { chunk, skip });
        (numbers(), prop_oneof![inline, in_chunk]).prop_map(|(len, body)| Extent { len, body })
    }

    /// A good record of any kind.
    fn good() -> impl Strategy<Value = Bytes> {
        let acl =
            [&[2, 0, 0, 0][..], &[1, 0, 6, 0, 0, 0, 0, 0, 4, 0, 4, 0, 0, 0, 0, 0, 0x20, 0, 4, 0, 0, 0, 0, 0]]
                .concat();
        prop_oneof![
            inode().prop_map(|inode| encode(&inode)),
            numbers().prop_map(|ino| encode(&Dirent { ino: Ino(ino), kind: FileKind::Directory })),
            extent().prop_map(|extent| encode(&extent)),
            (".{0,20}", timestamp()).prop_map(|(name, created)| encode(&Superblock { name, created })),
            (numbers(), numbers()).prop_map(|(inodes, allocated)| encode(&Counters { inodes, allocated })),
            numbers().prop_map(|next| encode(&InodeMark { next })),
            numbers().prop_map(|begun| encode(&Runs { begun })),
            proptest::collection::vec(any::<u8>(), 0..50)
                .prop_map(|value| encode(&Xattr { value: value.into() })),
            (proptest::option::of(numbers()), numbers())
                .prop_map(|(ino, deleted_to)| { encode(&Reclaim { xattrs_of: ino.map(Ino), deleted_to }) }),
            chunk().prop_map(|chunk| encode(&Released { chunk })),
            (chunk(), proptest::collection::vec(any::<u8>(), 0..50))
                .prop_map(|(chunk, data)| encode(&RedoRecord { chunk, data: data.into() })),
            numbers().prop_map(|before| encode(&Swept { before: SegmentId(before) })),
            Just(acl.into()),
        ]
    }

    /// Puts bytes in the place of others, fewer or more.
    fn damage() -> impl Strategy<Value = (prop::sample::Index, usize, Vec<u8>)> {
        let byte = prop_oneof![Just(0), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
        (any::<prop::sample::Index>(), 0..4usize, proptest::collection::vec(byte, 0..12))
    }

    fn decodes<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> usize {
        let Ok(record) = decode::<T>(bytes) else { return 0 };
        assert!(encode(&record).len() <= bytes.len(), "more than there was");
        1
    }

    /// Decodes a row as everything there is: whatever it is, that ends with a value or an error. How many values.
    fn decode_as_everything(key: &[u8], bytes: &[u8]) -> usize {
        if let Ok(placed) = view::placed(key, bytes) {
            assert!(placed.start < placed.end && placed.end - placed.start == placed.extent.len);
        }
        let _ = decode::<Released>(bytes).map(|released| released.chunk.span());
        let _ = Acl::parse(bytes).map(|acl| (acl.mode_bits(0o7777), acl.to_bytes()));
        let _ = (key::number(key), key::extent_end(key), key::rest(key));
        let _ = decode::<RedoRecord>(bytes).and_then(|redo| redo.check(key));
        let small = decodes::<Counters>(bytes) + decodes::<InodeMark>(bytes) + decodes::<Runs>(bytes);
        let more = decodes::<Reclaim>(bytes) + decodes::<Released>(bytes) + decodes::<Swept>(bytes);
        let large = decodes::<Inode>(bytes) + decodes::<Extent>(bytes) + decodes::<Superblock>(bytes);
        small
            + more
            + large
            + decodes::<Dirent>(bytes)
            + decodes::<Xattr>(bytes)
            + decodes::<RedoRecord>(bytes)
    }

    #[test]
    fn damaged_records_of_every_kind_do_no_harm() {
        const CASES: u32 = 10_000;
        let values = std::cell::Cell::new(0);
        let cases = (good(), proptest::collection::vec(damage(), 0..3), numbers());
        let outcome = TestRunner::new(ProptestConfig {
            cases: CASES,
            failure_persistence: None,
            ..ProptestConfig::default()
        })
        .run(&cases, |(good, damages, end)| {
            let mut bytes = good.to_vec();
            for (at, cut, put) in damages {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..bytes.len().min(at + cut), put);
            }
            values.set(values.get() + decode_as_everything(&key::extent(VolumeId(1), 1, end), &bytes));
            decode_as_everything(&bytes, &bytes);
            Ok(())
        });
        outcome.unwrap();
        assert!(
            values.get() > CASES as usize / 2,
            "they decode no further than their version: {}",
            values.get()
        );
    }

    proptest! {
        #[test]
        fn decoders_take_anything(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode_as_everything(&bytes, &bytes);
        }

        #[test]
        fn inodes_go_both_ways_and_no_byte_can_be_missing(inode in inode(), cut in any::<prop::sample::Index>()) {
            let bytes = encode(&inode);
            prop_assert_eq!(decode::<Inode>(&bytes), Ok(inode));
            let cut = cut.index(bytes.len());
            prop_assert!(decode::<Inode>(&bytes[..cut]).is_err());
            let mut longer = bytes.to_vec();
            longer.push(0);
            prop_assert_eq!(decode::<Inode>(&longer), Err(RecordError::TrailingBytes(1)));
        }

        #[test]
        fn extents_go_both_ways(extent in extent()) {
            prop_assert_eq!(decode::<Extent>(&encode(&extent)), Ok(extent));
        }
    }

    #[test]
    fn a_record_of_the_future_is_not_misread() {
        assert_eq!(decode::<Counters>(&[2, 0, 0]), Err(RecordError::UnknownVersion(2)));
        assert_eq!(decode::<Counters>(&[]), Err(RecordError::Empty));
    }
}
