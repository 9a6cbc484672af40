//! A machine that wakes up believes nothing that it knew when it went to sleep.

use crate::common::*;
use soda_client::{BootClock, Client, Clock, NamesLock, TcpTransport};
use soda_types::Monotonic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A machine that has slept for so many nanoseconds in all.
#[derive(Debug, Default)]
struct Machine(AtomicU64);

impl Clock for Machine {
    fn now(&self) -> Monotonic {
        BootClock.now() + Duration::from_nanos(self.suspended())
    }

    fn suspended(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_suspend_everything_that_the_kernel_keeps_is_dropped() {
    let cell = Cell::start();
    let (told, machine) = (Arc::<Told>::default(), Arc::<Machine>::default());
    let hooks = Box::new(Hooks(Arc::clone(&told), NamesLock::None));
    let clock: Arc<dyn Clock> = machine.clone();
    let client =
        Client::connect_with(cell.client_config(), hooks, clock, Box::new(TcpTransport)).await.unwrap();
    let f = file(&client, "f", "x").await;
    assert_eq!(read(&client, &f).await, "x");
    assert_eq!(*told.everything.lock().unwrap(), 0);
    machine.0.fetch_add(3_600_000_000_000, Ordering::Relaxed);
    eventually("everything is dropped", || *told.everything.lock().unwrap() == 1).await;
    assert_eq!(read(&client, &f).await, "x");
}
