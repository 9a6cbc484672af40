//! What delayed changes are dated by.

use super::*;
use crate::common::delayed::warm_up;
use soda_client::{BootClock, Clock, TcpTransport};
use soda_types::{Monotonic, Timestamp};

/// A machine whose date is this.
#[derive(Debug)]
struct Dated(Timestamp);

impl Clock for Dated {
    fn now(&self) -> Monotonic {
        BootClock.now()
    }

    fn suspended(&self) -> u64 {
        0
    }

    fn calendar(&self) -> Timestamp {
        self.0
    }
}

// SEMANTICS 35
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_date_is_wrong_does_not_show() {
    let cell = Cell::start();
    let hour = Duration::from_secs(3600);
    for year in [1970, 2140] {
        let clock = Arc::new(Dated(Timestamp::new((year - 1970) * 365 * 24 * 3600, 0)));
        let (transport, hooks) = (Box::new(TcpTransport), Box::new(NoKernel));
        let a = Client::connect_with(patient(&cell), hooks, clock, transport).await.unwrap();
        warm_up(&a, cell.addr).await;
        let told = a.stats().count("here");
        let fid = make(&a, a.root(), &year.to_string(), "dated").await;
        assert!(a.stats().count("here") > told, "it is done here");
        let (here, right) = (a.getattr(fid).await.unwrap().value, BootClock.calendar());
        let b = cell.client().await;
        let there = b.lookup(b.root(), &name(&year.to_string())).await.unwrap().node.unwrap().attr;
        let parent = b.getattr(b.root()).await.unwrap().value;
        for time in [here.mtime, here.ctime, here.btime, there.mtime, there.ctime, parent.mtime] {
            assert!(time < right.after(hour) && right < time.after(hour), "{year}: {time:?}, not {right:?}");
        }
        a.shutdown().await;
    }
}
