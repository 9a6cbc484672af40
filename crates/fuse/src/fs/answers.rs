//! What the kernel is told, and what it is to forget because an own change made it wrong.

use super::Inner;
use super::attrs::Form;
use crate::errno::errno_of;
use crate::nodes::{Inode, PageState, TakenIn};
use crate::wire::{AttrOut, EntryOut, Reply, Taken};
use soda_client::{Cached, Entry};
use soda_types::{Attr, Fid, FileKind, FsError, FsResult, Name};
use std::time::Duration;

/// An operation's failure with its name, for the log.
type Operation = &'static str;

/// A name that the kernel is about to be told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    pub(super) dir: Fid,
    pub(super) name: &'a Name,
    pub(super) taken_in: TakenIn,
}

impl Inner {
    pub(super) fn fail(&self, operation: Operation, error: &FsError, reply: Reply) {
        reply.error(errno_of(operation, error));
    }

    pub(super) fn finish(&self, operation: Operation, result: FsResult<()>, reply: Reply) {
        match result {
            Ok(()) => reply.done(),
            Err(error) => self.fail(operation, &error, reply),
        }
    }

    /// Drops the kernel's pages if they are not of this version of the data. To be called before attributes are handed out:
    /// while these are believed, pages are used without a question.
    pub(super) async fn freshen(&self, fid: Fid, attr: &Attr) {
        if self.nodes.announce(fid, attr.data_version, attr.size) == PageState::Outdated {
            let _ = self.notifier.data_elsewhere(fid, 0..u64::MAX).await;
        }
    }

    /// The same for attributes that the server may never hear of. Data of their version may never come, so they keep no other
    /// data from the kernel; what it has of others goes all the same.
    pub(super) async fn freshen_for(&self, fid: Fid, attr: Cached<Attr>) {
        if !attr.valid.is_untold() {
            return self.freshen(fid, &attr.value).await;
        }
        self.nodes.size_may_be(fid, attr.value.size);
        if self.nodes.page_state(fid, attr.value.data_version) == PageState::Outdated {
            let _ = self.notifier.data_elsewhere(fid, 0..u64::MAX).await;
        }
    }

    /// What an own change made wrong in the kernel: attributes. Cheap, and nothing if it has none.
    pub(super) fn attributes_changed(&self, fid: Fid) {
        if self.nodes.take_attr_told(fid) {
            self.notifier.attributes(fid);
        }
    }

    /// What the creation or removal of a file made wrong in what the kernel holds of `dir`.
    ///
    /// Under a write lease nothing has to be done: the kernel itself forgets the directory's attributes when it has the
    /// answer (so it asks for them with the next name), and before another machine can see the change its recall takes
    /// them back.
    pub(super) fn entries_changed(&self, dir: Fid) {
        if !self.client.holds_write_lease(dir) {
            self.attributes_changed(dir);
        }
    }

    pub(super) async fn answer_entry(&self, named: Named<'_>, entry: Entry, inode: Inode, reply: Reply) {
        if let Some(node) = &entry.node {
            self.freshen_for(node.fid, Cached { value: node.attr, valid: entry.attr }).await;
        }
        let answering = self.client.answer();
        let mut names = answering.remaining(entry.names);
        let Some(node) = entry.node else { return reply.by(answering.due()).negative(names) };
        names = self.directory_names(named, node.attr.kind, names);
        self.remember((named.dir, named.name), node.fid, &node.attr);
        let valid = answering.remaining(entry.attr);
        let attr = self.tell_attr(node.fid, &node.attr, valid, inode, &reply);
        let out = EntryOut { attr, generation: node.fid.generation, valid: names };
        if reply.by(answering.due()).entry(out) == Taken::No {
            self.not_taken(node.fid);
        }
    }

    /// How long the kernel may believe a name that may be a directory's.
    pub(super) fn directory_names(&self, named: Named<'_>, kind: FileKind, valid: Duration) -> Duration {
        if kind != FileKind::Directory || valid.is_zero() {
            return valid;
        }
        // Where the kernel can only cut a name off, not let it expire, processes that work in the directory would
        // lose their path with every recall: such a name is asked for each time.
        if !self.agreement.has_expire_only() {
            return Duration::ZERO;
        }
        self.nodes.tell_subdirectory(named.dir, named.name.as_bytes(), named.taken_in);
        valid
    }

    /// Counts a look-up that is about to be answered.
    pub(super) fn remember(&self, (dir, name): (Fid, &Name), fid: Fid, attr: &Attr) {
        self.nodes.remember(fid);
        self.nodes.keep_directory(fid, attr);
        if attr.kind == FileKind::Directory {
            self.nodes.tell_place(fid, dir, name.as_bytes());
        }
        self.client.remember(fid, 1);
    }

    /// `valid`: what is left of the lease.
    pub(super) fn tell_attr<'a>(
        &self,
        fid: Fid,
        attr: &'a Attr,
        valid: Duration,
        inode: Inode,
        reply: &Reply,
    ) -> AttrOut<'a> {
        let out = AttrOut { node: self.nodes.node_of(fid).0, attr, valid: inode.attributes(valid) };
        AttrOut { valid: self.nodes.tell_attr(fid, out, reply.who_asked(), inode), ..out }
    }

    /// The kernel did not take an answer with a look-up.
    pub(super) fn not_taken(&self, fid: Fid) {
        self.nodes.attr_not_taken(fid);
        self.forget(self.nodes.node_of(fid), 1);
    }

    pub(super) async fn answer_attr(
        &self,
        fid: Fid,
        attr: Cached<Attr>,
        form: Form,
        inode: Inode,
        reply: Reply,
    ) {
        self.freshen_for(fid, attr).await;
        self.tell_answered(fid, attr, form, inode, reply);
    }

    /// The kernel has no pages that are older than these attributes, or does not believe them.
    pub(super) fn tell_answered(&self, fid: Fid, attr: Cached<Attr>, form: Form, inode: Inode, reply: Reply) {
        self.nodes.keep_directory(fid, &attr.value);
        let answering = self.client.answer();
        let out = self.tell_attr(fid, &attr.value, answering.remaining(attr.valid), inode, &reply);
        let reply = reply.by(answering.due());
        let taken = match form {
            Form::Attr => reply.attr(out),
            Form::Statx => reply.statx(out),
        };
        if taken == Taken::No {
            self.nodes.attr_not_taken(fid);
        }
    }
}
