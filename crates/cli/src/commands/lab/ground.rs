//! The ground on which experiments stand: nothing of it stays, however the lab ends.

use crate::commands::EndRequests;
use crate::commands::cleaner::{Cleaner, Manner};
use crate::error::CliError;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory for servers and mounts. When this is dropped, or the process is killed, a process of its own takes away what is
/// left there. SIGTERM and Ctrl-C end the process as soon as that is done.
#[derive(Debug)]
pub(super) struct Ground {
    cleaner: Arc<Mutex<Cleaner>>,
    scratch: Box<Path>,
}

impl Ground {
    pub(super) fn prepare() -> Result<Ground, CliError> {
        let cleaner = Cleaner::start("soda-lab.", Manner::AtOnce)?;
        let scratch = cleaner.scratch().into();
        let cleaner = Arc::new(Mutex::new(cleaner));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(CliError::io("cannot start threads"))?;
        let mut requests = {
            let _context = runtime.enter();
            EndRequests::listen()?
        };
        let waiting = Arc::clone(&cleaner);
        let wait = move || {
            let asked = runtime.block_on(requests.next());
            // Held until the process ends: what the experiment says of servers that vanish is of no interest.
            let mut cleaner = lock(&waiting);
            eprintln!("soda: asked to end: servers and mounts are taken away");
            cleaner.begin();
            cleaner.wait();
            // As a shell has it of who died of the signal.
            std::process::exit(128 + asked.as_raw_value());
        };
        std::thread::Builder::new()
            .name("end".into())
            .spawn(wait)
            .map_err(CliError::io("cannot start threads"))?;
        Ok(Ground { cleaner, scratch })
    }

    pub(super) fn scratch(&self) -> &Path {
        &self.scratch
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let mut cleaner = lock(&self.cleaner);
        cleaner.begin();
        cleaner.wait();
    }
}

fn lock(cleaner: &Mutex<Cleaner>) -> MutexGuard<'_, Cleaner> {
    cleaner.lock().unwrap_or_else(PoisonError::into_inner)
}
