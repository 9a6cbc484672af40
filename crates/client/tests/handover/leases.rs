//! Leases pass with what they cover, and with the duty to give them up.

use super::*;
use crate::common::delayed::{find, make, mkdir, warm_up};
use soda_client::{Names, WriteBehind, WritePolicy};
use soda_types::{Attr, Fid, Mode, Scope, SetAttr};

const LONG_TERM: Duration = Duration::from_secs(60);

/// As [`successor_of`], with the same configuration.
async fn heir_of(old: &Arc<Client>, config: ClientConfig) -> Arc<Client> {
    let (handed, locks) = old.let_go().await.unwrap();
    Successor::connect(config, Box::new(NoKernel), handed, locks).await.unwrap().begin().await
}

/// Without asking the server.
fn known(client: &Arc<Client>, fid: Fid) -> Attr {
    at_once(client.getattr(fid)).unwrap().value
}

fn named(client: &Arc<Client>, dir: Fid, text: &str) -> Option<Fid> {
    at_once(client.lookup(dir, &name(text))).unwrap().node.map(|node| node.fid)
}

fn node_lease(client: &Client, fid: Fid) -> Option<Mode> {
    let held = client.leases().into_iter().map(|held| held.grant);
    held.filter(|grant| grant.scope == Scope::Node).find(|grant| grant.fid == fid).map(|grant| grant.mode)
}

fn patient(cell: &Cell) -> ClientConfig {
    let behind = WriteBehind { max_age: Duration::from_secs(3600), ..WriteBehind::default() };
    ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_warm_costs_no_message() {
    let cell = Cell::with_term(LONG_TERM).without_deep_leases();
    let old = cell.client().await;
    let root = old.root();
    let (f, dir) = (make(&old, root, "f", "content").await, mkdir(&old, root, "dir").await);
    let g = make(&old, dir, "g", "x").await;
    assert_eq!(find(&old, &["absent"]).await, None);
    assert_eq!(old.listxattr(f).await.unwrap().len(), 0);
    let modes = |client: &Arc<Client>| [root, f, dir, g].map(|fid| node_lease(client, fid));
    let had = modes(&old);
    let new = heir_of(&old, cell.client_config()).await;
    assert_eq!(modes(&new), had);
    assert_eq!(known(&new, f).size, 7);
    for (at, text, fid) in [(root, "f", Some(f)), (root, "absent", None), (dir, "g", Some(g))] {
        assert_eq!(named(&new, at, text), fid, "{text}");
    }
    assert_eq!(named(&new, dir, "absent"), None, "the whole directory is known");
    assert_eq!(at_once(new.listxattr(f)).unwrap().len(), 0);
    forget(old);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passed_is_given_up_when_somebody_asks() {
    let cell = Cell::with_term(LONG_TERM).without_deep_leases();
    let (old, other) = (cell.client().await, cell.client().await);
    let (f, g) = (file(&old, "f", "old").await, file(&old, "g", "old").await);
    let theirs = open(&other, "f").await;
    let new = heir_of(&old, cell.client_config()).await;
    let changes = writing(&other, theirs);
    // It waits for what the old one told the kernel; meanwhile the lease holds.
    tokio::time::sleep(STILL).await;
    assert!(!changes.is_finished() && known(&new, f.fid()).size == 3);
    new.kernel_has_forgotten();
    timeout(LIMIT, changes).await.expect("in time").unwrap().unwrap();
    assert_eq!(node_lease(&new, f.fid()), None);
    assert_eq!(read(&new, &new.open_handed(f.hand_over())).await, "new");
    assert_eq!(known(&new, g.fid()).size, 3);
    other.unlink(other.root(), &name("g")).await.unwrap();
    assert_eq!(find(&new, &["g"]).await, None);
    other.setattr(new.root(), SetAttr { perm: Some(0o700), ..SetAttr::default() }).await.unwrap();
    assert_eq!(new.getattr(new.root()).await.unwrap().value.perm, 0o700);
    forget(old);
}

/// It had not answered: the new one is asked, and had the old one gone on, that would have been.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_old_one_was_giving_up_is_not_used() {
    let cell = Cell::with_term(LONG_TERM).without_deep_leases();
    let (told, (release, released)) = (Arc::new(Told::default()), std::sync::mpsc::channel::<()>());
    let old = cell.client_with(Box::new(Hooks(told.clone(), NamesLock::None))).await;
    let other = cell.client().await;
    let f = file(&old, "f", "old").await;
    let theirs = open(&other, "f").await;
    let valid = old.getattr(f.fid()).await.unwrap().valid;
    assert!(old.answer().remaining(valid) > Duration::ZERO);
    *told.during.lock().unwrap() = Some(Box::new(move || released.recv().unwrap_or_default()));
    let changes = writing(&other, theirs);
    eventually("the kernel is not told", || !told.attrs.lock().unwrap().is_empty()).await;
    let new = heir_of(&old, cell.client_config()).await;
    assert_eq!(node_lease(&new, f.fid()), None);
    assert!(!changes.is_finished());
    new.kernel_has_forgotten();
    timeout(LIMIT, changes).await.expect("in time").unwrap().unwrap();
    assert_eq!(read(&new, &new.open_handed(f.hand_over())).await, "new");
    drop(release);
    forget(old);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deep_lease_passes_with_all_that_it_covers() {
    const FILES: usize = 40;
    let cell = Cell::with_term(LONG_TERM).with_deep_leases();
    let (old, other) = (cell.client().await, cell.client().await);
    let top = mkdir(&old, old.root(), "top").await;
    let sub = mkdir(&old, top, "sub").await;
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(make(&old, sub, &format!("f{number}"), "x").await);
    }
    let deep = |client: &Arc<Client>| {
        let held = client.leases().into_iter().map(|held| held.grant);
        held.filter(|grant| grant.scope == Scope::Subtree).map(|grant| (grant.fid, grant.mode)).collect()
    };
    let had: Vec<(Fid, Mode)> = deep(&old);
    assert!(had.contains(&(top, Mode::Write)), "{had:?}");
    let new = heir_of(&old, cell.client_config()).await;
    assert_eq!(deep(&new), had);
    for (number, fid) in files.iter().enumerate() {
        assert_eq!(named(&new, sub, &format!("f{number}")), Some(*fid));
        assert_eq!(known(&new, *fid).size, 1);
    }
    new.kernel_has_forgotten();
    let theirs = other.open(files[7], soda_client::OpenMode::ReadWrite).await.unwrap();
    write(&other, &theirs, 0, "longer").await;
    assert_eq!(new.getattr(files[7]).await.unwrap().value.size, 6);
    assert_eq!(known(&new, files[8]).size, 1, "the rest stays");
    other.rmdir(top, &name("sub")).await.unwrap_err();
    for number in 0..FILES {
        other.unlink(sub, &name(&format!("f{number}"))).await.unwrap();
    }
    other.rmdir(top, &name("sub")).await.unwrap();
    assert_eq!(find(&new, &["top", "sub"]).await, None);
    forget(old);
}

/// It has the server's version by now.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_here_passes_as_the_server_has_it() {
    let cell = Cell::with_term(LONG_TERM);
    let old = Client::connect(patient(&cell), Box::new(NoKernel)).await.unwrap();
    warm_up(&old, cell.addr).await;
    let dir = mkdir(&old, old.root(), "dir").await;
    let f = make(&old, dir, "f", "content").await;
    old.setattr(f, SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    assert!(old.session().backlog.records > 0);
    let new = heir_of(&old, patient(&cell)).await;
    let mine = known(&new, f);
    assert_eq!((named(&new, dir, "f"), mine.size, mine.perm), (Some(f), 7, 0o600));
    new.kernel_has_forgotten();
    let other = cell.client().await;
    assert_eq!(other.getattr(f).await.unwrap().value, mine);
    // And what is changed next, on either side, is seen on the other one.
    let mut sizes = Vec::new();
    for (who, by) in [(&new, &other), (&other, &new), (&new, &other)] {
        let file = who.open(f, soda_client::OpenMode::Write).await.unwrap();
        who.write_all(&file, WriteAt::End, "+".into(), KillPriv::Keep).await.unwrap();
        sizes.push(by.getattr(f).await.unwrap().value.size);
    }
    assert_eq!(sizes, [8, 9, 10]);
    forget(old);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lets_go_and_goes_on_has_its_leases_still() {
    let cell = Cell::with_term(LONG_TERM).without_deep_leases();
    let (old, other) = (cell.client().await, cell.client().await);
    let f = file(&old, "f", "old").await;
    drop(successor_of(&cell, &old).await);
    old.go_on();
    assert_eq!(known(&old, f.fid()).size, 3);
    old.getattr(f.fid()).await.unwrap();
    let theirs = open(&other, "f").await;
    write(&other, &theirs, 3, "er").await;
    assert_eq!(old.getattr(f.fid()).await.unwrap().value.size, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_passed_are_claimed_after_a_restart() {
    let mut cell = Cell::with_term(LONG_TERM).without_deep_leases();
    let old = cell.client().await;
    let f = file(&old, "f", "old").await;
    let new = heir_of(&old, cell.client_config()).await;
    new.kernel_has_forgotten();
    cell.restart();
    eventually("nothing is claimed", || new.stats().count("reclaimed") >= 2).await;
    assert_eq!(new.stats().count("reclaim_refused"), 0);
    assert_eq!(known(&new, f.fid()).size, 3);
    let other = cell.client().await;
    write(&other, &*open(&other, "f").await, 3, "er").await;
    assert_eq!(new.getattr(f.fid()).await.unwrap().value.size, 5);
    forget(old);
}

/// The kernel may show what the old client told it, and the new one knows nothing of that.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_said_of_an_inode_before_the_kernel_has_forgotten() {
    let cell = Cell::with_term(LONG_TERM);
    let old = Client::connect(patient(&cell), Box::new(NoKernel)).await.unwrap();
    warm_up(&old, cell.addr).await;
    let f = make(&old, old.root(), "f", "old").await;
    old.sync_all().await.unwrap();
    let other = cell.client().await;
    let new = heir_of(&old, patient(&cell)).await;
    let file = new.open(f, soda_client::OpenMode::Write).await.unwrap();
    new.write_all(&file, WriteAt::End, "+new".into(), KillPriv::Keep).await.unwrap();
    let asks = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.stat(f).await.unwrap().value.size }
    });
    eventually("nobody asks", || new.stats().count("inquiries") > 0).await;
    tokio::time::sleep(STILL).await;
    assert!(!asks.is_finished());
    new.kernel_has_forgotten();
    assert_eq!(timeout(LIMIT, asks).await.expect("in time").unwrap(), 7);
    forget(old);
}

/// A kernel of which the new client knows nothing is told to drop nothing; what the new one told it is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_new_one_told_the_kernel_is_taken_back() {
    let cell = Cell::with_term(LONG_TERM).without_deep_leases();
    let (old, other) = (cell.client().await, cell.client().await);
    let f = file(&old, "f", "old").await;
    let (handed, locks) = old.let_go().await.unwrap();
    let told = Arc::new(Told::default());
    let hooks = Box::new(Hooks(told.clone(), NamesLock::None));
    let new = Successor::connect(cell.client_config(), hooks, handed, locks).await.unwrap().begin().await;
    let entry = at_once(new.lookup(new.root(), &name("f"))).unwrap();
    let until = |valid| new.answer().remaining(valid);
    assert!(until(entry.names) > Duration::ZERO && until(entry.attr) > Duration::ZERO);
    new.kernel_has_forgotten();
    write(&other, &*open(&other, "f").await, 3, "er").await;
    assert!(told.attrs.lock().unwrap().contains(&f.fid()));
    other.unlink(other.root(), &name("f")).await.unwrap();
    let names = Names::These(vec![name("f")]);
    assert!(told.names.lock().unwrap().contains(&(new.root(), names)));
    forget(old);
}
