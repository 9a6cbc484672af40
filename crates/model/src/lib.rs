//! What Soda is measured against, and nothing of Soda itself: this crate imports only the vocabulary (`soda-types`).
//!
//! * [`load`]: the closed-form load of the lease protocol and of Sprite's, from the SODA paper, section 3.
//! * [`ReferenceFs`]: a POSIX file system in memory that is obviously right, with an alphabet of operations ([`Op`])
//!   that can be generated from a seed and applied to a real directory as well, so that the two can be compared.

mod fs;
pub mod load;
mod rng;

pub use fs::{
    Access, Alphabet, Contents, Disposition, Fallocate, Fill, Follow, Generator, Handle, Op, OpenMode,
    Outcome, Placement, ReferenceFs, RenameMode, Seen, TreePath, XattrMode,
};
pub use rng::Rng;
