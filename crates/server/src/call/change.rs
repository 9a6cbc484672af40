//! Calls that change something: one transaction each, with the reply in it.

use super::ancestry::{self, Watched};
use super::conclusion::{Conclusion, Effects, Stop};
use super::node::summary;
use super::plan::Found;
use crate::clock;
use crate::link::Incoming;
use crate::records::{self, ReplyRecord};
use crate::respond;
use crate::session::{Kept, Session};
use crate::shared::Shared;
use bytes::Bytes;
use soda_lease::space::Taking;
use soda_lease::table::{DeepLeases, Outcome, TreeChanges};
use soda_protocol::{Answer, Call, Failure, IfExists, Node, OpId, Rename, Unlink};
use soda_storage::{Batch, Table, crash};
use soda_types::{Attr, Errno, Fid, FileKind, FsError, FsResult, InUse, KillPriv, Name, Replace, SessionId};
use soda_volume::{Fate, IfOpen, NewKind, NewNode, Removed, Renamed, Staged, Txn, Volume};

/// What a change did, before it is committed.
struct Done {
    answer: Answer,
    outcome: Outcome,
    effects: Effects,
}

impl Done {
    fn new(answer: Answer) -> Done {
        Done { answer, outcome: Outcome::Applied, effects: Effects::default() }
    }
}

/// Carries out an admitted change and commits it together with its reply. A failure is a reply, too.
pub(super) fn run(
    shared: &Shared,
    (incoming, taking): (&Incoming, Option<&Taking>),
    op: OpId,
    found: Found,
    staged: &mut Option<Staged>,
) -> Result<Conclusion, Stop> {
    // What is left of a reservation is stored by one of them after the other, as digests do.
    let taking = taking.filter(|taking| taking.uses_reservation());
    let _one_at_a_time = taking.map(|_| incoming.link.session.numbers());
    let mut txn = shared.volume.begin(clock::calendar());
    let done = match apply_watched(shared, incoming, &mut txn, found, staged) {
        Ok(done) => done,
        Err(Stop::Failed(error)) => return Ok(Conclusion::failed(Failure::Fs(error))),
        Err(Stop::PlanAnew) => return Err(Stop::PlanAnew),
    };
    let result = Ok(done.answer);
    let encoded = respond::encode(&result);
    let key = records::reply_key(incoming.session(), op.slot);
    // Its chunks are all appended.
    let record = reply_record(shared, &incoming.link.session, op, encoded.clone());
    txn.put_extra(Table::Reply, &key, records::encode(&record));
    if let Some(left) = taking.and_then(Taking::left) {
        txn.put_extra(Table::Reservation, &records::space_key(incoming.session()), records::encode(&left));
    }
    shared.write_ends();
    if let Err(error) = txn.commit() {
        return Ok(Conclusion::failed(Failure::Fs(error)));
    }
    taking.into_iter().for_each(Taking::used);
    crash::point("server.change-committed");
    shared.metrics.commits.add(1);
    shared.note_change();
    if let Ok(Answer::Written { len, .. }) = &result {
        shared.metrics.bytes_written.add(*len);
    }
    if incoming.link.session.has_ended() {
        // Fenced while the change was under way. It stays: whoever waits for its objects comes after it. Its reply has
        // no session any more, nor what it had set aside.
        forget_reply_of(shared, incoming.session(), op);
        shared.forget_reservations(incoming.session());
    }
    Ok(Conclusion {
        result,
        encoded,
        payload: Bytes::new(),
        outcome: done.outcome,
        kept: Kept::InStore(record.round),
        effects: done.effects,
    })
}

/// Keeps the reply of an operation that failed: who sends it again after a restart must get the same
/// answer, whatever has changed since.
pub(super) fn store_failure(shared: &Shared, session: &Session, op: OpId, encoded: &Bytes) -> Kept {
    let record = reply_record(shared, session, op, encoded.clone());
    let session = session.id;
    let mut batch = Batch::releasing();
    batch.put(Table::Reply, records::reply_key(session, op.slot), records::encode(&record));
    shared.write_ends();
    match shared.volume.meta().commit(batch) {
        Ok(()) => {
            crash::point("server.failure-stored");
            shared.sync.dirty();
            Kept::InStore(record.round)
        }
        Err(error) => {
            tracing::warn!(%session, %error, "the reply of a failed operation is kept in memory only");
            Kept::InMemory
        }
    }
}

pub(super) fn reply_record(shared: &Shared, session: &Session, op: OpId, result: Bytes) -> ReplyRecord {
    let durable = session.slots().durable(op.slot, shared.durability.synced());
    ReplyRecord { sequence: op.sequence, result, round: shared.durability.round(), durable }
}

/// Deletes the reply of a session that has ended.
pub(super) fn forget_reply_of(shared: &Shared, session: SessionId, op: OpId) {
    let mut batch = Batch::releasing();
    batch.delete(Table::Reply, records::reply_key(session, op.slot));
    if let Err(error) = shared.volume.meta().commit(batch) {
        tracing::warn!(%error, "a reply of an ended session stays in the store");
    }
}

/// Applies the change, and sees what it moves.
fn apply_watched(
    shared: &Shared,
    incoming: &Incoming,
    txn: &mut Txn<'_>,
    found: Found,
    staged: &mut Option<Staged>,
) -> Result<Done, Stop> {
    if shared.config.deep_leases == DeepLeases::Off {
        return apply(shared, incoming, txn, found, staged);
    }
    let linked = match &incoming.request.call {
        Call::Link { fid, .. } => Some(*fid),
        _ => None,
    };
    let watched = Watched::before(txn, [linked, found.inode, found.target].into_iter().flatten())?;
    let mut done = apply(shared, incoming, txn, found, staged)?;
    watched.note_moves(txn, &mut done.effects.tree)?;
    Ok(done)
}

fn apply(
    shared: &Shared,
    incoming: &Incoming,
    txn: &mut Txn<'_>,
    found: Found,
    staged: &mut Option<Staged>,
) -> Result<Done, Stop> {
    let volume = &*shared.volume;
    Ok(match &incoming.request.call {
        Call::Create { parent, name, new } => return create(volume, txn, (*parent, name), new, found),
        Call::TmpFile { parent, new } => tmp_file(txn, *parent, new)?,
        Call::Link { fid, parent, name } => {
            txn.link(*fid, *parent, name)?;
            let answer = changed(txn, *fid, &[*parent])?;
            Done { effects: Effects { named: Some(*fid), ..Effects::default() }, ..Done::new(answer) }
        }
        Call::Unlink { parent, name, what } => {
            expect(volume, *parent, name, found.inode)?;
            unlink(shared, txn, (*parent, name), *what, found.inode)?
        }
        Call::Rename { parent, name, new_parent, new_name, how } => {
            expect(volume, *parent, name, found.inode)?;
            expect(volume, *new_parent, new_name, found.target)?;
            rename(shared, txn, (*parent, name), (*new_parent, new_name), *how, found.target)?
        }
        Call::SetAttr { fid, set, owner } => {
            txn.attr(*fid)?.check_owner(*owner)?;
            txn.set_attr(*fid, set)?;
            Done::new(changed(txn, *fid, &[])?)
        }
        Call::Write { fid, at, kill_suid_sgid } => {
            // Given up on the way to another plan: writes are planned once, by fid.
            let staged =
                staged.take().ok_or_else(|| FsError::new(Errno::Io, "the data of the write is gone"))?;
            let written = txn.write(*fid, *at, staged, KillPriv::when(*kill_suid_sgid))?;
            Done::new(Answer::Written { offset: written.offset, len: written.len, attr: written.attr })
        }
        Call::Allocate { fid, offset, len, how, kill_suid_sgid } => {
            txn.fallocate(*fid, *how, *offset, *len, KillPriv::when(*kill_suid_sgid))?;
            Done::new(changed(txn, *fid, &[])?)
        }
        Call::CopyRange { from, from_offset, to, to_offset, len, kill_suid_sgid } => {
            let privileges = KillPriv::when(*kill_suid_sgid);
            let copied = txn.copy_range((*from, *from_offset), (*to, *to_offset), *len, privileges)?;
            Done::new(Answer::Written { offset: copied.offset, len: copied.len, attr: copied.attr })
        }
        Call::SetXattr { fid, name, value, how, kill_sgid, owner } => {
            txn.attr(*fid)?.check_owner(*owner)?;
            let value = Bytes::copy_from_slice(value);
            txn.set_xattr(*fid, name, value, *how, KillPriv::when(*kill_sgid))?;
            Done::new(changed(txn, *fid, &[])?)
        }
        Call::RemoveXattr { fid, name, owner } => {
            txn.attr(*fid)?.check_owner(*owner)?;
            txn.remove_xattr(*fid, name)?;
            Done::new(changed(txn, *fid, &[])?)
        }
        _ => return Err(Errno::NotSupported.into()),
    })
}

/// Whether a name still means what it meant when the operation was planned.
fn expect(volume: &Volume, parent: Fid, name: &Name, planned: Option<Fid>) -> Result<(), Stop> {
    match volume.resolve(parent, name)?.map(|(fid, _)| fid) == planned {
        true => Ok(()),
        false => Err(Stop::PlanAnew),
    }
}

fn create(
    volume: &Volume,
    txn: &mut Txn<'_>,
    (parent, name): (Fid, &Name),
    new: &soda_protocol::NewNode,
    found: Found,
) -> Result<Done, Stop> {
    expect(volume, parent, name, found.inode)?;
    if let Some(fid) = found.inode {
        if new.existing == IfExists::Fail {
            return Err(Errno::Exists.into());
        }
        match txn.attr(fid)?.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::IsDirectory.into()),
            // Opening it is the kernel's business, which has just seen no such name: it looks again.
            _ => return Err(FsError::new(Errno::Stale, "no regular file any more").into()),
        }
        let answer = changed(txn, fid, &[parent])?;
        let effects = Effects { opened: opened(new, fid), ..Effects::default() };
        return Ok(Done { answer, outcome: Outcome::Failed, effects });
    }
    let node = txn.create(parent, name, new_node(new)?)?;
    let tree = made(txn, node)?;
    let effects = Effects { tree, opened: opened(new, node.fid), ..Effects::default() };
    Ok(Done { effects, ..Done::new(changed(txn, node.fid, &[parent])?) })
}

/// Where something new is.
fn made(txn: &Txn<'_>, node: soda_volume::Node) -> FsResult<TreeChanges> {
    let created = vec![ancestry::created(txn, node.fid, &node.attr)?];
    Ok(TreeChanges { created, ..TreeChanges::default() })
}

fn tmp_file(txn: &mut Txn<'_>, parent: Fid, new: &soda_protocol::NewNode) -> Result<Done, Stop> {
    let node = txn.tmpfile(parent, new_node(new)?)?;
    let effects = Effects {
        tree: made(txn, node)?,
        opened: opened(new, node.fid),
        orphaned: Some(node.fid),
        ..Effects::default()
    };
    Ok(Done { effects, ..Done::new(changed(txn, node.fid, &[])?) })
}

fn unlink(
    shared: &Shared,
    txn: &mut Txn<'_>,
    (parent, name): (Fid, &Name),
    what: Unlink,
    victim: Option<Fid>,
) -> Result<Done, Stop> {
    let in_use = match what {
        Unlink::File { in_use } => in_use,
        Unlink::Directory | Unlink::Untold => InUse::No,
    };
    let keep = if_open(shared, victim, in_use);
    let removed = match what {
        Unlink::File { .. } | Unlink::Untold => txn.unlink(parent, name, keep)?,
        Unlink::Directory => txn.rmdir(parent, name, keep)?,
    };
    if what == Unlink::Untold && removed.fate != Fate::Deleted {
        let context =
            "there is no room for what was written to the file, and another machine may have it open";
        return Err(FsError::new(Errno::NoSpace, context).into());
    }
    let answer = Answer::Changed {
        node: Some(removed_node(txn, &removed)),
        others: vec![(parent, txn.attr(parent)?)],
    };
    Ok(Done { effects: effects_of(&removed, in_use), ..Done::new(answer) })
}

fn rename(
    shared: &Shared,
    txn: &mut Txn<'_>,
    from: (Fid, &Name),
    to: (Fid, &Name),
    how: Rename,
    target: Option<Fid>,
) -> Result<Done, Stop> {
    let in_use = match how {
        Rename::Plain { in_use } | Rename::Whiteout { existing: Replace::Allowed, in_use, .. } => in_use,
        _ => InUse::No,
    };
    let keep = if_open(shared, target, in_use);
    let Renamed { moved, replaced, exchanged } = match how.existing() {
        Some(existing) => txn.rename(from.0, from.1, to.0, to.1, existing, keep)?,
        None => txn.exchange(from, to)?,
    };
    let tree = match how {
        // Two names of one inode stay as they are.
        Rename::Whiteout { creds, .. } if txn.resolve(from.0, from.1)?.is_none() => {
            let left = new_node(&soda_protocol::NewNode::whiteout(creds))?;
            let left = txn.create(from.0, from.1, left)?;
            made(txn, left)?
        }
        _ => TreeChanges::default(),
    };
    let mut others = vec![(from.0, txn.attr(from.0)?)];
    if to.0 != from.0 {
        others.push((to.0, txn.attr(to.0)?));
    }
    others.extend(replaced.iter().map(|removed| (removed.fid, removed.attr)));
    others.extend(exchanged.iter().map(|node| (node.fid, node.attr)));
    let answer = Answer::Changed { node: Some(node(txn, moved.fid, moved.attr)?), others };
    let effects = replaced.map(|removed| effects_of(&removed, in_use)).unwrap_or_default();
    Ok(Done { effects: Effects { tree, ..effects }, ..Done::new(answer) })
}

/// Whether an inode that loses its last name has to be kept. All who could have it open have been asked by now: their
/// leases on it were recalled before the operation was admitted. Not so in the grace period: a client that has not come
/// back yet may have it open. Then it is kept, and looked at again when the period is over.
fn if_open(shared: &Shared, inode: Option<Fid>, in_use: InUse) -> IfOpen {
    let core = shared.core();
    let used = in_use == InUse::Yes || inode.is_some_and(|fid| core.opens.is_used(fid));
    if used || core.grace_left().is_some() { IfOpen::Keep } else { IfOpen::Delete }
}

fn effects_of(removed: &Removed, in_use: InUse) -> Effects {
    match removed.fate {
        Fate::Linked => Effects::default(),
        Fate::Deleted => Effects { gone: Some(removed.fid), ..Effects::default() },
        Fate::Orphaned => Effects {
            orphaned: Some(removed.fid),
            opened: (in_use == InUse::Yes).then_some(removed.fid),
            ..Effects::default()
        },
    }
}

fn opened(new: &soda_protocol::NewNode, fid: Fid) -> Option<Fid> {
    (new.open == InUse::Yes).then_some(fid)
}

fn changed(txn: &Txn<'_>, fid: Fid, others: &[Fid]) -> FsResult<Answer> {
    let others = others.iter().map(|other| Ok((*other, txn.attr(*other)?)));
    let others = others.collect::<FsResult<Vec<(Fid, Attr)>>>()?;
    Ok(Answer::Changed { node: Some(node(txn, fid, txn.attr(fid)?)?), others })
}

fn node(txn: &Txn<'_>, fid: Fid, attr: Attr) -> FsResult<Node> {
    Ok(Node { fid, attr, xattrs: summary(txn.xattr_count(fid)?) })
}

/// Of an inode that may be gone.
fn removed_node(txn: &Txn<'_>, removed: &Removed) -> Node {
    let xattrs = txn.xattr_count(removed.fid).unwrap_or(0);
    Node { fid: removed.fid, attr: removed.attr, xattrs: summary(xattrs) }
}

pub(super) fn new_node(new: &soda_protocol::NewNode) -> FsResult<NewNode> {
    let kind = match new.kind {
        FileKind::File => NewKind::File,
        FileKind::Directory => NewKind::Directory,
        FileKind::Symlink => NewKind::Symlink(Bytes::copy_from_slice(&new.target)),
        FileKind::Fifo => NewKind::Fifo,
        FileKind::Socket => NewKind::Socket,
        FileKind::CharDevice => NewKind::CharDevice(new.rdev),
        FileKind::BlockDevice => NewKind::BlockDevice(new.rdev),
    };
    Ok(NewNode { kind, perm: new.perm, umask: new.umask, creds: new.creds })
}
