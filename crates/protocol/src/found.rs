//! What answers are made of: inodes, pages of directories, layouts.

use serde::{Deserialize, Serialize};
use soda_types::{Attr, Fid, Name};
use std::ops::Range;

/// Where a file has data, from the offset that was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Stretches of data, in order, with a hole between each two.
    pub data: Vec<Range<u64>>,
    /// What lies before it is known: the end of the last stretch, or of the file.
    pub until: u64,
    /// The file's.
    pub size: u64,
}

/// An inode as a client caches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub fid: Fid,
    pub attr: Attr,
    pub xattrs: XattrSummary,
}

/// Saves a question per file: most inodes have no xattrs at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrSummary {
    None,
    Some,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DirPage {
    /// The directory's own attributes at the moment of the read.
    pub dir: Attr,
    pub parent: Fid,
    pub entries: Vec<(Name, Node)>,
    pub rest: Rest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Rest {
    More,
    End,
}
