//! The server: drives the lease table and a volume, serves the protocol. Thin: what a file system means is in
//! `soda-volume`, who may do what when is in `soda-lease`.
//!
//! ```no_run
//! # fn main() -> Result<(), soda_server::StartError> {
//! let server = soda_server::Server::start(soda_server::ServerConfig::new("/var/lib/soda"))?;
//! println!("listening on {}", server.local_addr());
//! # Ok(()) }
//! ```
//!
//! # The way of a request
//! A task per connection (`net`) reads frames. A `hello` makes the connection a session's control or data
//! connection (`link`), or a tool's (`admin`). The `reader` renews the session with all that arrives and takes answers to
//! recalls; calls are left to the connection's `worker`, a second task, which has a place (`places`) to wait for the store in.
//! Calls about files (`call`) are planned, admitted by the lease table (`guard`), carried out on the volume in one transaction
//! together with their reply (`session::slots`), and finished, which turns what they used into leases that leave with the
//! reply. All that on the worker's task as long as nobody has to be waited for.
//!
//! # The rooms, from the ground up
//! Who is named in a later point uses who is named in an earlier one, never the other way round.
//!
//! * Tools: `clock`, `random`, `rounds` (which start of the server, which round of syncs), `config`, `starting`, `memory`,
//!   `metrics`, `troubles` (what is logged seldom), `net` (sockets, and the memory of what came on them), `respond` (how a reply
//!   is encoded), `places`, `sync` (group commit).
//! * Stored: `records` (what is in the store beside the volume), `durability` (which changes are known to be on the medium).
//! * State: `session` (slots, open files), `link` (a connection with what arrived on it), `put_off` (calls
//!   about locks that wait for a delegate), `core` (what the one lock guards), `agenda` (what is noted for others to do),
//!   `shared` (all that every part knows).
//! * The lock: `guard` locks the core and carries out what the table decides; `lock_waits` and `register` (the store's list of
//!   sessions) stand on it.
//! * A request: `call`, `locking` and `reclaim` do what it asks for; `reader` and `worker` are its way in, on a connection that
//!   is `served`. `admin` answers tools. `hello` begins and resumes sessions, and `accept` decides by it which of these a
//!   connection gets.
//! * `upkeep` is what nobody asks for. `error` is why a start fails, `restore` what it finds; `server` starts and stops
//!   everything.
//!
//! # What nothing here does
//! Nothing waits for the network or the store while it holds the core's lock. (It logs there, so who collects the log must not
//! wait either: the program `soda` has a thread that writes it.) No operation touches the volume without having been admitted.
//! Nothing but `clock` reads a clock that leases depend on.

mod accept;
mod admin;
mod agenda;
mod call;
mod clock;
mod config;
mod core;
mod durability;
mod error;
mod guard;
mod hello;
mod link;
mod lock_waits;
mod locking;
mod memory;
mod metrics;
mod net;
mod places;
mod put_off;
mod random;
mod reader;
mod reclaim;
mod records;
mod register;
mod respond;
mod restore;
mod rounds;
mod served;
mod server;
mod session;
mod shared;
mod starting;
mod sync;
mod troubles;
mod upkeep;
mod worker;

pub use config::{CacheSizes, Equation8, Exposure, Limits, ServerConfig};
pub use error::StartError;
pub use memory::resident_memory;
pub use random::random;
pub use records::RecordError;
pub use restore::Stores;
pub use rounds::BootId;
pub use server::{ListeningServer, RunningServer, Server, allow_descriptors};
pub use session::check::{DamagedRecord, check_records};
pub use session::lost::settle_lost_records;
pub use soda_lease::table::{BackOff, DeepLeases, ObjectTerm, WriteLeases};
