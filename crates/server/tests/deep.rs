//! Deep leases over the wire: what the server says of them, and what it asks of their holders when names move, are linked, and
//! after a restart. The rules themselves are tested with the lease table.

use crate::common::teller::{Teller, digested};
use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Change, Covered, Fate, HoleInfo, LeaseWait, Moved, ObjectRef,
    Place, Reclaim, ReclaimStep, Rename, Reply, Role, Unlink, WriteAt,
};
use soda_server::{DeepLeases, RunningServer, Server};
use soda_types::{Fid, FileKind, Grant, InUse, LeasePart, Mode, Recall, Scope, SetAttr};
use std::path::Path;

fn start_deep(dir: &Path) -> RunningServer {
    Server::start(soda_server::ServerConfig { deep_leases: DeepLeases::DEFAULT_ON, ..config(dir) }).unwrap()
}

async fn connect(server: &RunningServer) -> Client {
    let role = match control(None) {
        Role::Control { client, name, volume, resume, lease_term, .. } => Role::Control {
            client,
            name,
            volume,
            resume,
            lease_term,
            widest_lease: Scope::Subtree,
            lease_wait: LeaseWait::Notified,
        },
        other => other,
    };
    Client::connect_as(server.local_addr(), role, Recalls::Answer).await.unwrap()
}

fn deep(reply: &Reply) -> Vec<Grant> {
    reply.grants.iter().filter(|grant| grant.scope == Scope::Subtree).copied().collect()
}

/// What the reply says that is covered.
fn covered(reply: &Reply, fid: Fid) -> Option<Mode> {
    let mut all = reply.covered.iter().flat_map(|covered| covered.each());
    all.find(|covered| covered.fid == fid).map(|covered| covered.mode)
}

async fn mkdir(client: &Client, parent: Fid, name: &str) -> (Fid, Reply) {
    let reply = client.change(create(parent, name, FileKind::Directory)).await;
    (node(reply.clone()).unwrap().fid, reply)
}

async fn getattr(client: &Client, fid: Fid) -> Reply {
    client.ask(Call::GetAttr { fid }).await
}

async fn rename(client: &Client, from: (Fid, &str), to: (Fid, &str)) -> Reply {
    let how = Rename::Plain { in_use: InUse::No };
    let (parent, name, new_parent, new_name) = (from.0, n(from.1), to.0, n(to.1));
    client.change(Call::Rename { parent, name, new_parent, new_name, how }).await
}

async fn touch(client: &Client, fid: Fid) -> Reply {
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    client.change(Call::SetAttr { fid, set, owner: None }).await
}

/// What is asked of the client until it has been asked for an object, which it answers by itself.
async fn asked_for(client: &Client, fid: Fid) -> Recall {
    loop {
        let recall = client.next_recall().await;
        if recall.asked() == fid {
            return recall;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_directory_is_its_makers_with_all_that_comes_into_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let (maker, other) = (connect(&server).await, connect(&server).await);
    let (home, reply) = mkdir(&maker, maker.root, "home").await;
    assert_eq!(
        deep(&reply).iter().map(|grant| (grant.fid, grant.mode)).collect::<Vec<_>>(),
        [(home, Mode::Write)]
    );
    assert_eq!(covered(&reply, home), Some(Mode::Write));
    let (inner, reply) = mkdir(&maker, home, "inner").await;
    assert_eq!((reply.grants.len(), covered(&reply, inner)), (0, Some(Mode::Write)));
    let reply = maker.change(create(inner, "file", FileKind::File)).await;
    let file = node(reply.clone()).unwrap().fid;
    assert_eq!((reply.grants.len(), covered(&reply, file)), (0, Some(Mode::Write)));
    let above = |group: &&Covered| group.fids.contains(&file);
    assert_eq!(reply.covered.iter().find(above).unwrap().above, [inner, home]);

    // One object is asked for, the rest stays.
    node(touch(&other, file).await).unwrap();
    let recall = asked_for(&maker, file).await;
    assert_eq!((recall.fid, recall.part, recall.to), (home, Some(LeasePart::object(file)), None));
    let reply = touch(&maker, inner).await;
    assert_eq!((reply.grants.len(), covered(&reply, inner)), (0, Some(Mode::Write)));

    // Who does not take deep leases gets none.
    let plain = Client::connect(&server).await;
    let (_, reply) = mkdir(&plain, plain.root, "plain").await;
    assert!(deep(&reply).is_empty() && reply.covered.is_empty() && !reply.grants.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_which_deep_lease_has_a_hole_where() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let (maker, other) = (connect(&server).await, connect(&server).await);
    let (home, _) = mkdir(&maker, maker.root, "home").await;
    let (inner, _) = mkdir(&maker, home, "inner").await;
    let [shared, read, own] = [
        maker.create(inner, "shared").await.unwrap().fid,
        maker.create(inner, "read").await.unwrap().fid,
        maker.create(inner, "own").await.unwrap().fid,
    ];
    node(touch(&other, shared).await).unwrap();
    node(getattr(&other, read).await).unwrap();
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let why = async |fid: Fid| {
        let call = Call::Admin(AdminCall::Why(ObjectRef::Fid(fid)));
        match admin.call(None, call, Bytes::new()).await.unwrap().0.result {
            Ok(Answer::Admin(AdminAnswer::Why(why))) => why,
            answer => panic!("{answer:?}"),
        }
    };
    let hole = |kept| HoleInfo {
        session: maker.key().session,
        holder: "test:/mnt".into(),
        root: home,
        path: Some("/home".into()),
        mode: Mode::Write,
        kept,
    };
    assert_eq!(why(shared).await.holes, [hole(None)]);
    assert_eq!(why(read).await.holes, [hole(Some(Mode::Read))]);
    assert_eq!((why(own).await.holes, why(inner).await.holes), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_costs_a_lease_for_each_subtree() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let home = {
        let maker = Client::connect(&server).await;
        let home = maker.mkdir(maker.root, "home").await.unwrap().fid;
        for number in 0..200 {
            maker.create(home, &format!("f{number}")).await.unwrap();
        }
        maker.ask(Call::Goodbye).await;
        home
    };
    let reader = connect(&server).await;
    let reply = reader.ask(Call::ReadDir { dir: home, after: None, limit: 1000, next: Vec::new() }).await;
    let Ok(Answer::Entries(page, _)) = &reply.result else { panic!("{reply:?}") };
    assert_eq!(page.entries.len(), 200);
    assert_eq!(deep(&reply).iter().map(|grant| grant.mode).collect::<Vec<_>>(), [Mode::Read]);
    assert!(reply.grants.len() < 25, "{} leases", reply.grants.len());
    let said = page.entries.iter().filter(|(_, node)| covered(&reply, node.fid) == Some(Mode::Read)).count();
    assert!(said > 180 && reply.covered.len() < 5, "{said} in {} groups", reply.covered.len());

    // Another reader gets its own; a writer asks both for the one file.
    let second = connect(&server).await;
    let listed = second.ask(Call::ReadDir { dir: home, after: None, limit: 1000, next: Vec::new() }).await;
    assert!(!deep(&listed).is_empty());
    let file = page.entries.last().unwrap().1.fid;
    assert_eq!(covered(&listed, file), Some(Mode::Read));
    let writer = Client::connect(&server).await;
    touch(&writer, file).await;
    for client in [&reader, &second] {
        assert_eq!(asked_for(client, file).await.part, Some(LeasePart::object(file)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_is_covered_by_the_deep_lease_also_of_what_the_table_has_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let mut teller = Teller::with(connect(&server).await).await;
    let (home, _) = mkdir(&teller.client, teller.client.root, "home").await;
    let (inner, _) = mkdir(&teller.client, home, "inner").await;
    let old = teller.client.create(inner, "old").await.unwrap().fid;
    let (file, new_dir, below) = (teller.new_fid(), teller.new_fid(), teller.new_fid());
    let place = |directory, name: &str| Place { directory, name: n(name) };
    let made = |kind| new_node(kind);
    let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
    let changes = vec![
        Change::Create { place: place(inner, "file"), fid: file, new: made(FileKind::File) },
        Change::Create { place: place(inner, "dir"), fid: new_dir, new: made(FileKind::Directory) },
        Change::Create { place: place(new_dir, "below"), fid: below, new: made(FileKind::File) },
        Change::SetAttr { fid: old, set },
    ];
    let records = changes.into_iter().map(|change| teller.record(change)).collect();
    let reply = teller.tell(records).await;
    assert_eq!(digested(&reply).len(), 6 - 1, "inner, old and what is new");
    assert!(reply.grants.is_empty(), "{:?}", reply.grants);
    for fid in [file, new_dir, below] {
        assert_eq!(covered(&reply, fid), Some(Mode::Write));
    }
    // Somebody else takes one of them: the next digest about it is refused, others are not.
    let other = connect(&server).await;
    touch(&other, below).await;
    asked_for(&teller.client, below).await;
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let records = vec![teller.record(Change::SetAttr { fid: file, set })];
    digested(&teller.tell(records).await);
    let records = vec![teller.record(Change::SetAttr { fid: below, set })];
    assert!(teller.tell(records).await.result.is_err());
}

/// Where a thousand inodes lie takes longer to look up than others take to move something elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_digest_is_taken_beside_somebody_who_moves_names_all_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let mut teller = Teller::with(connect(&server).await).await;
    let (mut below, _) = mkdir(&teller.client, teller.client.root, "home").await;
    for level in 0..5 {
        below = mkdir(&teller.client, below, &level.to_string()).await.0;
    }
    let place = |name: &str| Place { directory: below, name: n(name) };
    let fids: Vec<Fid> = (0..1000).map(|_| teller.new_fid()).collect();
    let new = |fid: &Fid| Change::Create {
        place: place(&fid.ino.0.to_string()),
        fid: *fid,
        new: new_node(FileKind::File),
    };
    let records = fids.iter().map(new).map(|change| teller.record(change)).collect();
    digested(&teller.tell(records).await);
    let other = connect(&server).await;
    let (from, to) = (mkdir(&other, other.root, "from").await.0, mkdir(&other, other.root, "to").await.0);
    node(other.change(create(from, "file", FileKind::File)).await).unwrap();
    let mut mover = tokio::spawn(async move {
        loop {
            for (from, to) in [(from, to), (to, from)] {
                node(rename(&other, (from, "file"), (to, "file")).await).unwrap();
            }
        }
    });
    for perm in 0..5 {
        let set = SetAttr { perm: Some(0o600 + perm), ..SetAttr::default() };
        let records = fids.iter().map(|fid| teller.record(Change::SetAttr { fid: *fid, set })).collect();
        digested(&teller.tell(records).await);
    }
    assert!(!mover.is_finished(), "{:?}", (&mut mover).await);
    mover.abort();
}

/// What leaves the reach of a deep lease is its mover's still, by a lease of its own.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_move_across_the_edge_in_a_digest_take_a_lease_along() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let mut teller = Teller::with(connect(&server).await).await;
    let root = teller.client.root;
    let (home, _) = mkdir(&teller.client, root, "home").await;
    let mut files = Vec::new();
    for name in ["out", "linked", "open", "inside"] {
        files.push(teller.client.create(home, name).await.unwrap().fid);
    }
    let [out, linked, open, inside] = files[..] else { panic!() };
    let gone = mkdir(&teller.client, home, "gone").await.0;
    let (sub, _) = mkdir(&teller.client, home, "sub").await;
    let place = |directory, name: &str| Place { directory, name: n(name) };
    let moved = |from, to, fid| Change::Rename { from, to, moved: fid, what: Moved::Leaf, replaced: None };
    let changes = vec![
        moved(place(home, "out"), place(root, "out"), out),
        moved(place(home, "inside"), place(sub, "inside"), inside),
        Change::Link { fid: linked, place: place(home, "second") },
        Change::Unlink { place: place(home, "open"), fid: open, then: Fate::Stays },
        Change::RemoveDirectory { place: place(home, "gone"), fid: gone },
    ];
    let records = changes.into_iter().map(|change| teller.record(change)).collect();
    let reply = teller.tell(records).await;
    digested(&reply);
    for fid in [out, linked, open] {
        assert_eq!(mode_on(&reply.grants, fid), Some(Mode::Write), "{fid}");
    }
    assert_eq!(mode_on(&reply.grants, inside), None);
    // Whoever comes to them asks for that, and for what is below still for part of the deep one.
    let other = connect(&server).await;
    for fid in [out, linked, open] {
        touch(&other, fid).await;
        assert_eq!(asked_for(&teller.client, fid).await.part, None);
    }
    touch(&other, inside).await;
    let recall = asked_for(&teller.client, inside).await;
    assert_eq!((recall.fid, recall.part), (home, Some(LeasePart::object(inside))));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_others_move_into_a_deep_lease_or_out_of_it_are_holes() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let (home, _) = mkdir(&holder, holder.root, "home").await;
    let (inner, _) = mkdir(&holder, home, "inner").await;
    let (into, _) = mkdir(&holder, home, "into").await;
    let file = holder.create(inner, "file").await.unwrap().fid;
    let stranger = other.create(other.root, "stranger").await.unwrap().fid;

    // Into it: the holder has not been told of it, and does not write it without being asked to share.
    node(rename(&other, (other.root, "stranger"), (into, "stranger")).await).unwrap();
    asked_for(&holder, into).await;
    assert_eq!(other.write(stranger, WriteAt::Offset(0), b"mine").await, Ok(0));
    assert_eq!(holder.read(stranger, 0, 9).await.unwrap(), "mine");
    asked_for(&other, stranger).await;
    // Out of it.
    node(rename(&other, (inner, "file"), (other.root, "taken")).await).unwrap();
    asked_for(&holder, inner).await;
    asked_for(&holder, file).await;
    assert_eq!(other.write(file, WriteAt::Offset(0), b"theirs").await, Ok(0));
    assert_eq!(holder.read(file, 0, 9).await.unwrap(), "theirs");

    // An unlinked file that is open lies nowhere; whoever has it open is asked for it.
    let open = holder.create(home, "open").await.unwrap().fid;
    other.ask(Call::Opened { fid: open }).await.result.unwrap();
    let call = Call::Unlink { parent: home, name: n("open"), what: Unlink::File { in_use: InUse::No } };
    node(holder.change(call).await).unwrap();
    assert_eq!(covered(&touch(&holder, open).await, open), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_what_was_covered_is_reclaimed_lease_by_lease() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_deep(dir.path());
    let holder = connect(&server).await;
    let (home, reply) = mkdir(&holder, holder.root, "home").await;
    let lease = deep(&reply)[0];
    let made = holder.create(home, "file").await.unwrap();
    let file = made.fid;
    holder.sync().await;
    let key = holder.key();
    drop((holder, server));

    let server = start_deep(dir.path());
    let Role::Control { client, name, volume, lease_term, .. } = control(None) else { panic!() };
    let role = Role::Control {
        client,
        name,
        volume,
        resume: Some(key),
        lease_term,
        widest_lease: Scope::Subtree,
        lease_wait: LeaseWait::Notified,
    };
    let holder = Client::connect_as(server.local_addr(), role, Recalls::Answer).await.unwrap();
    let grant = Grant { fid: file, scope: Scope::Node, ..lease };
    let leases = vec![(grant, made.attr.version)];
    let reclaim = Reclaim { leases, open: vec![], locks: vec![], step: ReclaimStep::Last };
    let Ok(Answer::Reclaimed { leases: held, .. }) = holder.ask(Call::Reclaim(reclaim)).await.result else {
        panic!()
    };
    assert_eq!(held[0].map(|grant| (grant.scope, grant.mode)), Some((Scope::Node, Mode::Write)));
    let other = connect(&server).await;
    let reply = getattr(&other, file).await;
    assert!(reply.result.is_ok());
    assert_eq!(asked_for(&holder, file).await.part, None);
}
