//! The kinds of calls, as they are counted and logged, and what each is for: who sorts counted calls asks here.

use crate::Call;

macro_rules! call_kinds {
    ($($name:ident => $text:literal),* $(,)?) => {
        /// The calls of the protocol, without what is in them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum CallKind { $($name),* }

        impl CallKind {
            pub const ALL: &'static [CallKind] = &[$(CallKind::$name),*];

            /// As counters have it: `calls.NAME` of a server, `msg_NAME` of a mount.
            pub fn name(self) -> &'static str {
                match self { $(CallKind::$name => $text),* }
            }
        }

        impl From<&Call> for CallKind {
            fn from(call: &Call) -> CallKind {
                match call { $(Call::$name { .. } => CallKind::$name),* }
            }
        }
    };
}

call_kinds! {
    Hello => "hello", Renew => "renew", Reclaim => "reclaim", Goodbye => "goodbye",
    Lookup => "lookup", GetAttr => "getattr", ReadLink => "readlink", ReadDir => "readdir",
    GetXattrs => "getxattrs", GetXattr => "getxattr", Read => "read", Seek => "seek", StatFs => "statfs",
    Create => "create", Link => "link", Unlink => "unlink", Rename => "rename", TmpFile => "tmpfile",
    SetAttr => "setattr", Write => "write", Allocate => "allocate", CopyRange => "copyrange",
    SetXattr => "setxattr", RemoveXattr => "removexattr", Sync => "sync", Opened => "opened",
    Digest => "digest", Reserve => "reserve", LockTest => "locktest", LockSet => "lockset",
    LockRelease => "lockrelease", Admin => "admin", Layout => "layout",
    Stat => "stat", LookupStat => "lookupstat", LockReturn => "lockreturn", Fetch => "fetch",
}

/// What a call does to what clients may have cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Asks what is there: a cache under a lease spares it.
    Read,
    /// Changes something, by itself.
    Change,
    /// Tells changes that the client made before, many at once.
    Digest,
    /// Makes changes durable.
    Sync,
    /// Keeps a file that is open without a lease.
    Open,
    /// About byte-range locks.
    Lock,
    /// Sessions, room that is set aside, tools: nothing that is cached.
    Upkeep,
}

impl Purpose {
    /// Whether calls for it are what consistency costs, as the models count: there would be none if caches needed no leases.
    /// Changes, and what makes them durable, would be there.
    pub fn is_for_consistency(self) -> bool {
        matches!(self, Purpose::Read | Purpose::Open | Purpose::Lock)
    }
}

impl CallKind {
    /// The kind that counters have under this name.
    pub fn named(name: &str) -> Option<CallKind> {
        CallKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    pub fn purpose(self) -> Purpose {
        match self {
            CallKind::Lookup
            | CallKind::LookupStat
            | CallKind::GetAttr
            | CallKind::Stat
            | CallKind::ReadLink
            | CallKind::ReadDir
            | CallKind::GetXattrs
            | CallKind::GetXattr
            | CallKind::Read
            | CallKind::Fetch
            | CallKind::Seek
            | CallKind::Layout => Purpose::Read,
            CallKind::Create
            | CallKind::Link
            | CallKind::Unlink
            | CallKind::Rename
            | CallKind::TmpFile
            | CallKind::SetAttr
            | CallKind::Write
            | CallKind::Allocate
            | CallKind::CopyRange
            | CallKind::SetXattr
            | CallKind::RemoveXattr => Purpose::Change,
            CallKind::Digest => Purpose::Digest,
            CallKind::Sync => Purpose::Sync,
            CallKind::Opened => Purpose::Open,
            CallKind::LockTest | CallKind::LockSet | CallKind::LockRelease | CallKind::LockReturn => {
                Purpose::Lock
            }
            CallKind::Hello
            | CallKind::Renew
            | CallKind::Reclaim
            | CallKind::Goodbye
            | CallKind::StatFs
            | CallKind::Reserve
            | CallKind::Admin => Purpose::Upkeep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_kinds() {
        for kind in CallKind::ALL {
            assert_eq!(CallKind::named(kind.name()), Some(*kind), "a name is used twice");
        }
        assert_eq!(CallKind::named("recallack"), None, "a note is no call");
    }
}
