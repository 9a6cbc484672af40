//! rename(2) and its flags.

use crate::behind::names::At;
use crate::cache::State;
use crate::cache::names::Known;
use crate::call::Order;
use crate::client::Client;
use crate::inner::Inner;
use crate::interface::RenameHow;
use crate::ops::names::Did;
use soda_protocol::{Call, Rename};
use soda_types::{Attr, Errno, Fid, FileKind, FsResult, InUse, Monotonic, Name};
use std::sync::{Arc, MutexGuard};

impl Client {
    /// # Errors
    /// ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL for a directory into itself.
    pub async fn rename(
        &self,
        parent: Fid,
        name: &Name,
        new_parent: Fid,
        new_name: &Name,
        how: RenameHow,
    ) -> FsResult<()> {
        self.inner.stats.op_rename.one();
        let ends = (At { dir: parent, name }, At { dir: new_parent, name: new_name });
        let found =
            self.inner.meaning_here(new_parent, new_name).map(|fid| (fid, self.inner.hooks.in_use(fid)));
        let moved_here = self.inner.here(parent, |state, now, today| {
            state.rename_here(now, today, ends, how, found)?;
            move_in_kernel(state, now, (parent, name), (new_parent, new_name));
            Ok(())
        });
        if let Some(()) = moved_here.await? {
            return Ok(());
        }
        let slot = self.slot().await?;
        let moved = self.meaning(parent, name).await?.ok_or(Errno::NoEntry)?;
        let other = self.meaning(new_parent, new_name).await?;
        let asked_hooks = other.map_or(InUse::No, |fid| self.inner.hooks.in_use(fid));
        let inodes: Vec<Fid> = [Some(moved), other].into_iter().flatten().collect();
        let touches = [parent, new_parent].into_iter().chain(inodes.iter().copied()).collect();
        let (in_use, protocol_how, ticket, flight) = {
            let (mut state, now) = self.inner.settled_for_rename(&[parent, new_parent], &inodes).await?;
            for (dir, name, means) in [(parent, name, Some(moved)), (new_parent, new_name, other)] {
                state.check_meaning(now, At { dir, name }, means)?;
            }
            self.names_may_change(&mut state, now, &[parent, new_parent])?;
            let in_use = other.map_or(InUse::No, |fid| state.in_use(fid, asked_hooks));
            let protocol_how = match how {
                RenameHow::Plain => Rename::Plain { in_use },
                RenameHow::NoReplace => Rename::NoReplace,
                RenameHow::Exchange => Rename::Exchange,
                RenameHow::Whiteout { existing, creds } => Rename::Whiteout { existing, in_use, creds },
            };
            let ticket = state.holder.begin_request(now);
            if parent != new_parent {
                state.holder.begin_move(ticket, moved, Some(new_parent));
            }
            if let Some(other) = other {
                let to = (how == RenameHow::Exchange).then_some(parent);
                state.holder.begin_move(ticket, other, to);
            }
            let flight = state.begin_names(now, &[(parent, name), (new_parent, new_name)], &inodes);
            move_in_kernel(&mut state, now, (parent, name), (new_parent, new_name));
            (in_use, protocol_how, ticket, flight)
        };
        let (name, new_name) = (name.clone(), new_name.clone());
        let call = Call::Rename { parent, name, new_parent, new_name, how: protocol_how };
        let order =
            Order { names_of: vec![parent, new_parent], ..Order::change(call, slot, ticket, touches) };
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            let (state, now) = (&mut *arrived.state, arrived.now);
            let did = match Did::from(result.map(|(answer, _)| answer)) {
                Ok(did) => did,
                Err(error) => {
                    state.end_names(now, ticket, flight, &[], None);
                    return Err(error);
                }
            };
            let outcomes = outcomes(&did, moved, other, how);
            state.end_names(now, ticket, flight, &outcomes, Some(&did));
            if matches!(how, RenameHow::Plain | RenameHow::Whiteout { .. })
                && in_use == InUse::Yes
                && let Some(replaced) = other
            {
                state.told_open(replaced);
            }
            for (fid, parent) in [(Some(moved), new_parent), (other, parent)] {
                let dir = fid.and_then(|fid| state.existing(fid)).and_then(|inode| inode.dir.as_mut());
                if let Some(dir) = dir {
                    dir.set_parent(parent);
                }
            }
            Ok(())
        });
        waiting.result().await
    }
}

impl Inner {
    /// As [`Inner::settled_unless_lost`], of what the server has to be told before it renames: whether a directory may be moved
    /// depends on where others were moved here, meanwhile, too.
    async fn settled_for_rename(
        self: &Arc<Inner>,
        parents: &[Fid; 2],
        inodes: &[Fid],
    ) -> FsResult<(MutexGuard<'_, State>, Monotonic)> {
        let mut moved = Vec::new();
        loop {
            let ahead: Vec<Fid> = parents.iter().chain(inodes).copied().chain(moved).collect();
            let (state, now) = self.settled_unless_lost(&ahead).await?;
            moved = state.moved_ahead_of(parents, inodes);
            if !state.is_ahead(&moved) {
                return Ok((state, now));
            }
        }
    }
}

impl State {
    /// Directories that were moved here and that this rename may depend on.
    fn moved_ahead_of(&self, parents: &[Fid; 2], inodes: &[Fid]) -> Vec<Fid> {
        let is_file = |fid: &Fid| {
            let attr = self.peek(*fid).and_then(|inode| inode.attr);
            attr.is_some_and(|attr| attr.kind != FileKind::Directory)
        };
        let stays = parents[0] == parents[1] || inodes.iter().all(is_file);
        if stays { Vec::new() } else { self.behind.log.moved_directories() }
    }
}

/// The kernel moves its entry from one name to the other, and with it the time for which it believes it: from now on both
/// names may be in its cache for as long as either could.
fn move_in_kernel(state: &mut State, now: Monotonic, from: (Fid, &Name), to: (Fid, &Name)) {
    let mut until = Monotonic::ZERO;
    for (dir, name) in [from, to] {
        if let Some(dir) = state.existing(dir).and_then(|inode| inode.dir.as_ref()) {
            until = until.max(dir.kernel_until(name));
        }
    }
    if until == Monotonic::ZERO {
        return;
    }
    for (dir, name) in [from, to] {
        if let Some(dir) = state.existing(dir).and_then(|inode| inode.dir.as_mut()) {
            dir.given_to_kernel(now, name, until);
        }
    }
}

/// What the two names are now.
fn outcomes(did: &Did, moved: Fid, other: Option<Fid>, how: RenameHow) -> [Option<Known>; 2] {
    // Two names of one inode stay as they are; and if the server found another inode than we knew, ask.
    if other == Some(moved) || did.node.is_none_or(|node| node.fid != moved) {
        return [None, None];
    }
    let kind_of = |fid: Fid| -> Option<FileKind> {
        let of = |(found, attr): &(Fid, Attr)| (*found == fid).then_some(attr.kind);
        did.others.iter().find_map(of)
    };
    let here = did.node.map(|node| Known::Present { fid: moved, kind: node.attr.kind });
    match how {
        RenameHow::Plain | RenameHow::NoReplace => [Some(Known::Absent), here],
        // The answer does not tell of the whiteout.
        RenameHow::Whiteout { .. } => [None, here],
        RenameHow::Exchange => {
            let there = other.and_then(|fid| Some(Known::Present { fid, kind: kind_of(fid)? }));
            [there, here]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CacheConfig, Consistency, WritePolicy};
    use crate::hooks::{Names, NoKernel};
    use crate::validity::Answers;
    use soda_types::{Ino, VolumeId};
    use std::sync::Arc;

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn held(state: &mut State, now: Monotonic, dir: Fid) -> Option<Names> {
        state.with_names(now, dir, |names| names.kernel_names(now, 9))
    }

    #[test]
    fn the_kernel_believes_both_names_for_as_long_as_either() {
        let (from, to) = (Fid::new(VolumeId(1), Ino(2)), Fid::new(VolumeId(1), Ino(3)));
        let (old, new) = (Name::try_from("old").unwrap(), Name::try_from("new").unwrap());
        let mut state = State::new(
            &CacheConfig::default(),
            Consistency::Lease,
            WritePolicy::Through,
            Arc::<Answers>::default(),
            Arc::new(NoKernel),
        );
        // What the kernel was never told, it does not move.
        state.with_names(at(1), from, |names| names.begin_change(at(1), &old));
        state.with_names(at(1), to, |names| names.begin_change(at(1), &new));
        move_in_kernel(&mut state, at(1), (from, &old), (to, &new));
        assert_eq!((held(&mut state, at(1), from), held(&mut state, at(1), to)), (None, None));

        state.with_names(at(1), from, |names| names.given_to_kernel(at(1), &old, at(9)));
        move_in_kernel(&mut state, at(1), (from, &old), (to, &new));
        assert_eq!(held(&mut state, at(5), from), Some(Names::These(vec![old.clone()])));
        assert_eq!(held(&mut state, at(5), to), Some(Names::These(vec![new.clone()])));
        assert_eq!(held(&mut state, at(20), to), None, "its time is over");

        // The replaced name's longer time does not become shorter.
        state.with_names(at(1), to, |names| names.given_to_kernel(at(1), &new, at(30)));
        move_in_kernel(&mut state, at(1), (from, &old), (to, &new));
        assert_eq!(held(&mut state, at(20), to), Some(Names::These(vec![new])));
        assert_eq!(held(&mut state, at(20), from), Some(Names::These(vec![old])));
    }
}
