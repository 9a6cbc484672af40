//! The server's process dies at every crash point that digests pass, several of them under way. Its client, which has gone on
//! with what it did by itself, tells it again: all of it is there once, and fsck finds nothing.

use crate::common::dying::*;
use crate::common::teller::*;
use crate::common::*;
use bytes::Bytes;
use soda_oplog::coalesce;
use soda_oplog::world::{self, Tree};
use soda_protocol::{
    Answer, Call, Change, DigestSlots, Lsn, Object, Place, ReclaimStep, Record, SessionKey, Standing,
};
use soda_storage::crash;
use soda_types::{Fid, FileKind, Grant, Ino, Sequence, Version};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;

const HISTORIES: [&str; 5] = ["server.digest", "server.reserved", "volume.", "meta.commit", "segment."];
/// Digests without an answer.
const AT_ONCE: usize = 3;
/// Passed only by others, or in the background.
const NOT_BY_DIGESTS: &[&str] = &[
    "volume.sync.data-done",
    "segment.punched",
    "segment.deleted",
    "volume.release.punched",
    "volume.release.recorded",
    "volume.reclaim.step",
    "volume.reclaim.done",
    "volume.swept",
    "volume.redone",
    "volume.created",
    "volume.run-begun",
    "segment.created",
];

/// What the client has, whatever becomes of the server.
struct Life {
    seed: u64,
    key: Option<SessionKey>,
    leases: BTreeMap<Fid, (Grant, Version)>,
    /// Without a name.
    open: BTreeSet<Fid>,
    plan: Option<Plan>,
    told: usize,
}

struct Plan {
    digests: Vec<Told>,
    tree: Tree,
    large: Vec<Fid>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_is_applied_once_whenever_the_server_dies() {
    let points = crash::ALL.iter().copied();
    let points = points.filter(|point| HISTORIES.iter().any(|prefix| point.starts_with(prefix)));
    let points = points.filter(|point| !NOT_BY_DIGESTS.contains(point));
    for (seed, point) in (0..).zip(points) {
        for nth in [1, 6] {
            let dir = tempfile::tempdir().unwrap();
            let what = format!("{point}:{nth}");
            let mut life =
                Life { seed, key: None, leases: BTreeMap::new(), open: BTreeSet::new(), plan: None, told: 0 };
            let (mut child, mut output) = spawn(dir.path(), &what);
            if let Some(address) = address(&mut output) {
                let _ = life.go_on(address).await;
            }
            drop(child.stdin.take());
            let status = child.wait().unwrap();
            assert!(status.success() || status.signal() == Some(6), "{what}: {status}");
            assert!(!status.success() || nth > 1, "{what}: never passed");

            let server = start_again(&short(dir.path()));
            let client = life.go_on(server.local_addr()).await.unwrap();
            let Plan { tree, large, .. } = life.plan.as_ref().unwrap();
            assert_is(&client, tree, Times::Ignored, &what).await;
            for fid in large {
                let len = len_of(*fid);
                assert_eq!(client.read(*fid, 0, 1 << 20).await.unwrap(), LARGE[..len], "{what}");
            }
            drop(client);
            server.shutdown().await;
            check_stores(dir.path(), &what);
        }
    }
}

static LARGE: [u8; 200_000] = [3; 200_000];

/// By turns so little that it goes into the journal, and so much that it waits for the medium.
fn len_of(large: Fid) -> usize {
    if large.ino.0.is_multiple_of(2) { LARGE.len() } else { LARGE.len() / 4 }
}

impl Life {
    /// Does what is left to do. `None`: the server is gone.
    async fn go_on(&mut self, address: SocketAddr) -> Option<Client> {
        let connecting = tokio::spawn(Client::connect_with(address, self.key, Recalls::Answer));
        let client = connecting.await.ok()?.unwrap();
        self.key = Some(client.key());
        if client.session.standing == Standing::Reclaim {
            // What it was told last: what came after that it does again.
            let leases = self.leases.values().copied().collect();
            // What lost its last name just before the server died is open here, too.
            let open = self.open.iter().copied().chain(self.in_doubt()).collect::<BTreeSet<Fid>>();
            let held = reclaim(&client, leases, open.into_iter().collect(), ReclaimStep::Last).await?;
            for (fid, held) in self.leases.keys().zip(held) {
                // What it has removed may be removed, if only the answer was lost.
                assert!(held.is_some() || self.is_in_doubt(*fid), "{fid}");
            }
        }
        if let Entry::Vacant(place) = self.leases.entry(client.root) {
            let (grant, attr) = root_lease(&client).await?;
            place.insert((grant, attr.version));
        }
        if self.plan.is_none() {
            let call = Call::Reserve { inodes: 1000, bytes: 4 << 20 };
            let reply = client.connection().call(None, call, Bytes::new()).await?.0;
            let Ok(Answer::Reserved { first, count: 1000, .. }) = reply.result else { panic!("{reply:?}") };
            self.plan = Some(plan(self.seed, client.root, first));
        }
        let (mut next, mut answers) = (self.told, VecDeque::new());
        loop {
            while let Some(told) = self.plan.as_ref()?.digests.get(next).filter(|_| answers.len() < AT_ONCE) {
                answers.push_back(told.begin(&client).await);
                next += 1;
            }
            let Some(answer) = answers.pop_front() else { break };
            let reply = answer.await.ok()?.0;
            let told = self.plan.as_ref()?.digests.get(self.told)?;
            for (fid, attr) in digested(&reply) {
                if let Some((_, version)) = self.leases.get_mut(&fid) {
                    *version = attr.version;
                }
                if attr.nlink == 0 {
                    self.open.insert(fid);
                }
            }
            let exist: Vec<Fid> = digested(&reply).into_iter().map(|(fid, _)| fid).collect();
            let touched = told.records.iter().flat_map(|record| record.change.touches());
            for (object, _) in touched {
                if let Object::Inode(fid) = object
                    && !exist.contains(&fid)
                {
                    self.leases.remove(&fid);
                    self.open.remove(&fid);
                }
            }
            for grant in &reply.grants {
                let version = digested(&reply).iter().find(|(fid, _)| *fid == grant.fid).unwrap().1.version;
                self.leases.insert(grant.fid, (*grant, version));
            }
            self.told += 1;
        }
        Some(client)
    }

    fn is_in_doubt(&self, fid: Fid) -> bool {
        self.in_doubt().any(|touched| touched == fid)
    }

    /// What digests touch that have no answer.
    fn in_doubt(&self) -> impl Iterator<Item = Fid> {
        let told = self.plan.iter().flat_map(|plan| plan.digests.iter().skip(self.told).take(AT_ONCE));
        let touched = told.flat_map(|told| &told.records).flat_map(|record| record.change.touches());
        touched.filter_map(|(object, _)| match object {
            Object::Inode(fid) => Some(fid),
            Object::Name(..) | Object::Tree => None,
        })
    }
}

fn plan(seed: u64, root: Fid, first: Ino) -> Plan {
    let (history, tree) = world::history_from(first.0 + 100, &dice(seed, 200));
    let mut large = Vec::new();
    let digests = history.chunks(20).zip(0u64..).map(|(records, index)| {
        let fid = Fid::new(root.volume, Ino(first.0 + index));
        large.push(fid);
        let mut records = records.to_vec();
        let place = Place { directory: root, name: n(&format!("large{index}")) };
        let mut add = |change| {
            let last = records.last().unwrap();
            records.push(Record { lsn: Lsn(last.lsn.0 + 1_000_000), at: last.at, change });
        };
        add(Change::Create { place, fid, new: new_node(FileKind::File) });
        let data = Bytes::from_static(&LARGE[..len_of(fid)]);
        add(Change::Write { fid, offset: 0, data: data.into(), kill_suid_sgid: false });
        let slots = DigestSlots::of(64).unwrap();
        let after = (index > 0).then(|| slots.op(Sequence(index)));
        let slot = Some(slots.op(Sequence(index + 1)).slot);
        Told { sequence: index + 1, records: coalesce(records), after, slot, ..Told::default() }
    });
    let digests = digests.collect();
    Plan { digests, tree, large }
}
