//! A client that does things by itself under write leases and tells them in digests.

use super::{Client, n, new_node, node};
use bytes::Bytes;
use soda_oplog::world::{self, Tree};
use soda_protocol::digest::split_data;
use soda_protocol::{
    Answer, Call, Change, DigestSlots, Failure, Lsn, OpId, Place, Reclaim, ReclaimStep, Record, Reply,
};
use soda_server::RunningServer;
use soda_types::{Attr, Errno, Fid, FileKind, Grant, Ino, Sequence, SetAttr, Slot, Timestamp, Version};
use tokio::sync::oneshot;

/// The slot that digests have for themselves.
pub const DIGESTS: Slot = Slot(63);

/// A client that did something under its leases and tells it.
pub struct Teller {
    pub client: Client,
    /// Numbers that it may give to what it creates.
    pub numbers: std::ops::Range<u64>,
    pub sequence: u64,
    pub lsn: u64,
    /// Seconds; each change a second after the one before.
    pub clock: i64,
}

/// A digest as it was sent, to be sent again.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub sequence: u64,
    pub records: Vec<Record>,
    pub versions: Vec<(Fid, Version, Version)>,
    /// Of many that are under way together: the one before, and the slot of this one.
    pub after: Option<OpId>,
    pub slot: Option<Slot>,
    /// Of what it creates, that whose locks the client decides about.
    pub locks: Vec<Fid>,
}

impl Teller {
    /// With a write lease on the root, and numbers.
    pub async fn connect(server: &RunningServer) -> Teller {
        Teller::with(Client::connect(server).await).await
    }

    pub async fn with(client: Client) -> Teller {
        let (_, root) = root_lease(&client).await.expect("connected");
        let mut teller = Teller { client, numbers: 0..0, sequence: 0, lsn: 0, clock: root.ctime.secs() + 10 };
        teller.reserve(10_000).await;
        teller
    }

    pub async fn reserve(&mut self, inodes: u32) {
        match self.client.ask(Call::Reserve { inodes, bytes: 0 }).await.result {
            Ok(Answer::Reserved { first, count, bytes: 0, .. }) if count == inodes => {
                self.numbers = first.0..first.0 + u64::from(count);
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn new_fid(&mut self) -> Fid {
        Fid::new(self.client.root.volume, Ino(self.numbers.next().unwrap()))
    }

    pub fn place(&self, name: &str) -> Place {
        Place { directory: self.client.root, name: n(name) }
    }

    pub fn record(&mut self, change: Change) -> Record {
        self.lsn += 1;
        self.clock += 1;
        Record { lsn: Lsn(self.lsn), at: Timestamp::new(self.clock, 0), change }
    }

    /// A file in the root with something in it.
    pub fn file(&mut self, name: &str, data: &[u8]) -> (Fid, Vec<Record>) {
        self.file_in(self.client.root, name, data)
    }

    pub fn file_in(&mut self, directory: Fid, name: &str, data: &[u8]) -> (Fid, Vec<Record>) {
        let (fid, place) = (self.new_fid(), Place { directory, name: n(name) });
        let data = Bytes::copy_from_slice(data);
        let create = self.record(Change::Create { place, fid, new: new_node(FileKind::File) });
        let write = self.record(Change::Write { fid, offset: 0, data: data.into(), kill_suid_sgid: false });
        (fid, vec![create, write])
    }

    pub fn next(&mut self, records: Vec<Record>) -> Told {
        self.sequence += 1;
        Told { sequence: self.sequence, records, ..Told::default() }
    }

    /// Sends a digest, the first time or again.
    pub async fn send(&self, told: &Told) -> Reply {
        told.send(&self.client).await.expect("connected")
    }

    /// As [`Teller::next`], to be sent without waiting for the answer to the one before it.
    pub fn next_behind(&mut self, before: Option<&Told>, records: Vec<Record>) -> Told {
        let told = self.next(records);
        let slot = DigestSlots::of(64).unwrap().op(Sequence(told.sequence)).slot;
        Told { slot: Some(slot), after: before.map(Told::op), ..told }
    }

    pub async fn tell(&mut self, records: Vec<Record>) -> Reply {
        let told = self.next(records);
        self.send(&told).await
    }
}

impl Told {
    pub fn op(&self) -> OpId {
        OpId { slot: self.slot.unwrap_or(DIGESTS), sequence: Sequence(self.sequence) }
    }

    /// `None`: the server is gone.
    pub async fn send(&self, client: &Client) -> Option<Reply> {
        let (call, data) = self.call();
        Some(client.connection().call(Some(self.op()), call, data).await?.0)
    }

    /// With the data that goes beside it.
    fn call(&self) -> (Call, Bytes) {
        let (mut records, versions) = (self.records.clone(), self.versions.clone());
        let (data, beside) = split_data(&mut records);
        let locks = self.locks.clone();
        (Call::Digest { records, data, versions, after: self.after, locks }, beside.to_bytes())
    }

    /// Sends it and leaves the answer for later.
    pub async fn begin(&self, client: &Client) -> oneshot::Receiver<(Reply, Bytes)> {
        let (call, data) = self.call();
        client.connection().send(Some(self.op()), call, data).await.1
    }
}

/// So many clients that keep what they are asked for, each with a directory for itself.
pub async fn each_in_its_directory(server: &RunningServer, count: usize) -> Vec<(Teller, Fid)> {
    // Who makes them is gone before: nobody is asked for them, or they would be contended.
    let (maker, mut dirs) = (Client::connect(server).await, Vec::new());
    for number in 0..count {
        dirs.push(maker.mkdir(maker.root, &format!("d{number}")).await.unwrap());
    }
    maker.ask(Call::Goodbye).await.result.unwrap();
    let mut tellers = Vec::new();
    for dir in dirs {
        let client = Client::connect_keeping_recalls(server).await;
        let set = SetAttr { perm: Some(0o755), ..SetAttr::default() };
        client.change(Call::SetAttr { fid: dir.fid, set, owner: None }).await.result.unwrap();
        let clock = dir.attr.ctime.secs() + 10;
        let mut teller = Teller { client, numbers: 0..0, sequence: 0, lsn: 0, clock };
        teller.reserve(10).await;
        tellers.push((teller, dir.fid));
    }
    tellers
}

/// Who changes a directory gets the write lease. `None`: the server is gone.
pub async fn root_lease(client: &Client) -> Option<(Grant, Attr)> {
    let set = SetAttr { perm: Some(0o755), ..SetAttr::default() };
    let call = Call::SetAttr { fid: client.root, set, owner: None };
    let reply = client.connection().call(Some(client.next_op()), call, Bytes::new()).await?.0;
    let grant = *reply.grants.iter().find(|grant| grant.fid == client.root).expect("nobody else has it");
    Some((grant, node(reply).unwrap().attr))
}

/// Has leases of before a restart given again. `None`: the server is gone.
pub async fn reclaim(
    client: &Client,
    leases: Vec<(Grant, Version)>,
    open: Vec<Fid>,
    step: ReclaimStep,
) -> Option<Vec<Option<Grant>>> {
    let call = Call::Reclaim(Reclaim { leases, open, locks: vec![], step });
    match client.connection().call(None, call, Bytes::new()).await?.0.result {
        Ok(Answer::Reclaimed { leases: held, .. }) => Some(held),
        other => panic!("{other:?}"),
    }
}

/// Asserts that the server has this tree; what is in the root and has another name than those of histories is left out.
pub async fn assert_is(client: &Client, tree: &Tree, times: Times, what: &str) {
    for (fid, inode) in tree.inodes() {
        let attr = node(client.ask(Call::GetAttr { fid }).await)
            .unwrap_or_else(|error| panic!("{what}: {fid}: {error:?}"))
            .attr;
        assert_eq!(attr.kind, inode.kind, "{what}: {fid}");
        if let Times::From(start) = times {
            let shown = |time: Timestamp| match time.secs() {
                ..1 => time,
                secs => Timestamp::new(start + secs, 0),
            };
            if inode.ctime.secs() > 0 {
                assert_eq!(attr.ctime, shown(inode.ctime), "{what}: ctime of {fid}");
                assert_eq!(attr.mtime, shown(inode.mtime), "{what}: mtime of {fid}");
            }
        }
        if fid != client.root {
            assert_eq!((attr.perm, attr.gid), (inode.perm, inode.gid), "{what}: {fid}");
        }
        for (name, value) in &inode.xattrs {
            let found = client.ask(Call::GetXattr { fid, name: name.clone() }).await.result;
            assert_eq!(found, Ok(Answer::Xattr(value.to_vec())), "{what}: {fid}");
        }
        if inode.kind == FileKind::Directory {
            for number in 0..4 {
                let name = world::name(number);
                let expected = inode.names.get(&name).copied();
                let reply = client.ask(Call::Lookup { parent: fid, name: name.clone() }).await.result;
                match reply {
                    Ok(Answer::Found { node, .. }) => {
                        assert_eq!(node.map(|node| node.fid), expected, "{what}: {name:?} in {fid}");
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        } else {
            assert_eq!((attr.nlink, attr.size), (inode.links, inode.data.len() as u64), "{what}: {fid}");
            if inode.kind == FileKind::File {
                assert_eq!(client.read(fid, 0, 1 << 20).await.unwrap(), inode.data, "{what}: {fid}");
            }
        }
    }
}

/// Which times a tree is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// Those of its history, so many seconds later.
    From(i64),
    /// Of what cancelled out there is no trace.
    Ignored,
}

/// Numbers for histories, the same in every run (splitmix64).
pub fn dice(seed: u64, steps: usize) -> Vec<[u8; 5]> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    (0..steps).map(|_| std::array::from_fn(|at| next()[at])).collect()
}

pub fn digested(reply: &Reply) -> Vec<(Fid, Attr)> {
    match &reply.result {
        Ok(Answer::Digested { attrs }) => attrs.clone(),
        other => panic!("{other:?}"),
    }
}

/// Which record could not be, and why.
pub fn refused(reply: &Reply) -> (u64, Errno) {
    match &reply.result {
        Err(Failure::Digest { lsn, error }) => (lsn.0, error.errno),
        other => panic!("{other:?}"),
    }
}
