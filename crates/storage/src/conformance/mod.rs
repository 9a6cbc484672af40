//! What every implementation of the traits must do, as functions that a test calls with a way to make stores.
//!
//! ```
//! soda_storage::conformance::meta(&soda_storage::conformance::MemoryBench);
//! ```
//!
//! The functions panic where an implementation is wrong, with a message that says in what.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod data;
mod meta;

pub use data::{data, data_that_is_full};
pub use meta::meta;

use crate::{ChunkRef, DataStore, MemoryData, MemoryMeta, MetaStore};
use std::fmt;
use std::sync::Arc;

/// Makes metadata stores to be tested.
pub trait MetaBench {
    /// A new store and whatever must live as long.
    fn fresh(&self) -> Box<dyn Restart<dyn MetaStore>>;
}

/// Makes data stores to be tested.
pub trait DataBench {
    fn fresh(&self) -> Box<dyn DataRestart>;
}

/// A store that can be closed and opened again.
pub trait Restart<Store: ?Sized>: fmt::Debug {
    fn store(&self) -> Arc<Store>;

    /// Closes the store (no other handle to it is left) and opens what it left behind.
    fn restart(&mut self);
}

/// A data store whose medium can be damaged.
pub trait DataRestart: Restart<dyn DataStore> {
    /// Changes a stored byte behind the store's back.
    fn corrupt(&self, chunk: &ChunkRef);
}

/// The stores in memory.
#[derive(Debug)]
pub struct MemoryBench;

#[derive(Debug, Default)]
struct Memory<Store>(Store);

impl MetaBench for MemoryBench {
    fn fresh(&self) -> Box<dyn Restart<dyn MetaStore>> {
        Box::new(Memory(MemoryMeta::new()))
    }
}

impl DataBench for MemoryBench {
    fn fresh(&self) -> Box<dyn DataRestart> {
        Box::new(Memory(MemoryData::new()))
    }
}

impl Restart<dyn MetaStore> for Memory<MemoryMeta> {
    fn store(&self) -> Arc<dyn MetaStore> {
        Arc::new(self.0.clone())
    }

    fn restart(&mut self) {}
}

impl Restart<dyn DataStore> for Memory<MemoryData> {
    fn store(&self) -> Arc<dyn DataStore> {
        Arc::new(self.0.clone())
    }

    fn restart(&mut self) {}
}

impl DataRestart for Memory<MemoryData> {
    fn corrupt(&self, chunk: &ChunkRef) {
        self.0.corrupt(chunk);
    }
}

/// Numbers that look random and are the same each time.
#[derive(Debug)]
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // Knuth's MMIX generator; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
