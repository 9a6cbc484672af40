//! Saying what an inode is like to who only wants to know that: no lease is given up, and nothing is told to the server.
//!
//! The answer is what our caches have at one moment, under the write lease. Before it leaves, our kernel is told to forget
//! what it shows of before, as for a recall: once another machine has seen a change, no program here may miss it.

use crate::cache::State;
use crate::cache::inode::{Described, Origin};
use crate::inner::Inner;
use crate::kernel::Plan;
use soda_protocol::{Inquiry, InquiryAnswer, Node, Note, XattrSummary};
use soda_types::{Fid, Mode, Monotonic};
use std::sync::Arc;
use std::time::Duration;

/// So often it is said of an inode that it is as it was; then who asks had better have a lease. One `ls -l` asks four times.
const SAID_AGAIN: u32 = 16;
/// Of what has not changed for so long no more changes are expected.
const QUIET: Duration = Duration::from_secs(1);

/// What is going to be said, when the kernel knows it, too.
struct Saying {
    number: u64,
    node: Node,
    plan: Plan,
    /// Counts the changes that it shows.
    count: u64,
}

impl Inner {
    pub(crate) fn handle_inquiries(self: &Arc<Inner>, inquiries: &[Inquiry]) {
        let mut answers = Vec::new();
        for Inquiry { number, fid } in inquiries {
            self.stats.inquiries.one();
            match self.begin_saying(*number, *fid) {
                None => {
                    self.stats.inquiries_declined.one();
                    answers.push(InquiryAnswer { number: *number, node: None });
                }
                Some(saying) if saying.plan.needs_kernel() || !self.answers.none_inside() => {
                    let inner = Arc::clone(self);
                    self.recall_pool.run(Box::new(move || inner.say(&saying)));
                }
                Some(saying) => answers.push(saying.answer()),
            }
        }
        if !answers.is_empty() {
            self.note(&Note::InquiryAnswers(answers));
        }
    }

    fn begin_saying(&self, number: u64, fid: Fid) -> Option<Saying> {
        if !self.gate.is_open() {
            // What the kernel shows of before this client does not know. A recall waits for that.
            return None;
        }
        let now = self.now();
        let mut state = crate::lock(&self.state);
        let node = state.describe(now, fid)?;
        let inode = state.existing(fid)?;
        let count = inode.changes.count;
        let again = if inode.described.at == Some(count) { inode.described.again + 1 } else { 0 };
        if inode.unchanged_for(now) >= QUIET || again > SAID_AGAIN {
            return None;
        }
        let shown = inode.described.shown.filter(|shown| *shown == count);
        inode.described = Described { at: Some(count), again, shown };
        if shown.is_some() {
            return Some(Saying { number, node, plan: Plan::default(), count });
        }
        self.answers.bump();
        // The same as for a lease that may be kept for reading.
        let plan = Plan::new(&mut state, now, fid, Some(Mode::Read));
        Some(Saying { number, node, plan, count })
    }

    fn say(&self, saying: &Saying) {
        let fid = saying.node.fid;
        self.answers.wait(&*self.hooks);
        if saying.plan.needs_kernel() {
            saying.plan.tell(&*self.hooks, fid);
            let mut state = crate::lock(&self.state);
            if let Some(inode) = state.existing(fid) {
                inode.described.shown = Some(saying.count);
            }
        }
        self.note(&Note::InquiryAnswers(vec![saying.answer()]));
    }
}

impl Saying {
    fn answer(&self) -> InquiryAnswer {
        InquiryAnswer { number: self.number, node: Some(self.node) }
    }
}

impl State {
    /// What an inode is like that nobody else can have changed, and that has no changes on their way through.
    fn describe(&mut self, now: Monotonic, fid: Fid) -> Option<Node> {
        if !self.writes_behind() || self.holder.valid_until(now, fid, Mode::Write).is_none() {
            return None;
        }
        let inode = self.peek(fid)?;
        let known = inode.log.origin == Origin::AtServer && inode.kernel.recalling == 0;
        if !known || inode.changes.unanswered > 0 {
            return None;
        }
        let xattrs = inode.summary().unwrap_or(XattrSummary::Some);
        // Without a name it may be gone for who asks.
        let attr = self.peek_attr(now, fid).filter(|attr| attr.nlink > 0)?;
        Some(Node { fid, attr, xattrs })
    }
}
