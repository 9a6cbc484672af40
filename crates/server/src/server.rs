//! Starting and stopping.

use crate::accept;
use crate::agenda::{Janitor, Register, Timer};
use crate::clock;
use crate::config::{Exposure, ServerConfig};
use crate::error::StartError;
use crate::metrics::{self, Metrics};
use crate::net::{Budget, Intake};
use crate::places::Places;
use crate::put_off::PutOff;
use crate::random::random;
use crate::register;
use crate::restore::{Stores, begin_run, open_volume, restore};
use crate::shared::Shared;
use crate::starting::Starting;
use crate::sync::GroupSync;
use crate::troubles::Troubles;
use crate::upkeep;
use soda_lease::space::{Full, Space};
use soda_protocol::Push;
use soda_storage::{DataDirectory, StoreOptions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a stopping server waits for work in progress.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// How long a port may stay in use by who is just ending.
const LETTING_GO: Duration = Duration::from_secs(1);

/// What is to be started.
#[derive(Debug)]
pub struct Server;

/// A server that has its ports. Who connects waits until it is opened.
#[derive(Debug)]
pub struct ListeningServer {
    config: ServerConfig,
    doors: Doors,
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
        Server::listen(config)?.open()
    }

    /// The first half of [`Server::start`]: takes the ports. Where somebody else listens nothing has been made or recovered.
    ///
    /// # Errors
    /// [`StartError`]: they are not to be had, also not a second later.
    pub fn listen(config: ServerConfig) -> Result<ListeningServer, StartError> {
        refuse_exposure(&config)?;
        let doors = Doors::open(&config)?;
        Ok(ListeningServer { config, doors })
    }

    /// Serves what is in stores that are open already; `config.data_dir` is not looked at.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_on(stores: Stores, config: ServerConfig) -> Result<RunningServer, StartError> {
        refuse_exposure(&config)?;
        let doors = Doors::open(&config)?;
        let starting = Starting::logged("looking at the stores").map_err(StartError::Threads)?;
        Server::go_on_starting(stores, config, doors, starting)
    }

    fn go_on_starting(
        stores: Stores,
        config: ServerConfig,
        doors: Doors,
        starting: Starting,
    ) -> Result<RunningServer, StartError> {
        allow_descriptors();
        starting.step("opening the volume");
        let volume = open_volume(&config, &stores)?;
        let Doors { clients: listener, local_addr, metrics: metrics_listener } = doors;
        let metrics_addr = metrics_listener.as_ref().and_then(|listener| listener.local_addr().ok());

        starting.step("recording the start");
        let run = begin_run(volume.meta(), &config)?;
        starting.step("reading sessions and orphans");
        let full = if config.quota.is_some() { Full::IsSaidHere } else { Full::SaysTheStore };
        let space = Arc::new(Space::new(full));
        let core = restore(&config, &volume, &stores.path, &run, &space)?;
        starting.step("starting threads");
        let metrics = Arc::new(Metrics::default());
        let (durability, data) = (run.durability.clone(), stores.data.clone());
        let [all, data_only] = [volume.clone(), volume.clone()];
        let all = move || durability.sync(&all, &*data);
        let rounds = metrics.clone();
        let tell = move |waiters, took| rounds.group_synced(waiters, took);
        let sync = GroupSync::start("soda-sync", config.sync_interval, tell, all);
        let sync = sync.map_err(StartError::Threads)?;
        let data_only = move || data_only.sync_data();
        let data_sync = GroupSync::start("soda-sync-data", config.sync_interval, |_, _| {}, data_only);
        let data_sync = data_sync.map_err(StartError::Threads)?;
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
            troubles: Troubles::default(),
            sync,
            data_sync,
            durability: run.durability.clone(),
            data: stores.data,
            space,
            to_journal: AtomicU64::new(0),
            intake: Arc::new(Intake::new(config.limits.request_bytes)),
            buffers: Arc::new(Budget::new(config.limits.buffer_bytes)),
            janitor: Janitor::default(),
            timer: Timer::default(),
            places: Places::new(config.threads),
            register: Register::default(),
            boot: random().map_err(StartError::Random)?,
            started: clock::calendar(),
            started_at: clock::monotonic(),
            connections: AtomicUsize::new(0),
            next_connection: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            core: Mutex::new(core),
            config,
        });
        // What the last run left to the kernel.
        shared.note_change();
        let serve = || -> std::io::Result<()> {
            let _entered = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            runtime.spawn(accept::serve(shared.clone(), listener));
            runtime.spawn(upkeep::run_timer(shared.clone()));
            runtime.spawn(upkeep::run_janitor(shared.clone()));
            if let Some(listener) = metrics_listener {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let page = shared.clone();
                // It has no place, and looks at what others may hold while they wait for the store.
                let page = move || tokio::task::block_in_place(|| page.metrics_page());
                runtime.spawn(metrics::serve(listener, page));
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

impl ListeningServer {
    /// Opens the data directory and serves.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn open(self) -> Result<RunningServer, StartError> {
        let ListeningServer { config, doors } = self;
        let starting = Starting::logged("opening the data directory").map_err(StartError::Threads)?;
        let directory = open_directory(&config)?;
        let path = directory.path().to_owned();
        let stores = Stores { meta: directory.meta, data: directory.data, path };
        Server::go_on_starting(stores, config, doors, starting)
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
            let (volume, durability) = (&self.shared.volume, &self.shared.durability);
            if let Err(error) = durability.sync(volume, &*self.shared.data).and_then(|()| volume.sync()) {
                tracing::error!(%error, "the last changes could not be made durable");
            }
            if let Err(error) = self.shared.volume.checkpoint() {
                tracing::warn!(%error, "the next start has something to recover");
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
            // An error: it panicked, which ends the process.
            let _ = thread.join();
        }
        self.shared.bring_up_to_date();
        self.shared.sync.stop();
        self.shared.data_sync.stop();
        // What waits holds references to connections and the store, and is held by what it refers to.
        let mut core = self.shared.core();
        core.waiting.clear();
        core.lock_waits.clear();
        core.lock_calls = PutOff::default();
        core.sessions.clear();
        drop(core);
        let left = Arc::strong_count(&self.shared) - 1;
        if left > 0 {
            tracing::error!(left, patience = ?STOP_PATIENCE,
                "stopped, but work that did not end in time keeps the data directory in use until it does");
            return;
        }
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

/// Raises the soft limit of open descriptors to the hard one: the usual 1,024 is that of programs that use select(2). A
/// connection takes a descriptor; a mount over io_uring two for each core that the machine may have.
pub fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, ?limit, "the limit of open descriptors could not be raised");
    }
}

/// The ports, taken. Who connects before the start is over waits.
#[derive(Debug)]
struct Doors {
    clients: TcpListener,
    /// With the port that it was given.
    local_addr: SocketAddr,
    metrics: Option<TcpListener>,
}

impl Doors {
    fn open(config: &ServerConfig) -> Result<Doors, StartError> {
        let refused = |source| StartError::Listen { address: config.listen, source };
        let clients = listen(config.listen).map_err(refused)?;
        let local_addr = clients.local_addr().map_err(refused)?;
        let metrics = match config.metrics {
            Some(address) => Some(listen(address).map_err(|source| StartError::Metrics { address, source })?),
            None => None,
        };
        Ok(Doors { clients, local_addr, metrics })
    }
}

/// A server that was killed a moment ago may not have let go of its port yet.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let began = Instant::now();
    let listener = loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < LETTING_GO => {
                std::thread::sleep(LETTING_GO / 20);
            }
            bound => break bound?,
        }
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_being_let_go_of_is_waited_for() {
        let ending = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ending.local_addr().unwrap();
        std::thread::scope(|scope| {
            let listening = scope.spawn(|| listen(address));
            std::thread::sleep(LETTING_GO / 4);
            drop(ending);
            assert_eq!(listening.join().unwrap().unwrap().local_addr().unwrap(), address);
        });
    }
}
