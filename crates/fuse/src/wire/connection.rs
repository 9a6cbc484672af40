//! How requests travel: over the device, or over io_uring where the kernel has that.

use super::abi::init;
use super::agreement::Agreement;
use super::descriptors::Descriptors;
use super::device::{Device, Hello};
use super::escort::Cores;
use super::obstacle::{Obstacle, against_auto, machine_obstacles};
use super::serve::{Dispatcher, Readers, Serving, read_device, serve_device, spare_readers};
use super::spare::Spare;
use super::uring::{self, AnyQueue, HandedQueues, Inheritance, QueueFault, Uring};
use super::{Handler, Sink, time_out};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use tokio::runtime::Handle;

/// With io_uring the device brings little: FORGET, INTERRUPT, the end.
const READERS_BESIDE_URING: Readers = Readers { threads: 1, cores: Cores::Free };

/// What requests travel on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Read from /dev/fuse.
    Dev,
    /// A queue for each core.
    Uring,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Dev => "dev",
            Transport::Uring => "uring",
        })
    }
}

/// Which one is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransportChoice {
    /// io_uring where it is sure to do, else the device.
    #[default]
    Auto,
    Only(Transport),
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportChoice::Auto => f.write_str("auto"),
            TransportChoice::Only(transport) => transport.fmt(f),
        }
    }
}

impl FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<TransportChoice, String> {
        match text {
            "auto" => Ok(TransportChoice::Auto),
            "dev" => Ok(TransportChoice::Only(Transport::Dev)),
            "uring" => Ok(TransportChoice::Only(Transport::Uring)),
            _ => Err(format!("`{text}` is none of auto, dev, uring")),
        }
    }
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0}")]
    Negotiation(#[from] io::Error),
    /// io_uring was asked for and cannot be had, and why.
    #[error("{0}")]
    NoUring(String),
}

/// Agreed with the kernel, not yet served.
#[derive(Debug)]
pub struct Connection {
    device: Arc<Device>,
    descriptors: Arc<Descriptors>,
    readers: Readers,
    agreement: Agreement,
    choice: TransportChoice,
    uring: Option<Uring>,
}

impl Connection {
    /// Answers the kernel's INIT. `readers`: of a connection without io_uring.
    ///
    /// # Errors
    /// The device's own; a kernel older than 5.4; no io_uring although it was asked for.
    pub fn negotiate(
        device: &Arc<Device>,
        choice: TransportChoice,
        readers: Readers,
    ) -> Result<Connection, ConnectError> {
        let hello = device.hello()?;
        let uring = match (choice, prepare_uring(device, &hello, choice)) {
            (_, Ok(uring)) => uring,
            (TransportChoice::Only(Transport::Uring), Err(why)) => {
                device.refuse(&hello);
                return Err(ConnectError::NoUring(why));
            }
            (_, Err(why)) => {
                tracing::info!(%why, "requests come over /dev/fuse, not io_uring");
                None
            }
        };
        let mut optional = if uring.is_some() { init::OVER_IO_URING } else { 0 };
        if time_out::is_to_be_asked_for() {
            optional |= init::REQUEST_TIMEOUT;
        }
        let agreement = device.accept(&hello, optional)?;
        // One that has io_uring, or was to have it, does with one.
        let wanted = if uring.is_some() { 1 } else { readers.threads };
        let (device, descriptors) = (device.clone(), Descriptors::new(device, Vec::new(), wanted));
        Ok(Connection { device, descriptors, readers, agreement, choice, uring })
    }

    /// For tests: when this is served the kernel refuses entries of the queue with this number, if there are queues.
    #[doc(hidden)]
    pub fn spoil(&mut self, queue: usize, fault: QueueFault) {
        self.uring.iter_mut().for_each(|uring| uring.spoil(queue, fault));
    }

    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Where answers go, whatever their request came over.
    pub fn answers(&self) -> Arc<dyn Sink> {
        answers_of(&self.descriptors, &self.device, self.uring.as_ref())
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// No thread could be started; no io_uring although it was asked for.
    pub fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        runtime: &Handle,
    ) -> Result<(Serving, Transport), ConnectError> {
        let dispatcher = Dispatcher::new(handler, &self.agreement);
        let device = |readers, uring: Option<&Uring>| {
            serve_device(&self.descriptors, readers, &dispatcher, uring, runtime)
        };
        let Some(uring) = self.uring else { return Ok((device(self.readers, None)?, Transport::Dev)) };
        self.device.do_not_wait()?;
        let mut serving = device(READERS_BESIDE_URING, Some(&uring))?;
        let (hurry, leave) = (uring.hurry(), uring.leave());
        match uring.start(&dispatcher, runtime) {
            Ok(queues) => {
                serving.add(queues, hurry, leave);
                Ok((serving, Transport::Uring))
            }
            Err(error) if self.choice == TransportChoice::Only(Transport::Uring) => {
                Err(ConnectError::NoUring(format!("the kernel refuses its queues: {error}")))
            }
            Err(error) => {
                tracing::warn!(%error, "requests come over /dev/fuse: the kernel refuses queues of io_uring");
                uring::decline(&self.device)?;
                self.device.do_wait()?;
                serving.join_later(device(self.readers, None)?);
                Ok((serving, Transport::Dev))
            }
        }
    }
}

/// A connection that another process has served until now. To serve it cannot fail.
#[derive(Debug)]
pub struct Inherited {
    device: Arc<Device>,
    descriptors: Arc<Descriptors>,
    agreement: Agreement,
    readers: (Vec<Spare>, Cores),
    queues: Option<Inheritance>,
}

impl Inherited {
    /// Starts all threads, which wait. `clones`: what [`Serving::descriptors`] says behind `device`. `queues`: of a connection
    /// over io_uring ([`Serving::hand_over_queues`]); `readers` are those of one without. Dropped, it leaves the connection
    /// alone.
    ///
    /// # Errors
    /// A thread cannot be started, or the queues cannot be taken over.
    pub fn prepare(
        device: &Arc<Device>,
        clones: Vec<OwnedFd>,
        agreement: Agreement,
        readers: Readers,
        queues: Option<&HandedQueues>,
    ) -> Result<Inherited, InheritError> {
        let readers = if queues.is_some() { READERS_BESIDE_URING } else { readers };
        let queues = queues.map(|queues| Inheritance::prepare(device, queues));
        let queues = queues.transpose().map_err(InheritError::Queues)?;
        let spare = spare_readers(readers.threads).map_err(InheritError::Threads)?;
        let clones = clones.into_iter().map(Device::new).collect();
        let (device, descriptors) = (device.clone(), Descriptors::new(device, clones, readers.threads));
        Ok(Inherited { device, descriptors, agreement, readers: (spare, readers.cores), queues })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Where answers go, whatever their request came over.
    pub fn answers(&self) -> Arc<dyn Sink> {
        answers_of(&self.descriptors, &self.device, self.queues.as_ref().map(Inheritance::uring))
    }

    /// Goes on.
    pub fn serve<H: Handler>(self, handler: Arc<H>, runtime: &Handle) -> (Serving, Transport) {
        let Inherited { descriptors, agreement, readers, queues, .. } = self;
        let dispatcher = Dispatcher::new(handler, &agreement);
        let uring = queues.as_ref().map(Inheritance::uring);
        let mut serving = read_device(&descriptors, readers, &dispatcher, uring, runtime);
        let Some(queues) = queues else { return (serving, Transport::Dev) };
        let (hurry, leave) = (queues.uring().hurry(), queues.uring().leave());
        serving.add(queues.start(&dispatcher, runtime), hurry, leave);
        (serving, Transport::Uring)
    }
}

/// Why a connection cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    #[error("cannot start the threads that would serve the mount: {0}")]
    Threads(io::Error),
    #[error("cannot go on with its queues of io_uring: {0}")]
    Queues(io::Error),
}

fn answers_of(descriptors: &Arc<Descriptors>, device: &Arc<Device>, uring: Option<&Uring>) -> Arc<dyn Sink> {
    match uring {
        Some(uring) => Arc::new(AnyQueue { device: device.clone(), queues: uring.queues() }),
        None => descriptors.clone(),
    }
}

fn prepare_uring(
    device: &Arc<Device>,
    hello: &Hello,
    choice: TransportChoice,
) -> Result<Option<Uring>, String> {
    if choice == TransportChoice::Only(Transport::Dev) {
        return Ok(None);
    }
    let kernel = hello.kernel_side();
    let obstacles = match (choice, kernel.offers_uring) {
        (TransportChoice::Auto, true) => against_auto(kernel),
        (TransportChoice::Only(_), true) => Vec::new(),
        // Whatever else there may be is not looked for.
        (_, false) => machine_obstacles(false),
    };
    if !obstacles.is_empty() {
        return Err(obstacles.iter().map(Obstacle::to_string).collect::<Vec<_>>().join("; "));
    }
    Uring::prepare(device).map(Some).map_err(|error| format!("a ring cannot be made: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_transports_read_back() {
        for name in ["auto", "dev", "uring"] {
            assert_eq!(name.parse::<TransportChoice>().unwrap().to_string(), name);
        }
        assert!("tcp".parse::<TransportChoice>().unwrap_err().contains("auto, dev, uring"));
    }
}
