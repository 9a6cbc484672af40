//! Access lists and all that has to do with them, in random order: by a client that tells later and by one that asks the server
//! each time. Both see the same after each step, and the same results; in the end everybody does.

use super::lists::{ACCESS, Chance, DEFAULT, shown};
use super::*;
use bytes::Bytes;

/// One thing, made by both.
#[derive(Clone, Copy, Debug)]
struct Twins {
    here: Fid,
    there: Fid,
    kind: FileKind,
}

#[derive(Clone, Debug)]
enum Step {
    Make(NewNode),
    SetXattr(Vec<u8>, Vec<u8>, SetXattr, KillPriv, Option<u32>),
    RemoveXattr(Vec<u8>, Option<u32>),
    SetAttr(SetAttr),
    Write(KillPriv),
}

fn kill(chance: &mut Chance) -> KillPriv {
    if chance.below(2) == 0 { KillPriv::Keep } else { KillPriv::Kill }
}

fn owner(chance: &mut Chance) -> Option<u32> {
    [None, Some(0), Some(1)][chance.below(3) as usize]
}

/// Of an access list, a default one, or an ordinary attribute; some are not valid, some too long.
fn xattr(chance: &mut Chance) -> (Vec<u8>, Vec<u8>) {
    let listed = match chance.below(5) {
        0 | 1 => ACCESS,
        2 | 3 => DEFAULT,
        _ => return (b"user.large".to_vec(), vec![7; [1, 4096, 65_536, 65_537][chance.below(4) as usize]]),
    };
    let list = match chance.below(12) {
        0 => 2u32.to_le_bytes().to_vec(),
        1 => chance.list()[..20].to_vec(),
        2 => b"no list".to_vec(),
        _ => chance.list(),
    };
    (listed.to_vec(), list)
}

fn step(chance: &mut Chance, kind: FileKind) -> Step {
    let hows = [SetXattr::Either, SetXattr::Either, SetXattr::Create, SetXattr::Replace];
    match chance.below(12) {
        0..=2 if kind == FileKind::Directory => {
            let kinds = [FileKind::Directory, FileKind::File, FileKind::Fifo, FileKind::Symlink];
            let kind = kinds[chance.below(4) as usize];
            let target = if kind == FileKind::Symlink { b"target".to_vec() } else { Vec::new() };
            let (perm, umask) = (chance.below(0o10000) as u16, chance.below(0o1000) as u16);
            Step::Make(NewNode { perm, umask, target, ..new_node(kind) })
        }
        3..=5 => {
            let (listed, list) = xattr(chance);
            Step::SetXattr(listed, list, hows[chance.below(4) as usize], kill(chance), owner(chance))
        }
        6 => Step::RemoveXattr([ACCESS, DEFAULT][chance.below(2) as usize].to_vec(), owner(chance)),
        7 | 8 => {
            let perm = Some(chance.below(0o10000) as u16);
            Step::SetAttr(SetAttr { perm, ..SetAttr::default() })
        }
        9 => {
            let (uid, gid) = (Some(chance.below(2) as u32), Some(chance.below(2) as u32));
            let kill_suid_sgid = chance.below(2) == 0;
            Step::SetAttr(SetAttr { uid, gid, kill_suid_sgid, ..SetAttr::default() })
        }
        10 if kind == FileKind::File => {
            let kill_suid_sgid = chance.below(2) == 0;
            Step::SetAttr(SetAttr { size: Some(chance.below(9)), kill_suid_sgid, ..SetAttr::default() })
        }
        _ if kind == FileKind::File => Step::Write(kill(chance)),
        _ => Step::SetAttr(SetAttr { perm: Some(0o2775), ..SetAttr::default() }),
    }
}

async fn done(client: &Arc<Client>, fid: Fid, step: &Step, text: &str) -> Result<Option<Fid>, Errno> {
    let done = match step {
        Step::Make(new) => {
            let made = client.create(fid, &name(text), new.clone()).await;
            made.map(|entry| entry.node.map(|node| node.fid))
        }
        Step::SetXattr(listed, list, how, kill, owner) => {
            client.setxattr_if(fid, (listed, list), *how, *kill, *owner).await.map(|()| None)
        }
        Step::RemoveXattr(listed, owner) => client.removexattr_if(fid, listed, *owner).await.map(|()| None),
        Step::SetAttr(set) => client.setattr(fid, *set).await.map(|_| None),
        Step::Write(kill) => {
            let file = client.open(fid, OpenMode::ReadWrite).await.unwrap();
            client.write(&file, WriteAt::Offset(3), Bytes::from_static(b"data"), *kill).await.map(|_| None)
        }
    };
    done.map_err(|error| error.errno)
}

/// Owners, size, permissions and attributes.
async fn all_of(client: &Arc<Client>, fid: Fid) -> impl PartialEq + std::fmt::Debug + use<> {
    let attr = client.getattr(fid).await.unwrap().value;
    ((attr.uid, attr.gid, attr.size), shown(client, fid).await)
}

// SEMANTICS 31, 32
#[tokio::test(flavor = "multi_thread")]
async fn the_same_steps_told_later_and_at_once_lead_to_the_same() {
    let cell = Cell::start();
    let (here, there, third) = (writer(&cell).await, cell.client().await, cell.client().await);
    for seed in 0..6 {
        let mut chance = Chance(seed);
        let tops =
            [(&here, "here"), (&there, "there")].map(|(client, text)| (client, format!("{text}{seed}")));
        let top = Twins {
            here: mkdir(&here, here.root(), &tops[0].1).await,
            there: mkdir(&there, there.root(), &tops[1].1).await,
            kind: FileKind::Directory,
        };
        let mut all = vec![top];
        let before = sent(&here);
        for number in 0..150 {
            let one = all[chance.below(all.len() as u64) as usize];
            let step = step(&mut chance, one.kind);
            let text = number.to_string();
            let ours = done(&here, one.here, &step, &text).await;
            let theirs = done(&there, one.there, &step, &text).await;
            let what = format!("seed {seed}, step {number}: {:?}: {step:02x?}", one.kind);
            match (ours, theirs) {
                (Ok(Some(made)), Ok(Some(theirs))) => {
                    let Step::Make(new) = &step else { panic!("{what}") };
                    let made = Twins { here: made, there: theirs, kind: new.kind };
                    all.push(made);
                    assert_eq!(all_of(&here, made.here).await, all_of(&there, made.there).await, "{what}");
                }
                (ours, theirs) => assert_eq!(ours, theirs, "{what}"),
            }
            assert_eq!(all_of(&here, one.here).await, all_of(&there, one.there).await, "{what}");
            if chance.below(40) == 0 {
                here.sync_all().await.unwrap();
            }
        }
        assert_eq!(sent(&here), before, "seed {seed}: {:?}", here.stats());
        // What was made here nobody knows before somebody has asked for its name.
        assert_eq!(find(&third, &[&tops[0].1]).await, Some(top.here));
        for one in all {
            let ours = all_of(&third, one.here).await;
            assert_eq!(ours, all_of(&third, one.there).await, "seed {seed}: {one:?}");
            assert_eq!(ours, all_of(&here, one.here).await, "seed {seed}: {one:?}");
        }
    }
    assert_eq!(here.stats().count("lost_records"), 0);
}
