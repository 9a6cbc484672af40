//! What this machine's mount does with an object: the lease that covers it, whether changes are delayed, who decides about its
//! file locks.

use super::locks::{delegate_text, with_article};
use super::mode_text;
use crate::units::count;
use soda_client::{ChangesView, LocksView, OwnLease, Told, Why};
use soda_protocol::{DelegateInfo, WhyInfo};
use soda_types::{Lock, Scope, SessionId};

/// Most of this machine's locks that are listed.
const OWN_LOCKS_SHOWN: usize = 10;

/// What the server says of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said<'a> {
    That(&'a WhyInfo),
    HasNotHeardOfIt,
    NoAnswer,
}

impl<'a> Said<'a> {
    fn info(self) -> Option<&'a WhyInfo> {
        match self {
            Said::That(info) => Some(info),
            Said::HasNotHeardOfIt | Said::NoAnswer => None,
        }
    }
}

/// Which lease of this machine covers it, or why none does.
pub(super) fn covered_text(changes: &ChangesView, said: Said<'_>) -> String {
    let info = said.info();
    let is_own = |session: SessionId| changes.session == Some(session);
    let hole = info.and_then(|info| info.holes.iter().find(|hole| is_own(hole.session)));
    let hole = hole.map(|hole| {
        let root = hole.path.clone().unwrap_or_else(|| hole.root.to_string());
        let kept = hole.kept.map_or("nothing", mode_text);
        let mode = mode_text(hole.mode);
        format!("this machine's deep {mode} lease on {root} has a hole here, as another machine used it: {kept} is left")
    });
    let own = match changes.lease {
        Some(OwnLease { scope: Scope::Node, mode }) => {
            Some(format!("this machine has a {} lease on it alone", mode_text(mode)))
        }
        Some(OwnLease { scope: Scope::Subtree, mode }) => {
            let holders = info.into_iter().flat_map(|info| &info.holders);
            let mut deep =
                holders.filter(|holder| is_own(holder.session) && holder.grant.scope == Scope::Subtree);
            let root =
                deep.next().map(|deep| deep.path.clone().unwrap_or_else(|| deep.grant.fid.to_string()));
            let root = root.map_or_else(|| "a directory above it".into(), |root| format!("all below {root}"));
            Some(format!("this machine has a deep {} lease, on {root}", mode_text(mode)))
        }
        None if matches!(said, Said::HasNotHeardOfIt) => {
            Some("the server does not know it, so nobody else can use it".into())
        }
        None => None,
    };
    match (own, hole) {
        (Some(own), Some(hole)) => format!("{own}; {hole}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "none of this machine's covers it".into(),
    }
}

/// Who decides about its file locks.
pub(super) fn locks_text(changes: &ChangesView, said: Said<'_>) -> String {
    let delegate = said.info().and_then(|info| info.lock_delegate.as_ref());
    let is_own = |delegate: &&DelegateInfo| changes.session == Some(delegate.session);
    let (is_delegate, others) =
        (delegate.is_some_and(|one| is_own(&one)), delegate.filter(|one| !is_own(one)));
    match (changes.locks, others) {
        (_, Some(delegate)) => delegate_text(delegate),
        (LocksView::Here, None) => {
            format!(
                "this machine takes and releases its file locks without asking, until another one asks for one; {}",
                own_locks_text(changes)
            )
        }
        (LocksView::Server | LocksView::ServerAlways, None) if is_delegate => {
            "this machine takes and releases its file locks without asking; which it has cannot be said, as nobody has looked \
             this path up here lately"
                .into()
        }
        (LocksView::Server, None) => {
            "the server is asked for its file locks; who asks first, with nobody else there, need not ask again".into()
        }
        (LocksView::ServerAlways, None) => "the server is asked for each file lock: locks=server, or no leases".into(),
    }
}

/// Those that this machine has on it.
fn own_locks_text(changes: &ChangesView) -> String {
    if changes.own_locks.is_empty() {
        return "it has none now".into();
    }
    let one = |lock: &Lock| format!("\n        {} (process {})", with_article(lock), lock.pid);
    let shown = &changes.own_locks[..changes.own_locks.len().min(OWN_LOCKS_SHOWN)];
    let more = (changes.own_locks.len() - shown.len()) as u64 + changes.more_own_locks;
    let more = if more > 0 { format!("\n        and {} more", count(more, "lock")) } else { String::new() };
    format!("it has{}{more}", shown.iter().map(one).collect::<String>())
}

/// What this machine does with changes of it.
pub(super) fn changes_text(changes: &ChangesView) -> String {
    let told = match changes.told {
        Told::Later => "changes made here are told to the server later".into(),
        Told::AtOnce(why) => format!("changes made here go to the server at once: {}", why_text(why)),
    };
    let told = match changes.waiting {
        0 => told,
        waiting => format!("{told}; {} of it not told yet", count(waiting, "change")),
    };
    match changes.last_at_once {
        Some(why) if changes.told != Told::AtOnce(why) => {
            format!("{told}\n        the last one went to the server at once: {}", past_text(why))
        }
        _ => told,
    }
}

fn why_text(why: Why) -> &'static str {
    match why {
        Why::Policy => "the mount has write=through, or takes no leases",
        Why::NoLease => {
            "this machine has no write lease on it. It gets one when it changes it and nobody else has it cached"
        }
        Why::Recalled => "another machine has just asked for it",
        Why::Contended => "another operation on it is on its way to the server",
        Why::Unknown => "this machine knows nothing of it, as nobody has used it here lately",
        Why::AccessList => "it has an access control list that is not understood here",
        Why::Reservation => "the server has to set inode numbers or space aside first",
        Why::Large => "it was too large: so much data is faster by itself",
        Why::Kind => "only the server can do it",
        Why::LocalDisk => "the disk with the cache directory has no room for the operation log",
    }
}

/// As [`why_text`], of a change that was made before: it need not be so any more.
fn past_text(why: Why) -> &'static str {
    match why {
        Why::Policy => "the mount had write=through, or took no leases",
        Why::NoLease => "this machine had no write lease on it then",
        Why::Recalled => "another machine had just asked for it",
        Why::Contended => "another operation on it was on its way to the server",
        Why::Unknown => "this machine knew nothing of it then, as nobody had used it here before",
        Why::AccessList => "it had an access control list that is not understood here",
        Why::Reservation => "the server had to set inode numbers or space aside first",
        Why::Large => "it was too large: so much data is faster by itself",
        Why::Kind => "only the server could do it",
        Why::LocalDisk => "the disk with the cache directory had no room for the operation log",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::locks::tests::flock;
    use super::super::tests::{fid, lease, why};
    use super::*;
    use soda_protocol::{HoleInfo, LeaseInfo};
    use soda_types::{Grant, Mode};
    use std::time::Duration;

    pub(crate) fn changes() -> ChangesView {
        ChangesView {
            told: Told::Later,
            waiting: 0,
            last_at_once: None,
            lease: None,
            locks: LocksView::Server,
            own_locks: Vec::new(),
            more_own_locks: 0,
            session: Some(SessionId(1)),
        }
    }

    #[test]
    fn which_lease_covers_it_and_what_a_hole_left() {
        let node = lease(1, "one:/mnt", Mode::Write, None);
        let grant = Grant { scope: Scope::Subtree, ..node.grant };
        let deep = LeaseInfo { grant, path: Some("/home".into()), ..node };
        let of_other = LeaseInfo { session: SessionId(2), path: Some("/".into()), ..deep.clone() };
        let own = |scope, mode| ChangesView { lease: Some(OwnLease { scope, mode }), ..changes() };
        let covered = WhyInfo { holders: vec![of_other, deep], ..why() };
        assert_eq!(
            covered_text(&own(Scope::Subtree, Mode::Write), Said::That(&covered)),
            "this machine has a deep write lease, on all below /home"
        );
        assert_eq!(covered_text(&changes(), Said::That(&covered)), "none of this machine's covers it");
        assert_eq!(
            covered_text(&changes(), Said::HasNotHeardOfIt),
            "the server does not know it, so nobody else can use it"
        );
        assert_eq!(covered_text(&changes(), Said::NoAnswer), "none of this machine's covers it");
        let hole = |session, kept| HoleInfo {
            session: SessionId(session),
            holder: "one:/mnt".into(),
            root: fid(),
            path: Some("/home".into()),
            mode: Mode::Write,
            kept,
        };
        let shared = WhyInfo { holes: vec![hole(2, None), hole(1, Some(Mode::Read))], ..why() };
        assert_eq!(
            covered_text(&own(Scope::Node, Mode::Read), Said::That(&shared)),
            "this machine has a read lease on it alone; this machine's deep write lease on /home has a hole here, as \
             another machine used it: read is left"
        );
        let theirs = WhyInfo { holes: vec![hole(2, None)], ..why() };
        assert_eq!(covered_text(&changes(), Said::That(&theirs)), "none of this machine's covers it");
    }

    #[test]
    fn who_decides_about_locks() {
        let here = ChangesView { locks: LocksView::Here, ..changes() };
        assert!(locks_text(&here, Said::That(&why())).starts_with("this machine takes and releases"));
        assert!(locks_text(&changes(), Said::NoAnswer).starts_with("the server is asked"));
        let delegate = |session, recalled_for| {
            let name = "two:/mnt".into();
            let lock_delegate = Some(DelegateInfo { session: SessionId(session), name, recalled_for });
            WhyInfo { lock_delegate, ..why() }
        };
        assert_eq!(
            locks_text(&changes(), Said::That(&delegate(2, Some(Duration::from_secs(1))))),
            "two:/mnt takes and releases its file locks without asking; the server asked for that back 1.0 s ago"
        );
        assert!(locks_text(&here, Said::That(&delegate(1, None))).ends_with("asks for one; it has none now"));
        let unknown = locks_text(&changes(), Said::That(&delegate(1, None)));
        assert!(unknown.contains("cannot be said"), "{unknown}");
        let own_locks = (1..=12).map(flock).collect();
        let text =
            locks_text(&ChangesView { own_locks, more_own_locks: 3, ..here }, Said::That(&delegate(1, None)));
        assert!(text.contains("; it has\n        an exclusive flock (process 1)\n"), "{text}");
        assert!(text.ends_with("(process 10)\n        and 5 locks more"), "{text}");
    }
}
