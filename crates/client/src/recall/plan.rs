//! What the kernel must drop for a recall.

use crate::cache::State;
use crate::hooks::{KernelHooks, Names};
use soda_types::{Fid, Mode, Monotonic};
use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) attr: bool,
    pub(crate) data: Option<Range<u64>>,
    pub(crate) names: Option<Names>,
}

impl Plan {
    /// If a read lease is kept only our own late changes matter: they are answered, but the system calls that made them
    /// may not have returned, and the kernel may still show what was before. Nobody else may see them until it does not.
    pub(crate) fn new(state: &mut State, now: Monotonic, fid: Fid, keep: Option<Mode>) -> Plan {
        let Some(inode) = state.existing(fid) else { return Plan::default() };
        let holds_attr = inode.kernel_holds_attr(now);
        match keep {
            None => Plan {
                attr: holds_attr,
                data: inode.kernel_data.then_some(0..u64::MAX),
                names: inode.dir.as_ref().and_then(|dir| dir.kernel_names(now, None)),
            },
            Some(_) => match inode.recent(now) {
                None => Plan::default(),
                Some((recent, data)) => Plan {
                    attr: holds_attr,
                    data: data.filter(|_| inode.kernel_data),
                    names: inode.dir.as_ref().and_then(|dir| dir.kernel_names(now, Some(&recent))),
                },
            },
        }
    }

    pub(crate) fn needs_kernel(&self) -> bool {
        self.attr || self.data.is_some() || self.names.is_some()
    }

    /// Blocks until the kernel has dropped it.
    pub(crate) fn tell(&self, hooks: &dyn KernelHooks, fid: Fid) {
        if let Some(names) = &self.names {
            hooks.invalidate_names(fid, names);
        }
        if let Some(data) = &self.data {
            hooks.invalidate_data(fid, data.clone());
        }
        if self.attr {
            hooks.invalidate_attr(fid);
        }
    }
}
