//! What Soda is measured against, and nothing of Soda itself: this crate imports only the vocabulary (`soda-types`).
//!
//! * [`load`]: what leases cost and save, in closed form: the SODA paper's section 3, the model before it, and what follows.
//! * [`ReferenceFs`]: a POSIX file system in memory that is obviously right, with an alphabet of operations ([`Op`])
//!   that can be generated from a seed and applied to a real directory as well, so that the two can be compared.

mod fs;
pub mod load;
mod rng;

pub use fs::{
    Access, Alphabet, Contents, Disposition, Fallocate, Fill, Follow, Generator, Handle, Op, OpenMode,
    Outcome, Placement, ReferenceFs, RenameMode, Seen, TreePath, Whence, XattrMode,
};
pub use rng::Rng;
