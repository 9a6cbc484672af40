//! The store on a directory of a local file system.

mod complaints;
mod directory;
mod journal;
mod meta;
mod salvage;
mod sealing;
mod segments;
mod space;

pub use directory::{DataDirectory, FORMAT_VERSION, StoreOptions};
pub use meta::EmbeddedMeta;
pub use salvage::{DamagedMetadata, LostRange, OldRecord, Salvage, Salvaged};
pub use segments::EmbeddedData;
