//! What a client moves under write leases, and tells the server later: one digest of one move.

use crate::world::{Does, Mistake, Op, OwnMove, Reply, SESSIONS, World, f, s};
use soda_lease::table::{Ancestors, Covered, OpKey, Output, Refusal, TreeChanges};
use soda_types::{Fid, Mode};
use std::collections::BTreeMap;

impl World {
    pub(crate) fn move_at_home(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        if !self.clients[&session].moves.is_empty() {
            return;
        }
        let (now, holder) = (self.now, &self.clients[&session].holder);
        let writes = |fid: &Fid| holder.valid_until(now, *fid, Mode::Write).is_some();
        let own: Vec<Fid> = self.tree.keys().copied().filter(writes).collect();
        let in_own = |fid: &Fid| matches!(self.tree[fid].parents[..], [from] if own.contains(&from));
        let movable: Vec<Fid> = own.iter().copied().filter(in_own).collect();
        let dirs: Vec<Fid> = own.iter().copied().filter(|fid| self.tree[fid].is_dir).collect();
        let moved_dirs: Vec<Fid> = movable.iter().copied().filter(|fid| self.tree[fid].is_dir).collect();
        let picked = if self.random.below(3) > 0 { &moved_dirs } else { &movable };
        let (Some(fid), Some(to)) = (self.random.pick(picked), self.random.pick(&dirs)) else { return };
        let [from] = self.tree[&fid].parents[..] else { return };
        let busy =
            |op: &Op| op.session == session && [fid, from, to].iter().any(|it| op.floors.contains_key(it));
        // A file that has had several names, or one, keeps to those.
        let fine = from != to && fid != to;
        if !fine
            || self.linked.contains(&fid)
            || self.chain(to).contains(&fid)
            || self.all_in_flight().any(busy)
        {
            return;
        }
        // What it knows of them it has changed.
        for fid in [fid, from, to] {
            self.flush(session, fid);
            self.client(session).cache.remove(&fid);
        }
        let client = self.client(session);
        let number = client.holder.begin_own_move(fid, Some(to));
        client.moves.push(OwnMove { number, fid, from, to });
    }

    /// Tells what was moved and not told. False: the server is busy with something of it.
    pub(crate) fn tell_moves(&mut self, session: u64) -> bool {
        let Some(moved) = self.clients[&session].moves.first().copied() else { return true };
        let OwnMove { number, fid, from, to } = moved;
        let held = vec![fid, from, to];
        let as_of = self.table.tree_version();
        let place = |fid: &Fid| (*fid, Ancestors::Chain(as_of, self.chain(*fid)));
        let ancestors = held.iter().map(place).collect();
        let now = self.now;
        let ticket = self.client(session).holder.begin_request(now);
        self.ops += 1;
        let key = OpKey(self.ops);
        let covered = Covered { held, made: Vec::new(), alone: vec![f(0)], ancestors };
        self.table.request_covered(self.now, s(session), key, covered);
        let mut verdict = None;
        let mut others = Vec::new();
        while let Some(output) = self.table.poll_output() {
            match output {
                Output::Admit(op) if op == key => verdict = Some(true),
                // It comes again.
                Output::Refuse(op, Refusal::Unplaced(_)) if op == key => {}
                Output::Refuse(op, _) if op == key => verdict = Some(false),
                other => others.push(other),
            }
        }
        others.into_iter().for_each(|output| self.output(output));
        if verdict.is_none() {
            self.table.cancel(self.now, key);
            self.client(session).holder.fail_request(ticket);
            self.outputs();
            return false;
        }
        self.client(session).moves.clear();
        if verdict == Some(false) {
            self.refused += 1;
            let client = self.client(session);
            client.holder.fail_request(ticket);
            client.holder.end_own_move(number);
            return true;
        }
        self.told += 1;
        self.client(session).telling.push((ticket, number));
        let mut changes = TreeChanges::default();
        let mut seen = Vec::new();
        if self.tree[&fid].parents == [from] && !self.chain(to).contains(&fid) && fid != to {
            self.inode(fid).parents = vec![to];
            changes.moved.push(self.moved(fid));
            for fid in [fid, from, to] {
                self.versions += 1;
                let version = self.versions;
                self.inode(fid).version = version;
                seen.push((fid, version));
            }
        }
        let granted = self.table.finish_covered_tree(self.now, key, &changes);
        let does = Does::Rename(fid, from, to);
        let floors = [fid, from, to].map(|fid| (fid, 0)).into_iter().collect::<BTreeMap<Fid, u64>>();
        let op = Op { session, ticket, does, accesses: Vec::new(), floors, result: None, seen };
        self.replies.push(Reply { op, grants: granted.leases, covered: granted.covered });
        self.outputs();
        true
    }

    /// What has to be told before an object is given up: everything, here.
    pub(crate) fn may_answer(&mut self, session: u64) -> bool {
        self.mistake == Mistake::AnswersUntold || self.tell_moves(session)
    }
}
