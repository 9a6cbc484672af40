//! A connection of a session, and the server that serves it.

use crate::link::Link;
use crate::shared::Shared;
use std::sync::Arc;

/// A connection that is served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Arc<Link>,
}
