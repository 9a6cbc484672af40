//! Carrying out calls about names and inodes.
//!
//! plan ([`plan`]) → ask the table for admission → (wait) → do it ([`read`], [`change`]) → finish: accesses become leases,
//! which leave with the reply. What is admitted at once is done right here, on the worker of the connection it came from;
//! what has to wait continues on a task of its own, and the worker goes on with its next request.
//!
//! Who only wants attributes that a holder may have changed and not told has the holder asked first: if it says them, nothing is
//! carried out here.

pub(crate) mod ancestry;
mod change;
mod conclusion;
pub(crate) mod digest;
mod directory;
mod node;
mod plan;
mod read;
mod reserve;
pub(crate) mod sync;

use crate::clock;
use crate::core::Verdict;
use crate::guard::{Admission, CoreGuard};
use crate::link::{Incoming, Link};
use crate::respond::{self, Leases};
use crate::shared::Shared;
use bytes::Bytes;
use conclusion::{Conclusion, Stop};
use plan::{Found, Plan, Planned, tree_of};
use soda_lease::space::Taking;
use soda_lease::table::{Access, Granted, OpKey, Outcome, TreeChanges, Want};
use soda_protocol::{Answer, Call, Failure, FromHolder, LeaseWait, Node};
use soda_types::{Errno, Fid, FileKind, FsError, Grant, SessionId};
use soda_volume::Staged;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// After so many plans in which something had moved meanwhile one is used as it is: it may ask for more than it needs.
const PLACES_MAX: u32 = 20;
/// After so many plans that did not hold the client is asked to try again.
const PLANS_MAX: u32 = 1000;

/// Carries out a call that arrived.
pub(crate) fn start(shared: Arc<Shared>, incoming: Incoming) {
    match incoming.request.call {
        Call::Digest { .. } => return digest::start(shared, incoming),
        Call::Reserve { inodes, bytes } => return reserve::run(&shared, incoming, inodes, bytes),
        _ => {}
    }
    let mut operation =
        Operation { shared, incoming, staged: None, taking: None, plans: 0, inquiry: Inquired::NotYet };
    if let Err(error) = operation.stage() {
        operation.conclude(&[], Conclusion::failed(Failure::Fs(error)));
        return;
    }
    let (shared, link) = (operation.shared.clone(), operation.incoming.link.clone());
    match operation.advance() {
        Step::Done => {}
        step => drop(tokio::spawn(wait(shared, link, step))),
    }
}

/// Nothing is done of it: it is to come again later.
pub(crate) fn turn_away(shared: &Arc<Shared>, incoming: &Incoming, busy: Failure) {
    incoming.answer_undone(&Err(busy));
    if let (Call::Digest { .. }, Some(op)) = (&incoming.request.call, incoming.request.op) {
        sync::digest_is_over(shared, &incoming.link, op);
    }
}

async fn wait(shared: Arc<Shared>, link: Arc<Link>, mut step: Step) {
    link.waiting.fetch_add(1, Ordering::Relaxed);
    // A sender is dropped only when the server stops.
    while let Some(next) = go_on(&shared, step).await {
        step = next;
    }
    link.waiting.fetch_sub(1, Ordering::Relaxed);
}

/// What comes after a step; `None`: nothing.
async fn go_on(shared: &Shared, step: Step) -> Option<Step> {
    let (operation, waiting) = match step {
        Step::Done => return None,
        Step::Inquires(operation, about, answer) => {
            let said = answer.await.ok()?;
            let _place = shared.places.enter().await;
            return Some(operation.described(about, said));
        }
        Step::Waits(operation, waiting) => (operation, waiting),
    };
    match waiting.verdict.await.ok()? {
        Verdict::Admitted => {
            let _place = shared.places.enter().await;
            Some(operation.carry_out(waiting.key, waiting.found))
        }
        Verdict::SessionEnded | Verdict::NotHeld(_) | Verdict::Unplaced => {
            operation.conclude(&[], Conclusion::failed(Failure::SessionEnded));
            None
        }
        Verdict::Cancelled => {
            // The client does not want it any more.
            operation.incoming.answer_undone(&Err(Failure::Fs(Errno::Interrupted.into())));
            None
        }
    }
}

/// A call under way.
#[derive(Debug)]
struct Operation {
    shared: Arc<Shared>,
    incoming: Incoming,
    /// The data of a write, already stored.
    staged: Option<Staged>,
    taking: Option<Taking>,
    plans: u32,
    inquiry: Inquired,
}

/// Whether a holder has been asked for what the call wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inquired {
    NotYet,
    InVain,
}

#[derive(Debug)]
struct Waiting {
    key: OpKey,
    found: Found,
    verdict: oneshot::Receiver<Verdict>,
}

#[derive(Debug)]
enum Step {
    Done,
    Waits(Box<Operation>, Waiting),
    /// For what a holder says of the inode.
    Inquires(Box<Operation>, (Fid, FileKind), oneshot::Receiver<Option<Node>>),
}

impl Operation {
    /// Stores the data of a write before anybody has to wait for it.
    fn stage(&mut self) -> Result<(), FsError> {
        let shared = &self.shared;
        if let Some(wanted) =
            reserve::space_for(&self.incoming.request.call, self.incoming.payload.len() as u64)
        {
            self.taking = Some(shared.take_space(self.incoming.session(), wanted)?);
        }
        if let Call::Write { fid, .. } = &self.incoming.request.call {
            if self.incoming.payload.len() > soda_protocol::MAX_IO as usize {
                return Err(FsError::new(Errno::Invalid, "a write of more than max_io bytes"));
            }
            let data = std::mem::take(&mut self.incoming.payload);
            self.staged = Some(self.shared.volume.stage_write(*fid, data)?);
            self.incoming.held.give_back();
        }
        Ok(())
    }

    /// Plans, asks for admission, and goes on if it is given at once.
    fn advance(mut self) -> Step {
        loop {
            let incoming = &self.incoming;
            let shared = &self.shared;
            self.plans += 1;
            if self.plans > PLANS_MAX {
                let problem = "the names involved change too fast";
                self.incoming.answer_undone(&Err(Failure::Busy(problem.to_owned())));
                return Step::Done;
            }
            let as_of = shared.tree_version();
            let mut plan = match plan::plan(&shared.volume, &incoming.request.call, incoming.want(), as_of) {
                Ok(plan) => plan,
                Err(error) => {
                    self.conclude(&[], Conclusion::failed(Failure::Fs(error)));
                    return Step::Done;
                }
            };
            let mut core = shared.core();
            let moved = |access: &Access| core.table.is_out_of_date(access.fid, &access.ancestors);
            if self.plans < PLACES_MAX && plan.accesses.iter().any(moved) {
                continue;
            }
            match incoming.request.call {
                Call::Stat { .. } | Call::Fetch { holder: FromHolder::Attributes, .. }
                    if self.inquiry == Inquired::NotYet =>
                {
                    if let Some(about) = plan.attributes
                        && let Some(answer) = core.inquire(incoming.session(), &plan.accesses[0])
                    {
                        drop(core);
                        return Step::Inquires(Box::new(self), about, answer);
                    }
                }
                Call::LookupStat { .. } => leave_to_holder(&mut core, incoming.session(), &mut plan),
                _ => {}
            }
            let admission = core.admit(incoming.asker(), plan.accesses);
            if let (Admission::Waits(..), LeaseWait::Polling) =
                (&admission, incoming.link.session.lease_wait())
            {
                // The recalls go on.
                core.cancel(incoming.session(), incoming.tag);
                drop(core);
                incoming.answer_undone(&Err(Failure::InTheWay));
                return Step::Done;
            }
            drop(core);
            match admission {
                Admission::Admitted(key) => match self.attempt(key, plan.found) {
                    Attempt::Done => return Step::Done,
                    Attempt::PlanAnew => {}
                },
                Admission::Waits(key, verdict) => {
                    let waiting = Waiting { key, found: plan.found, verdict };
                    return Step::Waits(Box::new(self), waiting);
                }
                Admission::SessionEnded | Admission::NotHeld(_) | Admission::Unplaced => {
                    self.conclude(&[], Conclusion::failed(Failure::SessionEnded));
                    return Step::Done;
                }
            }
        }
    }

    /// What the holder said, if anything, is the answer, if it can be true of the inode: who asks gives it to its kernel.
    fn described(mut self, (fid, kind): (Fid, FileKind), said: Option<Node>) -> Step {
        match said.filter(|node| node.fid == fid && node.attr.kind == kind) {
            Some(node) => {
                self.conclude(&[], Conclusion::of(Ok(Answer::Described(node)), Outcome::Applied));
                Step::Done
            }
            None => {
                self.inquiry = Inquired::InVain;
                self.advance()
            }
        }
    }

    /// Does what was admitted; plans anew if it is not any more what was planned.
    fn carry_out(mut self, key: OpKey, found: Found) -> Step {
        match self.attempt(key, found) {
            Attempt::Done => Step::Done,
            Attempt::PlanAnew => self.advance(),
        }
    }

    fn attempt(&mut self, key: OpKey, found: Found) -> Attempt {
        let session = &self.incoming.link.session;
        if session.has_ended() {
            self.conclude(&[key], Conclusion::failed(Failure::SessionEnded));
            return Attempt::Done;
        }
        let mut keys = vec![key];
        let result = match self.incoming.request.op {
            Some(op) => {
                let taking = self.taking.as_ref();
                change::run(&self.shared, (&self.incoming, taking), op, found, &mut self.staged)
            }
            None => read::run(&self.shared, &self.incoming, found, &mut keys),
        };
        match result {
            Ok(conclusion) => {
                self.conclude(&keys, conclusion);
                Attempt::Done
            }
            Err(Stop::Failed(error)) => {
                self.conclude(&keys, Conclusion::failed(Failure::Fs(error)));
                Attempt::Done
            }
            Err(Stop::PlanAnew) => {
                let shared = &self.shared;
                shared.metrics.replans.add(1);
                let mut core = shared.core();
                let now = core.now;
                for key in keys {
                    core.table.finish(now, key, Outcome::Failed);
                }
                core.settle();
                Attempt::PlanAnew
            }
        }
    }

    /// Ends the call: accesses become leases, the reply leaves.
    fn conclude(&self, keys: &[OpKey], conclusion: Conclusion) {
        let Conclusion { result, encoded, payload, outcome, mut kept, effects } = conclusion;
        let incoming = &self.incoming;
        log_trouble(&self.shared, incoming, &result);
        let shared = &self.shared;
        if let (Some(op), Err(Failure::Fs(_))) = (incoming.request.op, &result) {
            kept = change::store_failure(shared, &incoming.link.session, op, &encoded);
        }
        let gone = self.gone(&result).into_iter().chain(effects.gone);
        let mut core = shared.core();
        let now = core.now;
        let session = incoming.session();
        let mut tree = effects.tree;
        let mut granted = Granted::default();
        for key in keys {
            let Granted { leases, covered } = core.table.finish_tree(now, *key, outcome, &tree);
            granted.leases.extend(leases);
            granted.covered.extend(covered);
            tree = TreeChanges::default();
        }
        if incoming.want() == Want::Nothing {
            granted.covered.clear();
        }
        if let Some(fid) = effects.opened
            && !incoming.link.session.has_ended()
        {
            core.opens.add(session, fid, incoming.order);
        }
        if let Some(fid) = effects.named {
            core.orphans.remove(&fid);
        }
        for fid in gone {
            // Who deletes a million files is not to hold a million leases on what is not there; nor does who asks for what
            // others have deleted, which a power cut may bring back for them.
            granted.leases.retain(|grant: &Grant| grant.fid != fid);
            granted.covered.retain(|covered| covered.fid != fid);
            core.give_up_lease(session, fid);
        }
        if let Some(fid) = effects.orphaned {
            core.orphans.insert(fid);
            core.drop_if_unused(fid);
        }
        let leases = core.leases(session, granted);
        core.send(&incoming.link.outbox, respond::reply(incoming.tag, &encoded, &leases, payload));
        if let Some(op) = incoming.request.op {
            let waiters = incoming.link.session.slots().done(op, encoded.clone(), kept);
            for waiter in waiters {
                core.send(&waiter.outbox, respond::reply(waiter.tag, &encoded, Leases::NONE, Bytes::new()));
            }
        }
        core.settle();
        incoming.count(&result);
        drop(core);
    }
}

impl Operation {
    /// What the call failed for: inodes that do not exist any more. A name that does not exist is another matter: who asks for
    /// that gets the lease of its directory.
    fn gone(&self, result: &Result<Answer, Failure>) -> Vec<Fid> {
        let is_stale = |error: &FsError| error.errno == Errno::Stale;
        if !matches!(result, Err(Failure::Fs(error)) if is_stale(error)) {
            return Vec::new();
        }
        let volume = &self.shared.volume;
        let mut named = plan::named_by(&self.incoming.request.call);
        named.retain(|fid| volume.getattr(*fid).as_ref().is_err_and(is_stale));
        named
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    Done,
    PlanAnew,
}

/// If the holder of the inode can say what it is like, only the name is looked up: by the time that it is found the holder
/// may have let the inode go with its directory.
fn leave_to_holder(core: &mut CoreGuard<'_>, session: SessionId, plan: &mut Plan) {
    let Some((inode, _)) = plan.attributes else { return };
    let now = core.now;
    let of_inode = plan.accesses.iter().position(|access| access.fid == inode);
    if let Some(at) = of_inode
        && core.table.may_inquire(now, session, &plan.accesses[at])
    {
        plan.accesses.remove(at);
        plan.found.inode_is = Planned::Named;
    }
}

/// Errors that are the server's trouble, not the caller's, belong in its log; what the caller brought does not.
fn log_trouble(shared: &Shared, incoming: &Incoming, result: &Result<Answer, Failure>) {
    let Err(Failure::Fs(error)) = result else { return };
    let (session, op) = (incoming.session(), incoming.kind.name());
    match error.errno {
        Errno::Io => {
            if shared.troubles.failed.may_say(clock::monotonic()) {
                let of = plan::named_by(&incoming.request.call);
                tracing::error!(%session, op, ?of, %error, "an operation failed");
            }
        }
        Errno::NoSpace => {
            if shared.troubles.no_space.may_say(clock::monotonic()) {
                tracing::warn!(%session, op, %error, "no space");
            }
            shared.janitor.want_space();
        }
        _ => tracing::trace!(%session, op, %error, "failed"),
    }
}
