//! What a client keeps of names and attributes has a bound in bytes.

use crate::common::{Cell, at_once, eventually, file, name, open, read};
use soda_client::{Client, KernelHooks, KillPriv, Names, NoKernel, SetXattr};
use soda_types::{Fid, InUse, Ino};
use std::ops::Range;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

const MOST: u64 = 256 << 10;
/// What has just come may be above that: room for it is made when the next comes.
const JUST_COME: u64 = 8 << 10;
const FILES: usize = 400;

async fn small(cell: &Cell) -> Arc<Client> {
    let mut config = cell.client_config();
    config.cache.metadata_bytes = MOST;
    Client::connect(config, Box::new(NoKernel)).await.unwrap()
}

fn long(number: usize) -> String {
    format!("{number:0>240}")
}

fn value(number: usize) -> Vec<u8> {
    vec![number as u8; 3000]
}

#[tokio::test(flavor = "multi_thread")]
async fn long_names_and_large_attributes_keep_to_the_bound() {
    let cell = Cell::start();
    let a = small(&cell).await;
    for number in 0..FILES {
        let f = file(&a, &long(number), "x").await;
        a.setxattr(f.fid(), b"user.large", &value(number), SetXattr::Either, KillPriv::Keep).await.unwrap();
        assert!(a.session().metadata_bytes <= MOST + JUST_COME, "{:?} after {number}", a.session());
    }
    assert!(a.session().cached_inodes < FILES, "{:?}", a.session());
    assert!(a.stats().count("leases_released") > 0);
    for number in 0..FILES {
        let f = open(&a, &long(number)).await;
        assert_eq!(a.getxattr(f.fid(), b"user.large").await.unwrap(), value(number));
        assert_eq!(read(&a, &f).await, "x");
        assert!(a.session().metadata_bytes <= MOST + JUST_COME, "{:?} after {number}, read", a.session());
    }
}

/// What the kernel knows keeps its lease and its attributes; what else is known of it goes when it takes too much.
#[tokio::test(flavor = "multi_thread")]
async fn of_inodes_in_use_the_attributes_stay() {
    let cell = Cell::start();
    let a = small(&cell).await;
    let b = cell.client().await;
    let mut fids = Vec::new();
    for number in 0..FILES {
        let f = file(&b, &long(number), "x").await;
        b.setxattr(f.fid(), b"user.large", &value(number), SetXattr::Either, KillPriv::Keep).await.unwrap();
        fids.push(f.fid());
    }
    for (number, fid) in fids.iter().enumerate() {
        let found = a.lookup(a.root(), &name(&long(number))).await.unwrap();
        assert_eq!(found.node.unwrap().fid, *fid);
        a.remember(*fid, 1);
        assert_eq!(a.getxattr(*fid, b"user.large").await.unwrap(), value(number));
        assert!(a.session().metadata_bytes <= MOST + JUST_COME, "{:?} after {number}", a.session());
    }
    for (number, fid) in fids.iter().enumerate() {
        assert_eq!(at_once(a.getattr(*fid)).unwrap().value.size, 1, "{number} is not known any more");
    }
    // Others' changes are seen as ever.
    b.setxattr(fids[7], b"user.large", b"new", SetXattr::Either, KillPriv::Keep).await.unwrap();
    assert_eq!(a.getxattr(fids[7], b"user.large").await.unwrap(), b"new"[..]);
    fids.iter().for_each(|fid| a.forget(*fid, 1));
}

/// Stops the first one that gives a lease back because nobody uses it, in the middle.
struct Stopping {
    begun: Mutex<Option<oneshot::Sender<Fid>>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl KernelHooks for Stopping {
    fn invalidate_attr(&self, _: Fid) {}
    fn invalidate_data(&self, _: Fid, _: Range<u64>) {}
    fn invalidate_names(&self, _: Fid, _: &Names) {}
    fn settle_names(&self, _: Fid) {}
    fn invalidate_everything(&self) {}

    fn in_use(&self, fid: Fid) -> InUse {
        // The root stays in any case.
        let begun = if fid.ino == Ino::ROOT { None } else { self.begun.lock().unwrap().take() };
        if let Some(begun) = begun {
            begun.send(fid).unwrap();
            self.go_on.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        }
        InUse::No
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inode_whose_lease_is_being_given_back_stays_until_that_is_done() {
    const OTHERS: usize = 200;
    let cell = Cell::start().without_deep_leases();
    let b = cell.client().await;
    let first = file(&b, "first", "x").await.fid();
    let mut others = Vec::new();
    for number in 0..OTHERS {
        others.push(file(&b, &number.to_string(), "x").await.fid());
    }
    let (begun, has_begun) = oneshot::channel();
    let (go, go_on) = mpsc::channel();
    let hooks = Stopping { begun: Mutex::new(Some(begun)), go_on: Mutex::new(go_on) };
    let mut config = cell.client_config();
    // Nothing is kept but what has to be.
    config.cache.metadata_bytes = 1;
    config.cache.idle = Duration::from_millis(100);
    let a = Client::connect(config, Box::new(hooks)).await.unwrap();
    a.getattr(first).await.unwrap();
    assert_eq!(has_begun.await.unwrap(), first);
    for fid in others {
        a.getattr(fid).await.unwrap();
    }
    assert_eq!(at_once(a.getattr(first)).unwrap().value.size, 1, "what is cached is served until then");
    go.send(()).unwrap();
    eventually("the leases are given back", || a.leases().is_empty()).await;
}
