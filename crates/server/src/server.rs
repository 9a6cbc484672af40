//! Starting and stopping.

use crate::accept;
use crate::agenda::{Janitor, Register, Timer};
use crate::clock;
use crate::config::{Equation8, Exposure, ObjectTerm, ServerConfig, WriteLeases};
use crate::core::{Core, Entry, OWN_SESSION, Standing};
use crate::metrics::{self, Metrics};
use crate::places::Places;
use crate::random::random;
use crate::register;
use crate::session::Session;
use crate::session::records::{self, RecordError, ServerRecord};
use crate::shared::Shared;
use crate::starting::Starting;
use crate::sync::GroupSync;
use crate::upkeep;
use soda_lease::locks::LockTable;
use soda_lease::table::{self, BackOff, Table, TableConfig};
use soda_protocol::Push;
use soda_storage::{Batch, DataDirectory, DataStore, MetaStore, StorageError, StoreOptions, crash};
use soda_types::{Epoch, FsError};
use soda_volume::{Volume, VolumeConfig};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Epochs of one run: at 100,000 grants a second enough for five years.
const EPOCHS_PER_START: u32 = 44;
/// How long a stopping server waits for work in progress.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "refusing to listen on {0}: connections are not authenticated yet, so whoever reaches that address could read and \
         change everything. Listen on a loopback address (such as 127.0.0.1), or accept the risk with --insecure"
    )]
    Exposed(SocketAddr),
    #[error(
        "refusing to serve metrics on {0}: whoever reaches that address could see who uses this server, and how. Choose a \
         loopback address (such as 127.0.0.1), or accept that with --insecure"
    )]
    ExposedMetrics(SocketAddr),
    #[error("there is no volume {0:?} to set the lease term of; this server has \"main\"")]
    NoVolume(String),
    #[error("cannot listen on {address}: {source}{}", listen_hint(.source))]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot serve metrics on {address}: {source}{}", listen_hint(.source))]
    Metrics { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("cannot open the volume in {path}: {cause}")]
    Volume { path: PathBuf, cause: FsError },
    #[error(transparent)]
    Records(#[from] RecordError),
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            ". Another program, perhaps another `soda serve`, uses the port: stop it, or choose another with --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => ". This machine does not have that address",
        std::io::ErrorKind::PermissionDenied => ". Ports below 1024 need privilege: choose a higher one",
        _ => "",
    }
}

/// What is to be started.
#[derive(Debug)]
pub struct Server;

/// Where a server keeps everything.
#[derive(Clone, Debug)]
pub struct Stores {
    pub meta: Arc<dyn MetaStore>,
    pub data: Arc<dyn DataStore>,
    /// For people.
    pub path: PathBuf,
}

/// A server that serves until it is shut down or dropped. Both wait for the end; only a shutdown tells clients and makes
/// everything durable.
#[derive(Debug)]
pub struct RunningServer {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    upkeep: Vec<std::thread::JoinHandle<()>>,
    metrics_addr: Option<SocketAddr>,
}

impl Server {
    /// Opens the data directory and serves, on threads of its own, until the result is shut down or dropped.
    ///
    /// # Errors
    /// [`StartError`], with a text for the administrator.
    pub fn start(config: ServerConfig) -> Result<RunningServer, StartError> {
        refuse_exposure(&config)?;
        let starting = Starting::logged("opening the data directory").map_err(StartError::Threads)?;
        let directory = open_directory(&config)?;
        let path = directory.path().to_owned();
        let stores = Stores { meta: directory.meta, data: directory.data, path };
        Server::go_on_starting(stores, config, starting)
    }

    /// Serves what is in stores that are open already; `config.data_dir` is not looked at.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_on(stores: Stores, config: ServerConfig) -> Result<RunningServer, StartError> {
        refuse_exposure(&config)?;
        let starting = Starting::logged("looking at the stores").map_err(StartError::Threads)?;
        Server::go_on_starting(stores, config, starting)
    }

    fn go_on_starting(
        stores: Stores,
        config: ServerConfig,
        starting: Starting,
    ) -> Result<RunningServer, StartError> {
        allow_descriptors();
        starting.step("opening the volume");
        let volume = open_volume(&config, &stores)?;
        let listener =
            listen(config.listen).map_err(|source| StartError::Listen { address: config.listen, source })?;
        let local_addr =
            listener.local_addr().map_err(|source| StartError::Listen { address: config.listen, source })?;
        let metrics_listener = match config.metrics {
            Some(address) => Some(listen(address).map_err(|source| StartError::Metrics { address, source })?),
            None => None,
        };
        let metrics_addr = metrics_listener.as_ref().and_then(|listener| listener.local_addr().ok());

        starting.step("recording the start");
        let run = begin_run(volume.meta(), &config)?;
        starting.step("reading sessions and orphans");
        let core = restore(&config, &volume, &stores.path, &run)?;
        starting.step("starting threads");
        let metrics = Arc::new(Metrics::default());
        let synced = volume.clone();
        let sync = GroupSync::start(config.sync_interval, metrics.clone(), move || synced.sync())
            .map_err(StartError::Threads)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("soda-server")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let shared = Arc::new(Shared {
            data_dir: stores.path,
            local_addr,
            volume,
            metrics,
            sync,
            janitor: Janitor::default(),
            timer: Timer::default(),
            places: Places::new(config.threads),
            register: Register::default(),
            boot: random().map_err(StartError::Threads)?,
            started: clock::calendar(),
            started_at: clock::monotonic(),
            connections: AtomicUsize::new(0),
            next_connection: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            core: Mutex::new(core),
            config,
        });
        let serve = || -> std::io::Result<()> {
            let _entered = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            runtime.spawn(accept::serve(shared.clone(), listener));
            runtime.spawn(upkeep::run_timer(shared.clone()));
            runtime.spawn(upkeep::run_janitor(shared.clone()));
            if let Some(listener) = metrics_listener {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let page = shared.clone();
                runtime.spawn(metrics::serve(listener, move || page.metrics_page()));
            }
            Ok(())
        };
        serve().map_err(StartError::Threads)?;
        let upkeep = [
            upkeep::start_reclaimer(shared.clone()),
            register::start_writer(shared.clone()),
            upkeep::start_watch(shared.clone(), runtime.handle().clone()),
        ];
        let upkeep = upkeep.into_iter().collect::<Result<_, _>>().map_err(StartError::Threads)?;
        let (took, steps) = starting.finish();
        tracing::debug!(?steps, "started");
        tracing::info!(%local_addr, data_dir = %shared.data_dir.display(), starts = run.record.starts,
            sessions = shared.core().sessions.len(), ?took, "serving");
        Ok(RunningServer { shared, runtime: Some(runtime), upkeep, metrics_addr })
    }
}

impl RunningServer {
    /// Where it listens, with the port it was given.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local_addr
    }

    /// Where it serves metrics.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    pub fn data_dir(&self) -> &Path {
        &self.shared.data_dir
    }

    /// Tells the clients, lets work in progress end, makes everything durable and closes the data directory. Sessions stay
    /// known, so clients go on at the next start.
    pub async fn shutdown(mut self) {
        let (done, ended) = tokio::sync::oneshot::channel();
        // Ending a runtime blocks, which an asynchronous caller must not.
        std::thread::spawn(move || {
            self.say_goodbye();
            self.stop();
            if let Err(error) = self.shared.volume.sync() {
                tracing::error!(%error, "the last changes could not be made durable");
            }
            drop(self);
            let _ = done.send(());
        });
        let _ = ended.await;
    }

    fn say_goodbye(&self) {
        let mut core = self.shared.core();
        let controls: Vec<_> = core.sessions.values().filter_map(|entry| entry.control.clone()).collect();
        for outbox in &controls {
            core.push(outbox, &Push::Stopping);
        }
        drop(core);
        for outbox in &controls {
            outbox.flush();
        }
    }

    /// Stops at once: to clients this looks like a crash, except that every reply's change is in the journal anyway.
    fn stop(&mut self) {
        self.shared.stop();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP_PATIENCE);
        }
        for thread in self.upkeep.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("an upkeep thread had panicked");
            }
        }
        self.shared.bring_up_to_date();
        self.shared.sync.stop();
        // What waits holds references to connections and the store.
        let mut core = self.shared.core();
        core.waiting.clear();
        core.lock_waits.clear();
        core.sessions.clear();
        tracing::info!("stopped");
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if self.runtime.is_some() {
            // Not on this thread: it may be one of another runtime, where blocking is refused.
            std::thread::scope(|scope| {
                let _ = scope.spawn(|| self.stop()).join();
            });
        }
    }
}

/// Nothing is authenticated yet, so nothing listens where others could reach it, unless told to.
fn refuse_exposure(config: &ServerConfig) -> Result<(), StartError> {
    if config.exposure == Exposure::Insecure {
        return Ok(());
    }
    if !config.listen.ip().is_loopback() {
        return Err(StartError::Exposed(config.listen));
    }
    match config.metrics.filter(|address| !address.ip().is_loopback()) {
        Some(address) => Err(StartError::ExposedMetrics(address)),
        None => Ok(()),
    }
}

/// A connection takes a descriptor, and the usual soft limit of 1,024 is that of programs that use select(2).
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, ?limit, "the limit of open descriptors could not be raised");
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn open_directory(config: &ServerConfig) -> Result<DataDirectory, StartError> {
    let options = StoreOptions {
        reserve: config.reserve,
        meta_cache: config.cache.metadata,
        ..StoreOptions::default()
    };
    Ok(DataDirectory::open(&config.data_dir, options)?)
}

fn open_volume(config: &ServerConfig, stores: &Stores) -> Result<Arc<Volume>, StartError> {
    let options = VolumeConfig {
        chunk_cache: usize::try_from(config.cache.data).unwrap_or(usize::MAX),
        created: clock::calendar(),
        ..VolumeConfig::default()
    };
    let volume = Volume::open(stores.meta.clone(), stores.data.clone(), options);
    let volume = volume.map_err(|cause| StartError::Volume { path: stores.path.clone(), cause })?;
    Ok(Arc::new(volume))
}

/// Records a start, durably: epochs of this run are above those of all others.
fn begin_run(meta: &dyn MetaStore, config: &ServerConfig) -> Result<Run, StartError> {
    let before = records::load_server(meta)?;
    // A client that was cut off two runs ago has not heard of the last run's term.
    let term = config.term.max(before.term);
    let record = ServerRecord { starts: before.starts + 1, term, last_session: before.last_session };
    let mut batch = Batch::releasing();
    batch.put(soda_storage::Table::Server, records::server_key(), records::encode(&record));
    meta.commit(batch)?;
    meta.sync()?;
    crash::point("server.started");
    Ok(Run { record, promised: before.term })
}

struct Run {
    record: ServerRecord,
    /// The longest term that a client may count on from before.
    promised: Duration,
}

fn restore(config: &ServerConfig, volume: &Volume, path: &Path, run: &Run) -> Result<Core, StartError> {
    let now = clock::monotonic();
    let mut table_config = table_config(config, volume)?;
    // A client may hold on to the lease that an earlier run gave it.
    table_config.grace = table_config.grace.max(run.promised + run.promised / 20);
    let first_epoch = Epoch(run.record.starts << EPOCHS_PER_START);
    let mut core = Core::new(Table::new(table_config, first_epoch, now), LockTable::default(), &run.record);
    core.table.open_session(now, OWN_SESSION);
    let mut known = Vec::new();
    for stored in records::load_sessions(volume.meta())? {
        known.push(stored.id);
        let session = Arc::new(Session::restore(stored, config.limits.slots));
        core.sessions.insert(session.id, Entry::new(session, Standing::Reclaiming, now));
    }
    core.table.begin_grace(now, known);
    let orphans = volume.orphans();
    let path = path.to_owned();
    core.orphans = orphans.map_err(|cause| StartError::Volume { path, cause })?.into_iter().collect();
    Ok(core)
}

fn table_config(config: &ServerConfig, volume: &Volume) -> Result<TableConfig, StartError> {
    let defaults = TableConfig::with_term(config.term);
    let mut volume_terms = BTreeMap::new();
    for (name, term) in &config.volume_terms {
        if name != volume.name() {
            return Err(StartError::NoVolume(name.clone()));
        }
        volume_terms.insert(volume.id(), term_on_objects(*term));
    }
    Ok(TableConfig {
        grace: config.grace,
        object_term: term_on_objects(config.object_term),
        volume_terms,
        write_leases: match config.write_leases {
            WriteLeases::Grant => table::WriteLeases::Grant,
            WriteLeases::OnlyToHolders => table::WriteLeases::OnlyToHolders,
        },
        equation_8: match config.equation_8 {
            Equation8::On => defaults.equation_8,
            Equation8::Off => table::Equation8::Off,
        },
        back_off: match config.equation_8 {
            Equation8::On => defaults.back_off,
            Equation8::Off => BackOff::Off,
        },
        ..defaults
    })
}

fn term_on_objects(term: ObjectTerm) -> table::ObjectTerm {
    match term {
        ObjectTerm::Zero => table::ObjectTerm::None,
        ObjectTerm::For(term) => table::ObjectTerm::For(term),
        ObjectTerm::Session => table::ObjectTerm::Session,
    }
}
