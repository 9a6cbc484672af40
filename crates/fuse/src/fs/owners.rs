//! What only an inode's owner may do: checked once more, where it is done.
//!
//! Linux checks it before it asks (`setattr_prepare`, `set_posix_acl`, `check_sticky`), with the owner that it was told last; it
//! refreshes attributes before other checks of access, but not before these. Another machine may have given the file away since.

use super::Inner;
use crate::caller::{Capability, has_capability, is_in_group};
use soda_client::Cached;
use soda_types::{Attr, Creds, Errno, Fid, FsError, FsResult, Name, SetAttr, SetTime, mode};

/// Whether the change is the owner's to make (notify_change in Linux): a new size or the present time are not.
fn is_owners(set: &SetAttr) -> bool {
    let is_given = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || is_given(set.atime) || is_given(set.mtime)
}

/// chown(path, -1, -1), which drops set-user-id and set-group-id if the caller owns the file. Linux asks in the same words
/// before a change of contents by anybody; what changes them drops the bits itself.
fn is_to_nobody(set: &SetAttr) -> bool {
    *set == SetAttr { kill_suid_sgid: true, ..SetAttr::default() }
}

/// Carries out a change that only an owner may make; `change` takes who that has to be at the server.
///
/// User 0 is not asked about capabilities, which is what Linux has looked at.
pub(super) async fn as_owner<T, W>(creds: Creds, change: impl Fn(Option<u32>) -> W) -> FsResult<T>
where
    W: Future<Output = FsResult<T>>,
{
    if creds.uid == 0 {
        return change(None).await;
    }
    match change(Some(creds.uid)).await {
        Err(error) if error.errno == Errno::Perm && may_own_all(creds) => change(None).await,
        done => done,
    }
}

impl Inner {
    /// chmod, chown, truncate, utimensat on somebody's behalf.
    pub(super) async fn set_attributes(
        &self,
        fid: Fid,
        creds: Creds,
        mut set: SetAttr,
    ) -> FsResult<Cached<Attr>> {
        if let Some(perm) = set.perm
            && perm & mode::SET_GID != 0
            && creds.uid != 0
            && !may_set_group_id(creds, self.client.getattr(fid).await?.value.gid)
        {
            // chmod(2) by one who is not of the file's group.
            set.perm = Some(perm & !mode::SET_GID);
        }
        let change = |owner| self.client.setattr_if(fid, set, owner);
        match is_owners(&set) {
            true => as_owner(creds, change).await,
            false if is_to_nobody(&set) => match as_owner(creds, change).await {
                Err(error) if error.errno == Errno::Perm => {
                    self.client.setattr(fid, SetAttr::default()).await
                }
                done => done,
            },
            false => change(None).await,
        }
    }

    /// Whether the sticky bit of `dir` lets the caller take `name` away.
    ///
    /// # Errors
    /// EPERM.
    pub(super) async fn check_sticky(&self, creds: Creds, dir: Fid, name: &Name) -> FsResult<()> {
        if creds.uid == 0 {
            return Ok(());
        }
        // The kernel has asked for the directory's attributes just now, to see whether it can be written to.
        let told = self.nodes.last_of_directory(dir);
        if told.is_some_and(|attr| attr.perm & mode::STICKY == 0 || attr.uid == creds.uid) {
            return Ok(());
        }
        let attr = self.client.getattr(dir).await?.value;
        if attr.perm & mode::STICKY == 0 || attr.uid == creds.uid {
            return Ok(());
        }
        let victim = self.client.lookup(dir, name).await?.node;
        match victim {
            Some(victim) if victim.attr.uid != creds.uid && !may_own_all(creds) => {
                Err(FsError::new(Errno::Perm, "the directory is sticky, and it is somebody else's"))
            }
            _ => Ok(()),
        }
    }
}

fn may_own_all(creds: Creds) -> bool {
    has_capability(creds.pid, Capability::FileOwner) == Some(true)
}

/// Linux has looked, too, by the group that it was told last: that stands where nobody here can say.
fn may_set_group_id(creds: Creds, gid: u32) -> bool {
    creds.gid == gid
        || is_in_group(creds.pid, gid)
        || has_capability(creds.pid, Capability::SetGroupId).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_size_and_the_present_time_are_not_the_owners() {
        let set = SetAttr { size: Some(1), mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert!(!is_owners(&set));
        assert!(is_owners(&SetAttr { perm: Some(0o600), ..set }));
        assert!(is_owners(&SetAttr { mtime: Some(SetTime::At(Default::default())), ..set }));
    }

    /// A thread of another PID namespace has 0 for a number.
    #[test]
    fn what_linux_allowed_to_who_cannot_be_seen_stands() {
        assert!(may_set_group_id(Creds { uid: 1000, gid: 1000, pid: 0 }, 7));
    }

    #[tokio::test]
    async fn who_has_no_capability_is_asked_for_once() {
        let change = |owner: Option<u32>| async move { owner.map_or(Ok(0), |_| Err(Errno::Perm.into())) };
        let nobody = Creds { uid: 65_534, gid: 0, pid: u32::MAX };
        assert_eq!(as_owner(nobody, change).await.map_err(|error| error.errno), Err(Errno::Perm));
        assert_eq!(as_owner(Creds { uid: 0, ..nobody }, change).await.map_err(|error| error.errno), Ok(0));
    }
}
