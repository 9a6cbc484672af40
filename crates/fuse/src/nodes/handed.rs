//! Inodes that the kernel knows pass to another process that serves the mount.

use super::{Node, Nodes, Pages};
use crate::unpoisoned::Unpoisoned;
use crate::wire::NodeId;
use serde::{Deserialize, Serialize};
use soda_types::{Fid, Version};
use std::collections::HashMap;
use std::sync::Mutex;

/// An inode that the kernel knows, on its way to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandedNode(Node);

impl HandedNode {
    pub(crate) fn fid(&self) -> Fid {
        self.0.fid
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.0.lookups
    }

    #[cfg(test)]
    pub(crate) fn set_lookups(&mut self, lookups: u64) {
        self.0.lookups = lookups;
    }

    /// Of a file: the version of the data that all its pages in the kernel are of.
    pub(crate) fn pages(&self) -> Option<Version> {
        match self.0.pages {
            Pages::Of(version) if self.0.listing.is_none() => Some(version),
            _ => None,
        }
    }
}

impl Nodes {
    /// For a process that takes the mount over.
    pub(crate) fn hand_over(&self) -> Vec<HandedNode> {
        let of_shard = |shard: &Mutex<HashMap<NodeId, Node>>| {
            let shard = shard.lock().unpoisoned();
            shard.values().cloned().map(HandedNode).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    pub(crate) fn take_over(&self, HandedNode(node): HandedNode) {
        let number = self.node_of(node.fid);
        self.shard(number).insert(number, node);
    }
}
