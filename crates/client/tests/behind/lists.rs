//! Access lists: set, removed, followed by chmod, and handed on to what is made, without a message, and as the server does it.

use super::*;
use crate::common::relay::{Relay, Way};
use soda_protocol::Call;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// A source of chance that is the same each time.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A valid list: owner, users, group, groups, mask, others.
    pub(super) fn list(&mut self) -> Vec<u8> {
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
pub(super) async fn shown(client: &Arc<Client>, fid: Fid) -> (u16, BTreeMap<Vec<u8>, Vec<u8>>) {
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

/// As `setfacl` does it.
async fn set(client: &Arc<Client>, fid: Fid, listed: &[u8], list: &[u8]) {
    client.setxattr(fid, listed, list, SetXattr::Either, KillPriv::Keep).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_lists_of_a_held_directory_cost_no_message() {
    let cell = Cell::start();
    let (here, there) = (writer(&cell).await, cell.client().await);
    let mut chance = Chance(11);
    let top = mkdir(&here, here.root(), "top").await;
    let before = (sent(&here), asked_for_lists(&here), here.stats().count("msg_digest"));
    let mut files = Vec::new();
    for number in 0..100 {
        let fid = match number % 10 {
            0 => mkdir(&here, top, &number.to_string()).await,
            _ => make(&here, top, &number.to_string(), "x").await,
        };
        set(&here, fid, ACCESS, &chance.list()).await;
        if number % 10 == 0 {
            set(&here, fid, DEFAULT, &chance.list()).await;
        }
        if number % 7 == 0 {
            // There may be none: it said no more than the permission bits.
            let removed = here.removexattr(fid, ACCESS).await.map_err(|error| error.errno);
            assert!(matches!(removed, Ok(()) | Err(Errno::NoData)), "{removed:?}");
        }
        files.push((fid, shown(&here, fid).await));
    }
    let after = (sent(&here), asked_for_lists(&here), here.stats().count("msg_digest"));
    assert_eq!(after, before, "{:?}", here.stats());
    assert_eq!(find(&there, &["top", "1"]).await, Some(files[1].0));
    for (fid, ours) in files {
        assert_eq!(shown(&there, fid).await, ours);
    }
    assert_eq!(here.stats().count("lost_records"), 0);
}

/// The lists of a file that others have made are asked for once; what is done to it then is done here.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_lists_are_not_known_is_asked_about_once() {
    let cell = Cell::start();
    let (here, there) = (writer(&cell).await, cell.client().await);
    let mut chance = Chance(5);
    let fid = make(&there, there.root(), "f", "x").await;
    let list = loop {
        set(&there, fid, ACCESS, &chance.list()).await;
        if let Some(list) = shown(&there, fid).await.1.remove(ACCESS) {
            break list;
        }
    };
    let chmod = |perm| here.setattr(fid, SetAttr { perm: Some(perm), ..SetAttr::default() });
    assert_eq!(find(&here, &["f"]).await, Some(fid));
    let asked = asked_for_lists(&here);
    wait_until("a change here", || async {
        let before = sent(&here);
        chmod(0o640).await.unwrap();
        sent(&here) == before
    })
    .await;
    let before = sent(&here);
    for _ in 0..10 {
        chmod(0o604).await.unwrap();
        set(&here, fid, ACCESS, &list).await;
        here.removexattr(fid, ACCESS).await.unwrap();
        set(&here, fid, ACCESS, &list).await;
    }
    assert_eq!((sent(&here), asked_for_lists(&here)), (before, asked + 1), "{:?}", here.stats());
    let ours = shown(&here, fid).await;
    assert_eq!(ours.1.get(ACCESS), Some(&list));
    assert_eq!(shown(&there, fid).await, ours);
}

/// What was made in a directory that is gone by the time when the server is told: the directory's list, group and set-group-id
/// have been handed on.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_inherited_from_a_directory_that_is_gone_stays() {
    let cell = Cell::start();
    let (here, there) = (writer(&cell).await, cell.client().await);
    let list = [&2u32.to_le_bytes()[..], &LIST_OF_ONE_USER.concat()].concat();
    let before = sent(&here);
    let dir = mkdir(&here, here.root(), "passing").await;
    let handed_on = SetAttr { perm: Some(0o2775), gid: Some(7), ..SetAttr::default() };
    here.setattr(dir, handed_on).await.unwrap();
    make(&here, dir, "before", "x").await;
    set(&here, dir, DEFAULT, &list).await;
    make(&here, dir, "after", "x").await;
    here.removexattr(dir, DEFAULT).await.unwrap();
    make(&here, dir, "last", "x").await;
    let mut ours = Vec::new();
    for text in ["before", "after", "last"] {
        here.rename(dir, &name(text), here.root(), &name(text), RenameHow::Plain).await.unwrap();
        let fid = find(&here, &[text]).await.unwrap();
        let attr = here.getattr(fid).await.unwrap().value;
        ours.push((text, attr.gid, shown(&here, fid).await));
    }
    here.rmdir(here.root(), &name("passing")).await.unwrap();
    assert_eq!(sent(&here), before, "{:?}", here.stats());
    assert!(ours.iter().all(|(_, gid, _)| *gid == 7), "{ours:?}");
    let lists: Vec<usize> = ours.iter().map(|(_, _, (_, lists))| lists.len()).collect();
    assert_eq!(lists, [0, 1, 0]);
    for (text, gid, ours) in ours {
        let fid = find(&there, &[text]).await.unwrap();
        assert_eq!(there.getattr(fid).await.unwrap().value.gid, gid, "{text}");
        assert_eq!(shown(&there, fid).await, ours, "{text}");
    }
}

/// Owner, user 1000, group, mask, others.
const LIST_OF_ONE_USER: [[u8; 8]; 5] = [
    [1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff],
    [2, 0, 6, 0, 0xe8, 3, 0, 0],
    [4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff],
    [0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff],
    [0x20, 0, 1, 0, 0xff, 0xff, 0xff, 0xff],
];

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
