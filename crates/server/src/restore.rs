//! What a start takes up of earlier runs: the volume, the sessions that may come back, the terms that clients still count on.

use crate::clock;
use crate::config::{Equation8, ServerConfig};
use crate::core::{Core, EPOCHS_PER_START, Entry, OWN_SESSION, Standing};
use crate::durability::Durability;
use crate::error::StartError;
use crate::random::random;
use crate::records::{self, ServerRecord};
use crate::session::Session;
use soda_lease::locks::LockTable;
use soda_lease::space::Space;
use soda_lease::table::{self, BackOff, LeaseTable, TableConfig};
use soda_storage::{Batch, DataStore, MetaStore, Table, crash};
use soda_types::Epoch;
use soda_volume::{Volume, VolumeConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where a server keeps everything.
#[derive(Clone, Debug)]
pub struct Stores {
    pub meta: Arc<dyn MetaStore>,
    pub data: Arc<dyn DataStore>,
    /// For people.
    pub path: PathBuf,
}

/// This run of the server.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) record: ServerRecord,
    /// The longest term that a client may count on from before.
    promised: Duration,
    pub(crate) durability: Arc<Durability>,
}

pub(crate) fn open_volume(config: &ServerConfig, stores: &Stores) -> Result<Arc<Volume>, StartError> {
    let by_chance = || random().map(u64::from_le_bytes).map_err(StartError::Random);
    let options = VolumeConfig {
        chunk_cache: usize::try_from(config.cache.data).unwrap_or(usize::MAX),
        created: clock::calendar(),
        quota: config.quota,
        branch: config.branch.map_or_else(by_chance, Ok)?,
        ..VolumeConfig::default()
    };
    let volume = Volume::open(stores.meta.clone(), stores.data.clone(), options);
    let volume = volume.map_err(|cause| StartError::Volume { path: stores.path.clone(), cause })?;
    Ok(Arc::new(volume))
}

/// Records a start, durably: epochs of this run are above those of all others.
pub(crate) fn begin_run(meta: &dyn MetaStore, config: &ServerConfig) -> Result<Run, StartError> {
    let before = records::load_server(meta)?;
    // A client that was cut off two runs ago has not heard of the last run's term.
    let term = config.term.max(before.term);
    let record = ServerRecord { starts: before.starts + 1, term, last_session: before.last_session };
    let mut batch = Batch::releasing();
    batch.put(Table::Server, records::server_key(), records::encode(&record));
    let durability = Durability::begin(meta, record.starts, config.boot_id.clone())?;
    durability.put_beginning(&mut batch);
    meta.commit(batch)?;
    meta.sync()?;
    crash::point("server.started");
    Ok(Run { record, promised: before.term, durability: Arc::new(durability) })
}

pub(crate) fn restore(
    config: &ServerConfig,
    volume: &Volume,
    path: &Path,
    run: &Run,
    space: &Space,
) -> Result<Core, StartError> {
    let now = clock::monotonic();
    let mut table_config = table_config(config, volume)?;
    // A client may hold on to the lease that an earlier run gave it.
    table_config.grace = table_config.grace.max(run.promised.saturating_add(run.promised / 20));
    let first_epoch = Epoch(run.record.starts << EPOCHS_PER_START);
    let mut core =
        Core::new(LeaseTable::new(table_config, first_epoch, now), LockTable::default(), &run.record);
    core.table.open_session(now, OWN_SESSION);
    let mut known = Vec::new();
    for stored in records::load_sessions(volume.meta())? {
        known.push(stored.id);
        space.restore(stored.id, stored.space);
        let session = Arc::new(Session::restore(stored, config.limits.slots, &run.durability));
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
        volume_terms.insert(volume.id(), *term);
    }
    Ok(TableConfig {
        grace: config.grace,
        object_term: config.object_term,
        volume_terms,
        write_leases: config.write_leases,
        equation_8: match config.equation_8 {
            Equation8::On => defaults.equation_8,
            Equation8::Off => table::Equation8::Off,
        },
        back_off: config.back_off.unwrap_or(match config.equation_8 {
            Equation8::On => defaults.back_off,
            Equation8::Off => BackOff::Off,
        }),
        deep_leases: config.deep_leases,
        ..defaults
    })
}
