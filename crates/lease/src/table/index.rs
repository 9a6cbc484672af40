//! From fids to objects: a hash map that can only be looked up. Its order is not the same in every run, so nothing here lets
//! it out, and `cargo xtask check` allows hash maps nowhere else in the core.

use soda_types::Fid;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The place of an object in the table's store.
pub(super) type ObjectId = u32;

#[derive(Debug, Default)]
pub(super) struct FidIndex(HashMap<Fid, ObjectId, BuildHasherDefault<FidHasher>>);

impl FidIndex {
    pub(super) fn get(&self, fid: Fid) -> Option<ObjectId> {
        self.0.get(&fid).copied()
    }

    pub(super) fn get_or_insert_with(&mut self, fid: Fid, new: impl FnOnce() -> ObjectId) -> ObjectId {
        *self.0.entry(fid).or_insert_with(new)
    }

    pub(super) fn remove(&mut self, fid: Fid) {
        self.0.remove(&fid);
    }
}

/// Multiply and fold (as in FxHash and wyhash): fids come from the server itself, nobody can choose them to collide.
#[derive(Debug, Default)]
struct FidHasher(u64);

impl Hasher for FidHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}
