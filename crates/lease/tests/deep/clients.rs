//! What the clients do: ask for something, hear of it, use and drop their caches.

use crate::world::{Cached, Client, Does, Mistake, Op, Reply, SESSIONS, World, f, s};
use soda_lease::RecallStep;
use soda_types::{Fid, FileKind, InUse, Mode, Monotonic, Recall, RecallAck};
use std::collections::BTreeMap;
use std::time::Duration;

impl World {
    pub(crate) fn begin(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        if self.in_flight(session) > 3 {
            return;
        }
        // Nobody has seen what is not there yet.
        let new = |fid: &Fid| self.running.iter().any(|(_, op)| op.makes(*fid));
        let all: Vec<Fid> = self.tree.keys().copied().filter(|fid| !new(fid)).collect();
        let dirs: Vec<Fid> = all.iter().copied().filter(|fid| self.tree[fid].is_dir).collect();
        // Clients stay in their corner mostly.
        let corner = f(1 + session);
        let near: Vec<Fid> =
            all.iter().copied().filter(|fid| *fid == corner || self.chain(*fid).contains(&corner)).collect();
        let one = if self.random.below(6) > 0 { self.random.pick(&near) } else { self.random.pick(&all) };
        let near_dirs: Vec<Fid> = near.iter().copied().filter(|fid| self.tree[fid].is_dir).collect();
        let to =
            if self.random.below(5) > 0 { self.random.pick(&near_dirs) } else { self.random.pick(&dirs) };
        let (Some(one), Some(to)) = (one, to) else { return };
        let inode = self.tree[&one].clone();
        let parent = self.random.pick(&inode.parents);
        let does = match (self.whim(), parent, inode.is_dir) {
            (0..=1, _, _) if self.tree.len() < 40 => {
                let kind = if self.random.below(2) == 0 { FileKind::Directory } else { FileKind::File };
                Does::Create(to, kind)
            }
            (2..=3, Some(parent), _) if one != to && !self.chain(to).contains(&one) => {
                Does::Rename(one, parent, to)
            }
            (4, Some(_), false) if inode.parents.len() == 1 && !inode.parents.contains(&to) => {
                Does::Link(one, to)
            }
            (5, Some(parent), false) if inode.parents.len() > 1 => Does::Unlink(one, parent),
            (6..=8, _, _) => Does::Change(one),
            (9..=12, Some(parent), _) => Does::Read(vec![parent, one]),
            _ => Does::Read(vec![one]),
        };
        let now = self.now;
        let mistake = self.mistake;
        let moves = match &does {
            Does::Rename(fid, _, to) => Some((*fid, Some(*to))),
            Does::Link(fid, _) | Does::Unlink(fid, _) => Some((*fid, None)),
            _ => None,
        };
        // What it has done on its own comes before.
        if !self.tell_moves(session) {
            return;
        }
        self.flush_all(session);
        let ticket = self.client(session).holder.begin_request(now);
        if let Some((fid, to)) = moves
            && mistake != Mistake::MovesUnsaid
        {
            let client = self.client(session);
            client.holder.begin_move(ticket, fid, to);
        }
        let op = Op {
            session,
            ticket,
            does,
            accesses: Vec::new(),
            floors: BTreeMap::new(),
            result: None,
            seen: Vec::new(),
        };
        let planned = self.plan(op);
        self.planned.push(planned);
    }

    /// What somebody feels like. In some worlds much is moved, in some much is linked.
    fn whim(&mut self) -> usize {
        let habit = self.random.below(3) == 0;
        match (self.habits, habit) {
            (1, true) => 2,
            (2, true) => 4 + self.random.below(2),
            _ => self.random.below(20),
        }
    }

    pub(crate) fn hear_reply(&mut self) {
        if self.replies.is_empty() {
            return;
        }
        let at = self.random.below(self.replies.len());
        let Reply { op, grants, covered } = self.replies.swap_remove(at);
        let now = self.now;
        let client = self.clients.get_mut(&op.session).expect("a session");
        client.holder.handle_reply_covered(now, op.ticket, &grants, &covered);
        if let Some(at) = client.telling.iter().position(|(ticket, _)| *ticket == op.ticket) {
            client.holder.end_own_move(client.telling.swap_remove(at).1);
        }
        for (fid, version) in &op.seen {
            let newest = client.newest.entry(*fid).or_default();
            *newest = (*newest).max(*version);
            if client.cache.get(fid).is_some_and(|cached| cached.version < *newest) {
                client.cache.remove(fid);
            }
            if let Some(holding) = client.holder.cacheable(op.ticket, *fid)
                && version == newest
                && client.cache.get(fid).is_none_or(|cached| cached.holding != holding)
            {
                client.cache.insert(*fid, Cached { version: *version, holding, dirty: false });
            }
            let floor = self.floor.entry(*fid).or_default();
            *floor = (*floor).max(*version);
        }
    }

    pub(crate) fn hear_recall(&mut self) {
        if self.recalls.is_empty() {
            return;
        }
        let at = self.random.below(self.recalls.len());
        let (session, recall) = self.recalls[at].clone();
        // Some come twice.
        if self.random.below(8) > 0 {
            self.recalls.swap_remove(at);
        }
        let now = self.now;
        match self.client(session).holder.handle_recall(now, &recall) {
            RecallStep::AlreadyGone(ack) if self.may_answer(session) => self.acks.push((session, ack)),
            RecallStep::AlreadyGone(_) => {}
            RecallStep::Working => {}
            step => {
                if self.mistake == Mistake::AnswersEarly {
                    let Recall { fid, epoch, to: kept, part, .. } = recall;
                    self.acks
                        .push((session, RecallAck { fid, epoch, kept, in_use: InUse::No, uses: 0, part }));
                }
                self.client(session).dropping.push(step);
            }
        }
    }

    pub(crate) fn drop_caches(&mut self) {
        let busy = |(session, client): (&u64, &Client)| (!client.dropping.is_empty()).then_some(*session);
        let busy: Vec<u64> = self.clients.iter().filter_map(busy).collect();
        let Some(session) = self.random.pick(&busy) else { return };
        let at = self.random.below(self.clients[&session].dropping.len());
        if !self.may_answer(session) {
            return;
        }
        let step = self.client(session).dropping.swap_remove(at);
        let now = self.now;
        let ack = match step {
            RecallStep::Drop { fid, epoch, keep } => {
                self.bring_down(session, fid, keep);
                self.client(session).holder.finish_recall(now, fid, epoch, InUse::No)
            }
            RecallStep::DropPart { lease, epoch, keep, inside } => {
                inside.iter().for_each(|fid| self.bring_down(session, *fid, keep));
                self.client(session).holder.finish_part(lease, epoch, InUse::No)
            }
            RecallStep::AlreadyGone(_) | RecallStep::Working => return,
        };
        self.acks.push((session, ack));
    }

    pub(crate) fn bring_down(&mut self, session: u64, fid: Fid, keep: Option<Mode>) {
        if self.mistake != Mistake::AnswersUnflushed {
            self.flush(session, fid);
        }
        // An own change whose answer has not come may have been made: the cache does not show it.
        let changing = self.all_in_flight().any(|op| {
            op.session == session && !matches!(op.does, Does::Read(_)) && op.floors.contains_key(&fid)
        });
        if keep.is_none() || changing {
            self.client(session).cache.remove(&fid);
        }
    }

    pub(crate) fn flush(&mut self, session: u64, fid: Fid) {
        if let Some(cached) = self.clients.get_mut(&session).expect("a session").cache.get_mut(&fid)
            && std::mem::take(&mut cached.dirty)
        {
            let stored = &mut self.tree.entry(fid).or_default().version;
            *stored = (*stored).max(cached.version);
        }
    }

    pub(crate) fn flush_all(&mut self, session: u64) {
        let fids: Vec<Fid> = self.clients[&session].cache.keys().copied().collect();
        fids.into_iter().for_each(|fid| self.flush(session, fid));
    }

    pub(crate) fn use_cache(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        let fids: Vec<Fid> = self.clients[&session].cache.keys().copied().collect();
        let Some(fid) = self.random.pick(&fids) else { return };
        let (now, floor) = (self.now, self.floor(fid));
        let busy = self.all_in_flight().any(|op| op.session == session && op.floors.contains_key(&fid));
        let may_write = self.random.below(2) == 0 && !busy;
        let client = self.clients.get_mut(&session).expect("a session");
        let cached = client.cache.get_mut(&fid).expect("cached");
        if client.holder.holding(fid) != Some(cached.holding) {
            return;
        }
        if client.holder.valid_until(now, fid, Mode::Read).is_some() {
            self.cached_reads += 1;
            assert!(
                cached.version >= floor,
                "s{session} reads an old {fid:?}: {} of {floor}",
                cached.version
            );
        }
        if may_write && client.holder.valid_until(now, fid, Mode::Write).is_some() {
            assert!(cached.version >= floor, "s{session} overwrites {fid:?}, which it has not seen");
            self.versions += 1;
            self.local_writes += 1;
            (cached.version, cached.dirty) = (self.versions, true);
            client.newest.insert(fid, self.versions);
            self.floor.insert(fid, self.versions);
        }
    }

    /// A client that is idle.
    pub(crate) fn give_back(&mut self) {
        let session = 1 + self.random.below(SESSIONS as usize) as u64;
        let now = self.now;
        if !self.tell_moves(session) {
            return;
        }
        self.flush_all(session);
        let client = self.client(session);
        let roots = client.holder.idle_deep(now, Duration::from_millis(20));
        for root in roots {
            let covered = client.holder.covered_by(root);
            if let Some(ack) = client.holder.release_deep(root) {
                for fid in covered {
                    client.cache.remove(&fid);
                }
                self.acks.push((session, ack));
                return;
            }
        }
        if let Some(fid) = client.holder.idle(now, Duration::from_millis(20)).first().copied()
            && let Some(ack) = client.holder.release(now, fid)
        {
            client.cache.remove(&fid);
            self.acks.push((session, ack));
        }
    }

    /// A client that sees somebody go through what it has written keeps reading only.
    pub(crate) fn lower(&mut self) {
        let mut roots = Vec::new();
        for (session, client) in &self.clients {
            let held = client.holder.snapshot(Monotonic::ZERO).into_iter().map(|held| held.grant.fid);
            roots.extend(held.filter(|fid| client.holder.may_lower_deep(*fid)).map(|fid| (*session, fid)));
        }
        let Some((session, root)) = self.random.pick(&roots) else { return };
        let changes = |op: &Op| op.session == session && !matches!(op.does, Does::Read(_));
        if self.all_in_flight().any(changes) && self.mistake != Mistake::LowersAtWork {
            return;
        }
        if !self.tell_moves(session) {
            return;
        }
        if self.mistake != Mistake::LowersUnflushed {
            self.flush_all(session);
        }
        // No request is made in between, and one of after it does not overtake it. A lost one is not missed.
        if let Some(ack) = self.client(session).holder.lower_deep(root)
            && self.random.below(8) > 0
        {
            self.table.handle_release(self.now, s(session), &[ack]);
        }
    }
}
