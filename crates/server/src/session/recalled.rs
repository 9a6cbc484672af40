//! Whether leases of a session have just been recalled, for whoever works for it meanwhile.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Tell = Box<dyn Fn() + Send>;

/// Who hears of it. There is one at most: a session's digests are carried out one after the other.
#[derive(Default)]
pub(crate) struct Recalled(Mutex<Option<Tell>>);

/// Hears of it until it is dropped.
#[derive(Debug)]
pub(crate) struct Hears<'a>(&'a Recalled);

impl Recalled {
    /// From now on `tell` is called for each recall that leaves, or would if the session had a connection. It must not wait: the
    /// core is locked.
    pub(crate) fn hear(&self, tell: impl Fn() + Send + 'static) -> Hears<'_> {
        *self.tell() = Some(Box::new(tell));
        Hears(self)
    }

    pub(crate) fn note(&self) {
        if let Some(tell) = &*self.tell() {
            tell();
        }
    }

    fn tell(&self) -> MutexGuard<'_, Option<Tell>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hears<'_> {
    fn drop(&mut self) {
        *self.0.tell() = None;
    }
}

impl fmt::Debug for Recalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recalled").field(&self.tell().is_some()).finish()
    }
}
