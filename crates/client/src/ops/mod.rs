//! The operations, as POSIX calls them, on inodes.
//!
//! Every operation first looks into the caches; if they can answer, its future is ready at the first poll. Otherwise it
//! sends its request at once, from the polling thread, and is completed by the task that reads the reply.

mod attr;
mod dir;
mod fetch;
mod files;
mod locks;
mod lookup;
mod names;
mod next_files;
mod read;
mod rename;
mod seek;
mod write;
mod xattr;

pub use crate::interface::{Entry, RenameHow, Written};
pub use dir::{Detail, DirEntry, HandedDir, OpenDir};
pub use files::{HandedFile, OpenFile, OpenMode};
pub use read::ReadData;

use crate::cache::State;
use crate::cache::inode::Inode;
use crate::client::Client;
use crate::config::Access;
use crate::connection::SlotGuard;
use crate::validity::Validity;
use soda_protocol::Node;
use soda_types::{Attr, Errno, Fid, FsError, FsResult, Monotonic};

impl Client {
    /// A slot for a change, if changes are allowed.
    async fn slot(&self) -> FsResult<SlotGuard> {
        if self.inner.config.access == Access::ReadOnly {
            return Err(Errno::ReadOnly.into());
        }
        if let Some(slot) = self.inner.slots.try_acquire() {
            return Ok(slot);
        }
        let patience = self.inner.patience();
        let acquired = match patience {
            None => self.inner.slots.acquire().await,
            Some(timeout) => {
                let timed = {
                    let _context = self.inner.runtime.enter();
                    tokio::time::timeout(timeout, self.inner.slots.acquire())
                };
                timed
                    .await
                    .map_err(|_| FsError::new(Errno::Io, "ETIMEDOUT: no request could be sent (soft)"))?
            }
        };
        acquired.ok_or_else(|| FsError::new(Errno::Io, "the client is shut down"))
    }
}

impl State {
    /// The entry for a node that was just learned under a name.
    fn entry(&mut self, now: Monotonic, names: Validity, node: Node) -> Entry {
        // What was changed here the server does not know.
        let ahead = self.peek(node.fid).filter(|inode| inode.log.records > 0).and_then(|inode| inode.attr);
        let node = Node { attr: ahead.unwrap_or(node.attr), ..node };
        let attr = self.attr_validity(now, node.fid, &node.attr);
        Entry { node: Some(node), names, attr }
    }

    /// Whether the server said what the inode was like before something that was known, or done, here already: it had not heard
    /// of that yet when it answered, and the answer came here after it had.
    fn is_outdated(&self, node: &Node) -> bool {
        let known = |inode: &Inode| inode.log.records > 0 && inode.attr.is_some();
        self.peek(node.fid).is_some_and(|inode| node.attr.version < inode.seen && !known(inode))
    }

    fn learn_others(&mut self, now: Monotonic, ticket: soda_lease::holder::Ticket, others: &[(Fid, Attr)]) {
        for (fid, attr) in others {
            self.learn_attr(now, ticket, *fid, attr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use soda_protocol::{Allocate, Lock, LockWait, NewNode, SetXattr, Whence, WriteAt};
    use soda_types::{KillPriv, Name, SetAttr};

    fn assert_send<T: Send>(_: T) {}

    /// A thread that cannot wait polls once and hands the rest to a runtime.
    #[allow(dead_code, clippy::too_many_arguments, reason = "only has to compile")]
    fn every_operation_can_move_to_another_thread(
        client: &Client,
        file: &OpenFile,
        open: &OpenDir,
        name: &Name,
        new: NewNode,
        lock: Lock,
        fid: Fid,
    ) {
        assert_send(client.lookup(fid, name));
        assert_send(client.getattr(fid));
        assert_send(client.getattr_open(file));
        assert_send(client.setattr(fid, SetAttr::default()));
        assert_send(client.readlink(fid));
        assert_send(client.statfs());
        assert_send(client.create(fid, name, new.clone()));
        assert_send(client.create_open(fid, name, new.clone(), OpenMode::Read));
        assert_send(client.tmpfile(fid, new, OpenMode::Read));
        assert_send(client.link(fid, fid, name));
        assert_send(client.unlink(fid, name));
        assert_send(client.rmdir(fid, name));
        assert_send(client.rename(fid, name, fid, name, RenameHow::Plain));
        assert_send(client.open_dir(fid));
        assert_send(client.read_dir(open, 0, 1));
        assert_send(client.read_dir_with(open, 0, 1, Detail::Names));
        assert_send(client.parent(open));
        assert_send(client.open(fid, OpenMode::Read));
        assert_send(client.open_with_attr(fid, OpenMode::Read));
        assert_send(client.read(file, 0, 1));
        assert_send(client.write(file, WriteAt::End, Bytes::new(), KillPriv::Keep));
        assert_send(client.seek(file, 0, Whence::Data));
        assert_send(client.fallocate(file, 0, 1, Allocate::Extend, KillPriv::Keep));
        assert_send(client.copy_range((file, 0), (file, 0), 1, KillPriv::Keep));
        assert_send(client.fsync(fid));
        assert_send(client.getxattr(fid, b""));
        assert_send(client.listxattr(fid));
        assert_send(client.setxattr(fid, b"", b"", SetXattr::Either, KillPriv::Keep));
        assert_send(client.removexattr(fid, b""));
        assert_send(client.lock_test(fid, lock));
        assert_send(client.lock_set(file, lock, LockWait::No));
        assert_send(client.lock_release(fid, lock));
        assert_send(client.lock_release_owner(fid, lock.family, lock.owner));
        assert_send(client.shutdown());
    }
}
