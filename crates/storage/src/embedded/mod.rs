//! The store on a directory of a local file system.

mod directory;
mod journal;
mod meta;
mod sealing;
mod segments;
mod space;

pub use directory::{DataDirectory, FORMAT_VERSION, StoreOptions};
pub use meta::EmbeddedMeta;
pub use segments::EmbeddedData;
