//! What is read and changed: registers, what they hold, and which operation has put it there.

use soda_types::{Fid, Ino, VolumeId};
use std::fmt;

/// An inode, by its number. With delayed writes even ones are directories.
pub type Object = u32;

/// A thing that is read and changed by itself: a file's data, or one name of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Register {
    pub object: Object,
    pub cell: u8,
}

impl Register {
    pub fn fid(self) -> Fid {
        fid_of(self.object)
    }

    /// What an inode has beside names or data, in a tree: how many names it has, or where it lies.
    pub fn attributes(object: Object) -> Register {
        const ATTRIBUTES: u8 = 15;
        Register { object, cell: ATTRIBUTES }
    }
}

const FIRST_INO: u64 = 100;

/// Stands for the shape of the tree: moves of directories exclude each other. No inode has the number 0.
pub const TREE: Fid = Fid { volume: VolumeId(1), ino: Ino(0), generation: 0 };

pub fn fid_of(object: Object) -> Fid {
    Fid::new(VolumeId(1), Ino(FIRST_INO + u64::from(object)))
}

pub fn object_of(fid: Fid) -> Object {
    (fid.ino.0 - FIRST_INO) as Object
}

/// What a register holds. A later value is larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Value {
    pub stamp: Stamp,
    pub content: Content,
}

impl Value {
    /// Of an inode that the server has never heard of, or not any more (after a power cut).
    pub const MISSING: Value = Value { stamp: Stamp { count: 0, by: OpUid(0) }, content: Content::Gone };
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {:?}: {:?}", self.stamp.count, self.stamp.by, self.content)
    }
}

/// How often a register has been changed, and by whom the last time: a read tells exactly which change it saw.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp {
    pub count: u32,
    pub by: OpUid,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Content {
    /// A name that means nothing, a file that was never written.
    #[default]
    Blank,
    /// Of a file: what this operation wrote.
    Data(OpUid),
    /// Of a directory: what the name means.
    Names(Object),
    /// Of a file's attributes: how many names it has.
    Links(u8),
    /// Of a directory's attributes: in which one it is.
    Under(Object),
    /// The inode does not exist any more.
    Gone,
}

/// One operation of a program, unique in the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpUid(pub u64);
