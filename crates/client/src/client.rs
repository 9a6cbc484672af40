//! The client as programs see it, and what the kernel knows. Operations are in [`crate::ops`], its beginning and its end in
//! [`crate::life`].

use crate::inner::Inner;
use crate::stats::StatsSnapshot;
use crate::validity::{Answering, Due};
use soda_types::Fid;
use std::sync::Arc;

/// A mounted volume, without the mount. See the [crate's front page](crate).
#[derive(Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl Client {
    pub fn root(&self) -> Fid {
        self.inner.root.get().copied().unwrap_or_default()
    }

    /// Most bytes of one read or write.
    pub fn max_io(&self) -> u32 {
        self.inner.max_io()
    }

    /// Starts to hand an answer on to the kernel: see [`Answering`].
    pub fn answer(&self) -> Answering<'_> {
        self.inner.answers.enter(&*self.inner.clock)
    }

    /// What a section handed on is with the kernel only now, after its end ([`Answering::due`]).
    pub fn arrived(&self, due: Due) {
        self.inner.answers.arrived(&*self.inner.clock, due);
    }

    /// The kernel was given `count` more references to the inode. Call it before it can give them back.
    pub fn remember(&self, fid: Fid, count: u64) {
        let mut state = crate::lock(&self.inner.state);
        state.inode(fid).kernel.refs += count;
        state.repin(fid);
    }

    /// The kernel gave `count` references back.
    pub fn forget(&self, fid: Fid, count: u64) {
        let mut state = crate::lock(&self.inner.state);
        if let Some(inode) = state.existing(fid) {
            inode.kernel.refs = inode.kernel.refs.saturating_sub(count);
            if inode.kernel.refs == 0 {
                inode.kernel.data = false;
            }
            state.repin(fid);
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> StatsSnapshot {
        self.inner.stats.snapshot()
    }
}
