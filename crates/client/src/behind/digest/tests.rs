use super::*;
use crate::cache::plain_attr;
use crate::config::{CacheConfig, Consistency, WriteBehind};
use crate::hooks::NoKernel;
use soda_types::{Grant, Ino, Mode, Scope, SessionId, Term, Timestamp, VolumeId};

const MIB: u64 = 1 << 20;
const FAR: Duration = Duration::from_millis(20);

fn file() -> Fid {
    Fid::new(VolumeId(1), Ino(7))
}

fn attr(version: u64) -> Attr {
    Attr { version: Version(version), ..plain_attr(file()) }
}

/// A client far from its server, so that digests go behind one another, with a file that it holds.
fn holder() -> State {
    let (policy, now) = (WritePolicy::Behind(WriteBehind::default()), Monotonic::ZERO);
    let cache = CacheConfig::default();
    let mut state = State::new(&cache, Consistency::Lease, policy, Arc::default(), Arc::new(NoKernel));
    state.holder.start_session(now, now, SessionId(7), Duration::from_secs(30));
    let ticket = state.holder.begin_request(now);
    let (mode, term) = (Mode::Write, Term::Session);
    let grant = Grant { fid: file(), scope: Scope::Node, mode, epoch: Epoch(1), term };
    state.holder.handle_reply(now, ticket, &[grant]);
    let inode = state.inode(file());
    (inode.attr, inode.told) = (Some(attr(1)), Version(1));
    state.behind.window.begin_session(8);
    state.behind.window.begin_connection(FAR);
    state
}

fn write(state: &mut State, offset: u64) {
    let data = vec![0; MIB as usize].into();
    let change = Change::Write { fid: file(), offset, data, kill_suid_sgid: false };
    let moment = state.moment(Timestamp::new(1, 0), &[]);
    state.log_change(Monotonic::ZERO, moment, change);
}

#[test]
fn of_digests_behind_one_another_the_later_finds_what_the_earlier_leaves() {
    let now = Monotonic::ZERO + Duration::from_secs(10);
    let mut state = holder();
    (0..3).for_each(|block| write(&mut state, block * MIB));
    let ids = [(); 2].map(|()| state.next_digest(now).unwrap().digest.id);
    state.digest_applied(now, now, ids[0], &[(file(), attr(2))]);
    state.restore_log(now, ids[0]);
    assert_eq!(state.inode(file()).told, Version(2), "a restarted server has the first, and is told so");
}
