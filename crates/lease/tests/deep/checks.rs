//! What must hold of the table at any time, and a restart of the server.

use crate::world::{Op, SESSIONS, World, s};
use soda_lease::table::{Access, Hole, LeaseTable};
use soda_types::{Epoch, Fid, Mode};
use std::collections::BTreeMap;

impl World {
    /// The server stops and starts; all messages are lost. What was asked of it comes to nothing.
    pub(crate) fn restart(&mut self) {
        let first = Epoch(self.table.last_epoch().0 + 1000);
        self.table = LeaseTable::new(self.config.clone(), first, self.now);
        self.table.begin_grace(self.now, (1..=SESSIONS).map(s));
        let running = std::mem::take(&mut self.running).into_iter().map(|(_, op)| op);
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let replies = std::mem::take(&mut self.replies).into_iter().map(|reply| reply.op);
        let lost: Vec<Op> = std::mem::take(&mut self.planned)
            .into_iter()
            .chain(running)
            .chain(waiting)
            .chain(replies)
            .collect();
        self.recalls.clear();
        self.acks.clear();
        for op in lost {
            // Its own change may have been made.
            for access in &op.accesses {
                self.flush(op.session, access.fid);
                self.client(op.session).cache.remove(&access.fid);
            }
            self.client(op.session).holder.fail_request(op.ticket);
        }
        for client in self.clients.values_mut() {
            // Never made, or made and not heard of.
            let moves = std::mem::take(&mut client.moves);
            let telling = std::mem::take(&mut client.telling).into_iter().map(|(_, number)| number);
            let numbers = moves.into_iter().map(|moved| moved.number).chain(telling);
            numbers.for_each(|number| client.holder.end_own_move(number));
        }
        let now = self.now;
        let mut order: Vec<u64> = (1..=SESSIONS).collect();
        order.swap(0, self.random.below(SESSIONS as usize));
        for session in order {
            // A deep lease may have been moved away from what it covered, by a request whose answer was lost.
            self.client(session).holder.fall_back_to_nodes();
            let held = self.clients[&session].holder.reclaim_list(now);
            let as_of = self.table.tree_version();
            let placed: Vec<_> = held
                .iter()
                .map(|grant| {
                    let several = self.tree[&grant.fid].parents.len() > 1;
                    let access = Access::read(grant.fid);
                    let access = match (several, self.is_unsaid()) {
                        (true, _) => access.not_deep(as_of),
                        (false, true) => access,
                        (false, false) => access.below(as_of, self.chain(grant.fid)),
                    };
                    (*grant, access.ancestors)
                })
                .collect();
            let ticket = self.client(session).holder.begin_request(now);
            let answers = self.table.handle_reclaim_placed(now, s(session), &placed).expect("known");
            let refused = self.client(session).holder.handle_reclaimed(now, ticket, &held, &answers);
            for fid in refused {
                // Nobody else can have it, or the world would not be one copy: what was written there is written.
                self.flush(session, fid);
                self.client(session).cache.remove(&fid);
            }
            self.table.finish_reclaim(now, s(session));
        }
    }

    /// What a session may do with an object by all its leases: the rule, without the table's short cuts.
    pub(crate) fn may(&self, session: u64, fid: Fid) -> Option<Mode> {
        let node = self.table.lease(s(session), fid).map(|grant| grant.mode);
        let mut path = vec![fid];
        path.extend(self.chain(fid));
        let deep = path.iter().enumerate().filter_map(|(at, root)| {
            let lease = self.table.deep_lease(s(session), *root)?;
            let holes: BTreeMap<Fid, Hole> = self.table.holes(s(session), *root).into_iter().collect();
            if path[1..=at].iter().any(|dir| holes.get(dir) == Some(&Hole::Tree)) {
                return None;
            }
            holes.get(&fid).map_or(Some(lease.mode), |hole| hole.kept()).map(|kept| kept.min(lease.mode))
        });
        node.max(deep.max())
    }

    /// No two sessions' leases conflict anywhere in the tree.
    pub(crate) fn check(&self) {
        // This walks through all recalls.
        for session in self.table.sessions(self.now) {
            assert_eq!(self.table.is_asked(session.session), session.unanswered > 0, "{session:?}");
        }
        // Between a rename and its end the table is behind the volume.
        if self.running.iter().any(|(_, op)| op.result.is_some()) {
            return;
        }
        for fid in self.tree.keys().filter(|fid| !self.linked.contains(fid)) {
            let modes: Vec<Mode> = (1..=SESSIONS).filter_map(|session| self.may(session, *fid)).collect();
            let writer = modes.contains(&Mode::Write);
            assert!(!writer || modes.len() == 1, "{fid:?}: {modes:?}");
            if let Some(known) = self.table.ancestors(*fid) {
                assert_eq!(known, self.chain(*fid), "where {fid:?} lies");
            }
        }
    }
}
