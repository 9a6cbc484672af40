//! Words of the operations that the parts below them know, too: what they are asked, and what they answer.

use crate::validity::{Cached, Validity};
use soda_protocol::{Node, Replace};
use soda_types::{Attr, Creds};

/// A name and what it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// `None`: there is no such name.
    pub node: Option<Node>,
    /// How long the name may be kept, absent ones too.
    pub names: Validity,
    /// How long the inode's attributes may be kept.
    pub attr: Validity,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it may be less than all"]
pub struct Written {
    pub offset: u64,
    pub len: u64,
    pub attr: Cached<Attr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameHow {
    /// May replace.
    Plain,
    /// RENAME_NOREPLACE: EEXIST.
    NoReplace,
    /// RENAME_EXCHANGE: both must exist.
    Exchange,
    /// RENAME_WHITEOUT: a whiteout of this owner stays at the old name ([`soda_protocol::NewNode::whiteout`]).
    Whiteout { existing: Replace, creds: Creds },
}
