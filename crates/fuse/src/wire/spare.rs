//! Threads that are there before they have anything to do: what is begun with them cannot fail for want of a thread.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

type Work = Box<dyn FnOnce() + Send>;

/// A thread that waits for its work. Dropped without any, it ends.
#[derive(Debug)]
pub(crate) struct Spare {
    work: Sender<Work>,
    thread: JoinHandle<()>,
}

impl Spare {
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(name: &str) -> io::Result<Spare> {
        let (work, wanted) = channel::<Work>();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            // An error: there is nothing to do.
            if let Ok(work) = wanted.recv() {
                work();
            }
        })?;
        Ok(Spare { work, thread })
    }

    pub(crate) fn run(self, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // It waits for nothing else.
        let _ = self.work.send(Box::new(work));
        self.thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_thread_does_its_work_or_ends_without() {
        let [busy, idle] = ["busy", "idle"].map(|name| Spare::start(name).unwrap());
        let (tell, told) = channel();
        let tells = move || tell.send(std::thread::current().name().map(str::to_owned)).unwrap();
        busy.run(tells).join().unwrap();
        assert_eq!(told.recv().unwrap().as_deref(), Some("busy"));
        let Spare { work, thread } = idle;
        drop(work);
        thread.join().unwrap();
    }
}
