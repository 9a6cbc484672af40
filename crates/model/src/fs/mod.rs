//! The reference file system: what POSIX and Linux say a local file system does, in the plainest code that does it.
//!
//! One caller at a time, who is root (permission checks are pjdfstest's business), a clock that is not modelled (a
//! time is known after it was set and unknown after the file changed). Everything else is exact, errno included.

mod contents;
mod generate;
mod handles;
mod names;
mod op;
mod reference;

pub use contents::Contents;
pub use generate::{Alphabet, Generator, Placement};
pub use op::{
    Access, Disposition, Fallocate, Fill, Follow, Handle, Op, OpenMode, Outcome, RenameMode, Seen, TreePath,
    Whence, XattrMode,
};
pub use reference::ReferenceFs;
