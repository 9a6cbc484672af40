//! What can be wrong with a volume, in words.

use crate::key;
use crate::record::RecordError;
use soda_storage::{ChunkRef, SegmentId, Table};
use soda_types::{FileKind, Ino, Name};
use std::fmt;
use std::ops::Range;

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// A record that cannot be decoded. Repair deletes it; what hung on it is found then. One of an extent is lost data.
    Unreadable {
        table: Table,
        key: Vec<u8>,
        error: RecordError,
    },
    /// There is no root directory. Repair makes an empty one.
    NoRoot,
    /// A directory that is gone but has names. Repair makes it anew, for root only.
    LostDirectory {
        ino: Ino,
    },
    /// A file that is gone but has a name and data. Repair makes it anew, for root only, as long as its data are.
    LostFile {
        ino: Ino,
        size: u64,
        /// Sums of its extents, bytes: all, and those that are inline.
        allocated: (u64, u64),
    },
    /// A name of an inode that does not exist. Repair removes the name.
    DanglingName {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    /// A name in something that is no directory. Repair removes the name.
    NameInNoDirectory {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    /// A name that says another kind than the inode. Repair corrects the name.
    WrongKind {
        parent: Ino,
        name: Name,
        ino: Ino,
        kind: FileKind,
    },
    /// A directory has a second name. Repair removes that.
    SecondName {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    /// A directory is below itself. Repair takes it out, to `lost+found`.
    Loop {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    /// An inode that no name leads to. Repair puts it into `lost+found`.
    Unreachable {
        ino: Ino,
        kind: FileKind,
    },
    /// An inode that believes to be elsewhere; `actual` 0: in several directories, or in none.
    WrongParent {
        ino: Ino,
        recorded: Ino,
        actual: Ino,
    },
    WrongLinkCount {
        ino: Ino,
        recorded: u32,
        actual: u32,
    },
    /// A directory whose number of names is wrong.
    WrongNameCount {
        ino: Ino,
        recorded: u64,
        actual: u64,
    },
    WrongXattrCount {
        ino: Ino,
        recorded: u32,
        actual: u32,
    },
    /// Sums of a file's extents, bytes: all, and those that are inline.
    WrongAllocation {
        ino: Ino,
        recorded: (u64, u64),
        actual: (u64, u64),
    },
    /// An orphan record without an inode. Repair removes the record.
    OrphanWithoutInode {
        ino: Ino,
    },
    /// An orphan that has names. Repair removes the record.
    OrphanWithNames {
        ino: Ino,
    },
    /// An extent that begins before the one before it ends. Repair removes it.
    Overlap {
        ino: Ino,
        stream: u64,
        range: Range<u64>,
    },
    /// An extent past the end of the file. Repair cuts it off.
    PastEnd {
        ino: Ino,
        stream: u64,
        range: Range<u64>,
        size: u64,
    },
    /// Data that is lost. Repair leaves it alone: it reads as an error, and a hole would read as zeros. Only
    /// [`Repair::Discarding`](super::Repair::Discarding) makes a hole of it.
    LostData {
        ino: Ino,
        stream: u64,
        range: Range<u64>,
        chunk: ChunkRef,
        why: BadChunk,
    },
    /// Data in a place of the medium that another file, or another part of the same one, has data in too: who of them gives
    /// it up takes it from the other. Repair stores a copy for this one; nothing is lost, and whose it is is for people to say.
    SharedData {
        ino: Ino,
        stream: u64,
        range: Range<u64>,
        chunk: ChunkRef,
        /// The other file, if it is not a deleted one.
        other: Option<Ino>,
    },
    /// Extents that belong to no file. Repair deletes them.
    LeakedExtents {
        stream: u64,
    },
    /// An extended attribute that belongs to no inode. Repair deletes it.
    LeakedXattr {
        ino: Ino,
        key: Vec<u8>,
    },
    /// A stream on its way to deletion whose file exists. Repair keeps the file.
    ReclaimedInUse {
        stream: u64,
        ino: Ino,
    },
    /// A chunk that is to be released but still in use. Repair keeps it.
    ReleasedInUse {
        chunk: ChunkRef,
    },
    /// Stored data that nothing refers to. Repair gives the space back.
    LeakedSpace {
        segment: SegmentId,
        range: Range<u64>,
    },
    WrongTotals {
        recorded: (u64, u64),
        actual: (u64, u64),
    },
    /// Versions in use could be given again.
    LowRuns {
        recorded: u64,
        highest: u64,
    },
    /// Numbers in use could be given out again.
    LowInodeMark {
        recorded: u64,
        highest: u64,
    },
    /// A record of it, saved from damaged metadata, may be of an earlier time: a newer one was where nothing can be read. Repair
    /// keeps it, and has clients ask again.
    Old {
        ino: Ino,
        table: Table,
    },
}

/// What is wrong with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadChunk {
    Missing,
    CheckSum,
    /// The medium does not give it.
    Unreadable,
}

impl Problem {
    /// Whether there is no mending, only giving up data that may be somewhere in a copy.
    pub fn is_lost_data(&self) -> bool {
        matches!(self, Problem::LostData { .. } | Problem::Unreadable { table: Table::Extent, .. })
    }

    /// The inode that it is about, where that can be told from the problem alone.
    pub(super) fn ino(&self) -> Option<Ino> {
        match self {
            Problem::Unreadable {
                table: Table::Inode | Table::Dirent | Table::Xattr | Table::Orphan,
                key,
                ..
            } => key::number(key).map(Ino),
            Problem::NoRoot => Some(Ino::ROOT),
            Problem::LostDirectory { ino }
            | Problem::LostFile { ino, .. }
            | Problem::DanglingName { ino, .. }
            | Problem::NameInNoDirectory { ino, .. }
            | Problem::WrongKind { ino, .. }
            | Problem::SecondName { ino, .. }
            | Problem::Loop { ino, .. }
            | Problem::Unreachable { ino, .. }
            | Problem::WrongParent { ino, .. }
            | Problem::WrongLinkCount { ino, .. }
            | Problem::WrongNameCount { ino, .. }
            | Problem::WrongXattrCount { ino, .. }
            | Problem::WrongAllocation { ino, .. }
            | Problem::OrphanWithoutInode { ino }
            | Problem::OrphanWithNames { ino }
            | Problem::Overlap { ino, .. }
            | Problem::PastEnd { ino, .. }
            | Problem::LostData { ino, .. }
            | Problem::SharedData { ino, .. }
            | Problem::LeakedXattr { ino, .. }
            | Problem::ReclaimedInUse { ino, .. }
            | Problem::Old { ino, .. } => Some(*ino),
            _ => None,
        }
    }

    /// The name that it is about, and its directory.
    pub(super) fn name(&self) -> Option<(Ino, &Name)> {
        match self {
            Problem::DanglingName { parent, name, .. }
            | Problem::NameInNoDirectory { parent, name, .. }
            | Problem::WrongKind { parent, name, .. }
            | Problem::SecondName { parent, name, .. } => Some((*parent, name)),
            _ => None,
        }
    }

    /// What people have lost by it, in words that go behind a path, where records are known to be lost.
    pub fn loss(&self) -> Option<String> {
        match self {
            Problem::DanglingName { .. } => Some("its inode is lost, and so is what it was".to_owned()),
            Problem::LostDirectory { .. } => Some("its inode is lost; names in it may be, too".to_owned()),
            Problem::LostFile { .. } => Some(
                "its inode is lost: owner, mode, times, and zeros at its end; the data are there, for root only".to_owned(),
            ),
            Problem::LeakedXattr { .. } => Some("an extended attribute is lost".to_owned()),
            Problem::Unreachable { ino, .. } => Some(format!("the name of {ino} is lost")),
            Problem::NoRoot => Some("the inode of the root directory is lost".to_owned()),
            Problem::WrongNameCount { recorded, actual, .. } if recorded > actual => {
                Some(format!("some names are lost: {}", recorded - actual))
            }
            Problem::WrongAllocation { recorded, actual, .. } if recorded.0 > actual.0 => {
                Some(format!("where {} bytes of its data are is lost", recorded.0 - actual.0))
            }
            Problem::WrongXattrCount { recorded, actual, .. } if recorded > actual => {
                Some(format!("extended attributes are lost: {}", recorded - actual))
            }
            Problem::LostData { range, .. } => {
                Some(format!("bytes {} to {} of its data are lost", range.start, range.end))
            }
            Problem::LeakedExtents { stream } => {
                Some(format!("the data of stream {stream} are left, whose they are is lost"))
            }
            Problem::Old { table: Table::Dirent, .. } => {
                Some("some of its names may be those of an earlier time".to_owned())
            }
            Problem::Old { table: Table::Extent, .. } => {
                Some("some of its data may be those of an earlier time".to_owned())
            }
            Problem::Old { .. } => Some("its attributes may be those of an earlier time".to_owned()),
            _ => None,
        }
    }

    /// The bytes of the file that it is about.
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            Problem::Overlap { range, .. }
            | Problem::PastEnd { range, .. }
            | Problem::LostData { range, .. }
            | Problem::SharedData { range, .. } => Some(range.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unreadable { table, key, error } => {
                write!(f, "table {}, key {}: {error}", table.name(), hex(key))
            }
            Problem::NoRoot => f.write_str("there is no root directory"),
            Problem::LostDirectory { ino } => write!(f, "directory {ino} is gone, its names are there"),
            Problem::LostFile { ino, .. } => {
                write!(f, "file {ino} is gone, its names and its data are there")
            }
            Problem::DanglingName { parent, name, ino } => {
                write!(f, "name {name} in directory {parent} leads to {ino}, which does not exist")
            }
            Problem::NameInNoDirectory { parent, name, ino } => {
                write!(f, "name {name} of {ino} is in {parent}, which is no directory")
            }
            Problem::WrongKind { parent, name, ino, kind } => {
                write!(f, "name {name} in directory {parent} says another kind than {ino}, a {kind:?}")
            }
            Problem::SecondName { parent, name, ino } => {
                write!(f, "directory {ino} has a second name, {name} in {parent}")
            }
            Problem::Loop { parent, name, ino } => {
                write!(f, "directory {ino}, {name} in {parent}, is below itself")
            }
            Problem::Unreachable { ino, kind } => write!(f, "no name leads to {ino}, a {kind:?}"),
            Problem::WrongParent { ino, recorded, actual } => {
                write!(f, "{ino} says it is in {recorded}, it is in {actual}")
            }
            Problem::WrongLinkCount { ino, recorded, actual } => {
                write!(f, "{ino} says it has {recorded} links, it has {actual}")
            }
            Problem::WrongNameCount { ino, recorded, actual } => {
                write!(f, "directory {ino} says it has {recorded} names, it has {actual}")
            }
            Problem::WrongXattrCount { ino, recorded, actual } => {
                write!(f, "{ino} says it has {recorded} extended attributes, it has {actual}")
            }
            Problem::WrongAllocation { ino, recorded, actual } => {
                write!(f, "{ino} says it has {} bytes stored ({} inline), ", recorded.0, recorded.1)?;
                write!(f, "it has {} ({} inline)", actual.0, actual.1)
            }
            Problem::OrphanWithoutInode { ino } => write!(f, "orphan {ino} does not exist"),
            Problem::OrphanWithNames { ino } => write!(f, "{ino} is on the list of orphans but has names"),
            Problem::Overlap { ino, range, .. } => {
                write!(f, "{ino}: bytes {} to {} overlap what is before", range.start, range.end)
            }
            Problem::PastEnd { ino, range, size, .. } => {
                write!(f, "{ino}: bytes {} to {} are past its end, {size}", range.start, range.end)
            }
            Problem::LostData { ino, range, chunk, why, .. } => {
                write!(f, "{ino}: bytes {} to {} are lost: {chunk:?} ", range.start, range.end)?;
                f.write_str(match why {
                    BadChunk::Missing => "is missing",
                    BadChunk::CheckSum => "has a wrong check sum",
                    BadChunk::Unreadable => "cannot be read",
                })
            }
            Problem::SharedData { ino, range, chunk, other, .. } => {
                write!(f, "{ino}: bytes {} to {} are in {chunk:?}, where ", range.start, range.end)?;
                match other {
                    Some(other) if other == ino => f.write_str("another part of it is too"),
                    Some(other) => write!(f, "data of {other} is too"),
                    None => f.write_str("data of a deleted file is too"),
                }
            }
            Problem::LeakedExtents { stream } => {
                write!(f, "the extents of stream {stream} belong to no file")
            }
            Problem::LeakedXattr { ino, key } => {
                write!(f, "an extended attribute of {ino}, which does not exist (key {})", hex(key))
            }
            Problem::ReclaimedInUse { stream, ino } => {
                write!(f, "stream {stream} is about to be deleted, but {ino} exists")
            }
            Problem::ReleasedInUse { chunk } => write!(f, "{chunk:?} is about to be released but in use"),
            Problem::LeakedSpace { segment, range } => {
                write!(f, "{segment}: bytes {} to {} are stored for nothing", range.start, range.end)
            }
            Problem::WrongTotals { recorded, actual } => {
                write!(f, "the volume says it has {} inodes and {} bytes, ", recorded.0, recorded.1)?;
                write!(f, "it has {} and {}", actual.0, actual.1)
            }
            Problem::LowRuns { recorded, highest } => {
                write!(f, "the volume says it was opened {recorded} times, a version says {highest}")
            }
            Problem::LowInodeMark { recorded, highest } => {
                write!(f, "the next inode number is {recorded}, but {highest} is in use")
            }
            Problem::Old { ino, table } => {
                write!(f, "{ino}: a record of table {} may be of an earlier time", table.name())
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
