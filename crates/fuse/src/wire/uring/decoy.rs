//! A file that is not there. The kernel takes it for one, so that it can be asked about it ([`super::nudge`]) where it may know
//! no other: on a mount of which nobody has used a file yet.
//!
//! Somebody looks up a name that nobody else knows, and is told of an inode with a number that no other has. The kernel forgets
//! both when it pleases; the inode goes with the name, which it keeps only if that may be believed for a while
//! (`fuse_dentry_delete`).

use crate::unpoisoned::Unpoisoned;
use crate::wire::Reply;
use crate::wire::abi::{IN_HEADER_LEN, NodeId, opcode};
use crate::wire::reply::{AttrOut, EntryOut};
use soda_types::{Attr, FileKind, Ino, Timestamp, Version};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// No server counts so far.
pub(super) const NODE: NodeId = NodeId(u64::MAX - 1);
/// Longer than who looks it up needs for that.
const VALID: Duration = Duration::from_secs(60);

/// The name to look up, if there is one.
#[derive(Debug, Default)]
pub(super) struct Decoy {
    is_out: AtomicBool,
    name: Mutex<String>,
}

impl Decoy {
    /// Has somebody look it up, by a name that leads to it until `look_up` returns.
    pub(super) fn show(&self, look_up: impl FnOnce(&str)) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!(".soda-decoy-{}-{now}", std::process::id());
        self.put_out(&name);
        look_up(&name);
        self.take_in();
    }

    /// From now on this name leads to it.
    fn put_out(&self, name: &str) {
        *self.name.lock().unpoisoned() = name.to_owned();
        self.is_out.store(true, Ordering::Release);
    }

    fn take_in(&self) {
        self.is_out.store(false, Ordering::Release);
    }

    /// Whether a request looks for it.
    pub(super) fn is_meant(&self, message: &[u8]) -> bool {
        let is_lookup = message.get(4..8) == Some(&opcode::LOOKUP.to_ne_bytes());
        let is_in_root = message.get(16..24) == Some(&NodeId::ROOT.0.to_ne_bytes());
        if !self.is_out.load(Ordering::Acquire) || !is_lookup || !is_in_root {
            return false;
        }
        let name = self.name.lock().unpoisoned();
        let wanted = message.get(IN_HEADER_LEN..).and_then(|rest| rest.strip_suffix(&[0]));
        wanted == Some(name.as_bytes())
    }
}

/// Answers who looks for it.
pub(super) fn answer(reply: Reply) {
    let time = Timestamp::new(0, 0);
    let attr = Attr {
        ino: Ino(NODE.0),
        kind: FileKind::File,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(1),
        data_version: Version(1),
    };
    let attr = AttrOut { node: NODE.0, attr: &attr, valid: VALID };
    // Who looked may be gone.
    let _ = reply.entry(EntryOut { attr, generation: 0, valid: VALID });
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn random_messages_do_not_panic(message in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80)) {
            let decoy = Decoy::default();
            decoy.put_out("name");
            proptest::prop_assert!(!decoy.is_meant(&message));
        }
    }

    #[test]
    fn only_who_knows_the_name_is_meant_and_only_as_long_as_it_is_out() {
        let message_in = |node: NodeId, operation: u32, name: &[u8]| {
            let mut message = vec![0; IN_HEADER_LEN];
            message[4..8].copy_from_slice(&operation.to_ne_bytes());
            message[16..24].copy_from_slice(&node.0.to_ne_bytes());
            [&message, name, &[0]].concat()
        };
        let message = |operation, name| message_in(NodeId::ROOT, operation, name);
        let decoy = Decoy::default();
        assert!(!decoy.is_meant(&message(opcode::LOOKUP, b"")));
        decoy.put_out("name");
        assert!(decoy.is_meant(&message(opcode::LOOKUP, b"name")));
        assert!(!decoy.is_meant(&message(opcode::LOOKUP, b"names")));
        assert!(!decoy.is_meant(&message(opcode::UNLINK, b"name")));
        assert!(!decoy.is_meant(&message_in(NodeId(7), opcode::LOOKUP, b"name")));
        assert!(!decoy.is_meant(&[0; 3]));
        decoy.take_in();
        assert!(!decoy.is_meant(&message(opcode::LOOKUP, b"name")));
    }
}
