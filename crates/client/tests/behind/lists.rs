//! Access lists: what is made in a directory with a default list, and what chmod makes of a list, without a message, and as the
//! server does it.

use super::*;
use std::collections::BTreeMap;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_lists_are_not_known_is_asked_about_once() {
    let cell = Cell::start();
    let (there, mut chance) = (cell.client().await, Chance(3));
    let top = mkdir(&there, there.root(), "shared").await;
    there.setxattr(top, DEFAULT, &chance.list(), SetXattr::Either, KillPriv::Keep).await.unwrap();
    there.shutdown().await;
    let here = writer(&cell).await;
    assert_eq!(find(&here, &["shared"]).await, Some(top));
    // The first change brings the lease.
    let mut made = 0;
    wait_until("a creation here", || {
        made += 1;
        let (here, before) = (Arc::clone(&here), sent(&here));
        async move {
            make(&here, top, &format!("before {made}"), "x").await;
            sent(&here) == before
        }
    })
    .await;
    assert_eq!(here.stats().count("msg_getxattrs"), 1);
    let before = sent(&here);
    for number in 0..20 {
        make(&here, top, &number.to_string(), "x").await;
    }
    assert_eq!((sent(&here), here.stats().count("msg_getxattrs")), (before, 1));
    let shown = here.listxattr(top).await.unwrap();
    assert!(
        shown.iter().any(|listed| &listed[..] == DEFAULT)
            && !shown.iter().any(|listed| &listed[..] == ACCESS)
    );
}
