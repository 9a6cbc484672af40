//! What every part of a running server knows. State only: what is done with it stands in the files above.

use crate::agenda::{Janitor, Register, Timer};
use crate::config::ServerConfig;
use crate::core::Core;
use crate::durability::Durability;
use crate::metrics::Metrics;
use crate::net::{Budget, Intake};
use crate::places::Places;
use crate::sync::GroupSync;
use crate::troubles::Troubles;
use soda_lease::space::Space;
use soda_storage::DataStore;
use soda_types::{Monotonic, Timestamp};
use soda_volume::Volume;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// So much file data in the journal, bytes, does not wait for the time at which data is synced: half of what may be there
/// (`call/digest/journal.rs`).
const MUCH_REDO: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) data_dir: PathBuf,
    pub(crate) local_addr: SocketAddr,
    pub(crate) volume: Arc<Volume>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) troubles: Troubles,
    pub(crate) sync: GroupSync,
    /// Of data only.
    pub(crate) data_sync: GroupSync,
    pub(crate) durability: Arc<Durability>,
    pub(crate) data: Arc<dyn DataStore>,
    pub(crate) space: Arc<Space>,
    /// Bytes of digests on their way into the journal.
    pub(crate) to_journal: AtomicU64,
    pub(crate) intake: Arc<Intake>,
    pub(crate) buffers: Arc<Budget>,
    pub(crate) janitor: Janitor,
    pub(crate) timer: Timer,
    pub(crate) places: Places,
    pub(crate) register: Register,
    /// Changes with every start.
    pub(crate) boot: [u8; 16],
    pub(crate) started: Timestamp,
    pub(crate) started_at: Monotonic,
    pub(crate) connections: AtomicUsize,
    pub(crate) next_connection: AtomicU64,
    pub(crate) stopping: AtomicBool,
    /// To be locked by `Shared::core` only, which sees to what follows.
    pub(crate) core: Mutex<Core>,
}

impl Shared {
    /// Has what was committed made durable in a while; and what the journal has of data brought to where it belongs, sooner if it
    /// is much.
    pub(crate) fn note_change(&self) {
        self.sync.dirty();
        match self.volume.redo_bytes() {
            0 => {}
            bytes if bytes < MUCH_REDO => self.data_sync.dirty(),
            _ => self.data_sync.request(|_| {}),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn new_connection(&self) -> u64 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }
}
