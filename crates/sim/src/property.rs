//! What has to hold; who looks whether it does is in [`invariants`](crate::invariants).

use std::fmt;

/// A property that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub property: Property,
    pub what: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Property {
    Exclusive,
    Fresh,
    Durable,
    Once,
    Epochs,
    Fenced,
    Patience,
    Progress,
    /// The server's state is no prefix of what its clients did.
    Prefix,
    /// Something was lost after fsync.
    Synced,
    /// File locks that exclude each other are held, or nobody has one that is in the way.
    Locked,
    /// The server has no room, or no number, for what it has promised it for.
    Room,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.property, self.what)
    }
}
