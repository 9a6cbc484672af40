//! The kernel's side of a Soda mount: FUSE requests turned into calls of [`soda_client`], and recalls turned into
//! notifications that make the kernel drop what it caches.
//!
//! Code map: [`wire`] is the kernel's protocol and its device; `fs` answers requests; `nodes` and `handles` are what the kernel
//! knows; `notify` is how it is made to forget, `listings` what it may be taking in meanwhile; `last_bytes` is how it learns
//! that a file has become longer; `task` runs a request, `caller` is what can be seen of who made it; `mount` is mount(2), and
//! the process that looks after the daemon.
//!
//! Nothing here decides about leases: how long an answer may be kept is asked of the client, in the moment it is handed on.

mod believed;
mod caller;
mod errno;
mod fs;
mod handles;
mod kept_listing;
mod last_bytes;
mod listings;
mod mount;
mod nodes;
mod notify;
mod task;
mod unpoisoned;
pub mod wire;

pub use mount::{
    FILE_SYSTEM_TYPE, HANDOVER_FORMAT, HandOverError, Heir, Leaving, Monitor, Mount, MountAccess,
    MountConfig, MountEntry, MountError, MountFlags, MountStats, ReadyHeir, StayError, abort_connection,
    find_mount, guard, list_mounts, remount, unescape, visit,
};
pub use notify::Hooks;
pub use wire::close_on_exec;
pub use wire::connection::{Transport, TransportChoice};
pub use wire::{Cores, DESCRIPTORS_MAX};
pub use wire::{Obstacle, RequestTimeout, URING_SWITCH, auto_obstacles};
