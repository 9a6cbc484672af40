//! Access lists: what is made in a directory with a default list, and what chmod makes of a list, without a message, and as the
//! server does it.

use super::*;
use crate::common::relay::{Relay, Way};
use soda_protocol::Call;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A source of chance that is the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A valid list: owner, users, group, groups, mask, others.
    fn list(&mut self) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        let mut entry = |tag: u16, perm: u64, id: u32| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(perm as u16).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        let (users, groups) = (self.below(3), self.below(3));
        entry(0x01, self.below(8), u32::MAX);
        (0..users).for_each(|user| entry(0x02, self.below(8), 1000 + user as u32));
        entry(0x04, self.below(8), u32::MAX);
        (0..groups).for_each(|group| entry(0x08, self.below(8), 1000 + group as u32));
        if users + groups > 0 || self.below(2) == 0 {
            entry(0x10, self.below(8), u32::MAX);
        }
        entry(0x20, self.below(8), u32::MAX);
        bytes
    }
}

/// Permissions and extended attributes.
async fn shown(client: &Arc<Client>, fid: Fid) -> (u16, BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut xattrs = BTreeMap::new();
    for listed in client.listxattr(fid).await.unwrap() {
        xattrs.insert(listed.to_vec(), client.getxattr(fid, &listed).await.unwrap().to_vec());
    }
    (client.getattr(fid).await.unwrap().value.perm, xattrs)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_default_list_hands_on_is_what_the_server_would_hand_on() {
    let cell = Cell::start();
    let (here, there) = (writer(&cell).await, cell.client().await);
    let mut chance = Chance(7);
    for round in 0..60 {
        let list = chance.list();
        let mut tops = Vec::new();
        for (client, text) in [(&here, "here"), (&there, "there")] {
            let top = mkdir(client, client.root(), &format!("{text} {round}")).await;
            client.setxattr(top, DEFAULT, &list, SetXattr::Either, KillPriv::Keep).await.unwrap();
            tops.push(top);
        }
        // Something new, the same for both; in what was made before, too.
        let mut made: Vec<(Fid, Fid)> = vec![(tops[0], tops[1])];
        let before = sent(&here);
        for number in 0..4 {
            let parents = made[chance.below(made.len() as u64) as usize];
            let kinds = [FileKind::Directory, FileKind::File, FileKind::Fifo];
            let kind = kinds[chance.below(3) as usize];
            let new = NewNode {
                perm: chance.below(0o10000) as u16,
                umask: chance.below(0o1000) as u16,
                ..new_node(kind)
            };
            let text = name(&number.to_string());
            let ours = here.create(parents.0, &text, new.clone()).await.unwrap().node.unwrap();
            let theirs = there.create(parents.1, &text, new).await.unwrap().node.unwrap();
            assert_eq!(ours.attr.perm, theirs.attr.perm, "{round}/{number}: {list:?}");
            assert_eq!(ours.xattrs, theirs.xattrs, "{round}/{number}: {list:?}");
            if chance.below(2) == 0 {
                let set = SetAttr { perm: Some(chance.below(0o10000) as u16), ..SetAttr::default() };
                here.setattr(ours.fid, set).await.unwrap();
                there.setattr(theirs.fid, set).await.unwrap();
            }
            if kind == FileKind::Directory {
                made.push((ours.fid, theirs.fid));
            }
            let seen = shown(&there, theirs.fid).await;
            assert_eq!(shown(&here, ours.fid).await, seen, "before it is told: {round}/{number}: {list:?}");
            if number == 3 {
                assert_eq!(sent(&here), before, "{:?}", here.stats());
                here.sync_all().await.unwrap();
            }
        }
        let (ours, theirs) = made[made.len() - 1];
        assert_eq!(shown(&there, ours).await, shown(&there, theirs).await, "the server's: {round}: {list:?}");
    }
}

/// A directory with a default list, by a client that is gone.
async fn with_default_list(cell: &Cell) -> Fid {
    let (there, mut chance) = (cell.client().await, Chance(3));
    let top = mkdir(&there, there.root(), "shared").await;
    there.setxattr(top, DEFAULT, &chance.list(), SetXattr::Either, KillPriv::Keep).await.unwrap();
    there.shutdown().await;
    top
}

fn asked_for_lists(client: &Client) -> u64 {
    client.stats().count("msg_getxattrs")
}

/// Something is made in the directory, again and again, until that is done here. The first change brings the lease.
async fn until_made_here(here: &Arc<Client>, top: Fid) {
    let mut made = 0;
    wait_until("a creation here", || {
        made += 1;
        let (here, before) = (Arc::clone(here), sent(here));
        async move {
            make(&here, top, &format!("before {made}"), "x").await;
            sent(&here) == before
        }
    })
    .await;
}

/// Nothing is asked for what is made from now on.
async fn lists_are_known(here: &Arc<Client>, top: Fid) {
    let before = (sent(here), asked_for_lists(here));
    for number in 0..20 {
        make(here, top, &number.to_string(), "x").await;
    }
    assert_eq!((sent(here), asked_for_lists(here)), before);
    let shown = here.listxattr(top).await.unwrap();
    assert!(
        shown.iter().any(|listed| &listed[..] == DEFAULT)
            && !shown.iter().any(|listed| &listed[..] == ACCESS)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_lists_are_not_known_is_asked_about_once() {
    let cell = Cell::start();
    let top = with_default_list(&cell).await;
    let here = writer(&cell).await;
    // Of the root, if its attributes, which tell that there are none, came after the second thing that was made in it.
    let before = asked_for_lists(&here);
    assert_eq!(find(&here, &["shared"]).await, Some(top));
    until_made_here(&here, top).await;
    assert_eq!(asked_for_lists(&here) - before, 1);
    lists_are_known(&here, top).await;
}

/// On a busy machine, say: then the root's lists are asked for, once, and those of another directory once all the same.
#[tokio::test(flavor = "multi_thread")]
async fn lists_are_asked_for_while_the_attributes_that_tell_of_them_are_on_their_way() {
    let cell = Cell::start();
    let top = with_default_list(&cell).await;
    let asked = Arc::new(AtomicBool::new(false));
    let look = {
        let asked = Arc::clone(&asked);
        move |call: &Call| match call {
            Call::GetAttr { .. } if !asked.load(Ordering::Relaxed) => Way::Waits,
            Call::GetXattrs { .. } => {
                asked.store(true, Ordering::Relaxed);
                Way::Passes
            }
            _ => Way::Passes,
        }
    };
    let relay = Relay::before(cell.addr, look).await;
    let addr = relay.addr;
    let letting_go = tokio::spawn(async move {
        eventually("a question about lists", || asked.load(Ordering::Relaxed)).await;
        relay.let_go();
    });
    let here = writer_at(&cell, addr).await;
    letting_go.await.unwrap();
    assert_eq!(asked_for_lists(&here), 1, "of the root");
    assert_eq!(find(&here, &["shared"]).await, Some(top));
    until_made_here(&here, top).await;
    assert_eq!(asked_for_lists(&here), 2);
    lists_are_known(&here, top).await;
}

/// As long as the names of the directory are not known what is made in it goes through.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_at_the_server_does_not_have_the_lists_forgotten() {
    let cell = Cell::start();
    let top = with_default_list(&cell).await;
    let look = move |call: &Call| match call {
        Call::ReadDir { dir, .. } if *dir == top => Way::Waits,
        _ => Way::Passes,
    };
    let relay = Relay::before(cell.addr, look).await;
    let here = writer_at(&cell, relay.addr).await;
    let before = asked_for_lists(&here);
    for number in 0..10 {
        let told = here.stats().count("msg_create");
        make(&here, top, &format!("through {number}"), "x").await;
        assert_eq!(here.stats().count("msg_create"), told + 1, "{:?}", here.stats());
    }
    assert_eq!(asked_for_lists(&here) - before, 1);
    wait_until("all names", || {
        relay.let_go();
        let (here, before) = (Arc::clone(&here), sent(&here));
        async move {
            mkdir(&here, top, &format!("directory {before}")).await;
            sent(&here) == before
        }
    })
    .await;
    assert_eq!(asked_for_lists(&here) - before, 1);
    lists_are_known(&here, top).await;
}
