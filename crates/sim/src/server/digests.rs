//! Digests: applied whole or not at all, exactly once, and only under the session's write leases.

use super::{Operation, Server, Work, check_epochs};
use crate::config::Sabotage;
use crate::context::Context;
use crate::event::ConnId;
use crate::message::{DigestCall, Object, OpUid, Tag, ToClient, fid_of, object_of};
use soda_lease::table::{Access, OpKey, Outcome};
use soda_oplog::{Change, Object as Touched};
use soda_types::{Cause, Fid, Mode, SessionId};

impl Server {
    pub(super) fn digest(
        &mut self,
        context: &mut Context,
        reply_to: (ConnId, Tag),
        session: SessionId,
        digest: DigestCall,
    ) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let careless = context.config.sabotage == Sabotage::ApplyWithoutLeases;
        if running.session_of.get(&reply_to.0) != Some(&session) && !careless {
            return;
        }
        if running.traffic(context, now, session).is_err() && !careless {
            context.send_to_client(reply_to.0, ToClient::SessionEnded { tag: reply_to.1 });
            return;
        }
        let is_same = |operation: &Operation| {
            operation.session == session
                && matches!(&operation.work, Work::Digest(one) if one.id == digest.id)
        };
        if let Some(known) = running.ops.values_mut().find(|operation| is_same(operation)) {
            known.reply_to.push(reply_to);
            return;
        }
        let stored = self.disk.digest(session).map(|(id, _)| *id);
        let (work, accesses) = match stored {
            Some(stored) if stored > digest.id => return,
            Some(stored) if stored == digest.id => (Work::DigestAgain, Vec::new()),
            _ if self.covers(context, session, &digest) => {
                let change = |fid: &Fid| Access::change(*fid, Cause::Data).without_lease();
                let accesses = existing(&digest).iter().map(change).collect();
                (Work::Digest(digest), accesses)
            }
            _ => {
                context.send_to_client(reply_to.0, ToClient::DigestRefused { tag: reply_to.1 });
                return;
            }
        };
        let Some(running) = &mut self.running else { return };
        running.last_op += 1;
        let key = OpKey(running.last_op);
        let operation = Operation {
            session,
            uid: OpUid(0),
            op: None,
            work,
            reply_to: vec![reply_to],
            values: Vec::new(),
            outcome: Outcome::Applied,
        };
        running.ops.insert(key, operation);
        if careless && !running.table.has_session(session) {
            self.apply_digest(context, key);
            return;
        }
        running.table.request(now, session, key, accesses);
    }

    /// The session has write leases, recalled ones included, on all that the digest changes and does not make.
    fn covers(&self, context: &Context, session: SessionId, digest: &DigestCall) -> bool {
        let Some(running) = &self.running else { return false };
        let holds =
            |fid: &Fid| running.table.lease(session, *fid).is_some_and(|lease| lease.mode == Mode::Write);
        context.config.sabotage == Sabotage::ApplyWithoutLeases || existing(digest).iter().all(holds)
    }

    pub(super) fn apply_digest(&mut self, context: &mut Context, key: OpKey) {
        let Some((session, digest)) = self.running.as_ref().and_then(|running| {
            let operation = running.ops.get(&key)?;
            match &operation.work {
                Work::Digest(digest) => Some((operation.session, digest.clone())),
                _ => None,
            }
        }) else {
            return;
        };
        // It may have waited for an operation in progress, and the session may have ended.
        let (objects, cells) = (Object::from(context.config.objects), context.config.cells);
        let applied =
            self.covers(context, session, &digest) && self.disk.apply(&digest, objects, cells).is_ok();
        context.note(|| format!("server   {key:?} {session:?} {:?} applied: {applied}", digest.id));
        if applied {
            context.trace.mix(digest.id.0);
            if context.config.sabotage != Sabotage::ForgetDigests {
                self.disk.set_digest(session, digest.id, made(&digest));
            }
            let disk = &self.disk;
            context.invariants.digested(session, &digest.uids, |register| disk.value(register));
        } else if let Some(operation) = self.running.as_mut().and_then(|running| running.ops.get_mut(&key)) {
            operation.outcome = Outcome::Failed;
        }
    }

    /// Also of one that came again: the leases on what it made are given again.
    pub(super) fn finish_digest(&mut self, context: &mut Context, key: OpKey, operation: &Operation) {
        let now = self.clock.read(context.now);
        let Some(running) = &mut self.running else { return };
        let refused = operation.outcome == Outcome::Failed;
        let made = match &operation.work {
            Work::Digest(digest) if !refused => made(digest),
            _ => self.disk.digest(operation.session).map(|(_, made)| made.clone()).unwrap_or_default(),
        };
        let mut made: Vec<Fid> = made.into_iter().map(fid_of).collect();
        if refused || context.config.sabotage == Sabotage::NoLeasesOnMade {
            made.clear();
        }
        let grants = running.table.finish_digest(now, key, operation.outcome, &made);
        check_epochs(context, grants.iter());
        for (conn, tag) in operation.reply_to.iter().copied() {
            let reply = if refused {
                ToClient::DigestRefused { tag }
            } else {
                ToClient::Digested { tag, grants: grants.clone() }
            };
            context.send_to_client(conn, reply);
        }
    }
}

/// The inodes that a digest makes and does not remove.
fn made(digest: &DigestCall) -> Vec<Object> {
    let of = |change: &Change| match change {
        Change::Create { fid, .. } => Some(object_of(*fid)),
        _ => None,
    };
    digest.records.iter().filter_map(|record| of(&record.change)).collect()
}

/// The inodes that it changes and does not make.
fn existing(digest: &DigestCall) -> Vec<Fid> {
    let made = made(digest);
    let mut fids: Vec<Fid> = digest
        .records
        .iter()
        .flat_map(|record| record.change.touches())
        .filter_map(|(touched, _)| match touched {
            Touched::Inode(fid) => Some(fid),
            Touched::Name(_) | Touched::Tree => None,
        })
        .filter(|fid| !made.contains(&object_of(*fid)))
        .collect();
    fids.sort_unstable();
    fids.dedup();
    fids
}
