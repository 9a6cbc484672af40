//! `mount -o remount`: what it may change, and what only a new mount can.

use crate::options::MountOptions;
use soda_client::{Access, CacheConfig, WriteBehind};
use soda_fuse::{MountAccess, MountFlags};
use std::path::{Path, PathBuf};

/// The flags for the kernel, of a mount whose daemon runs with the options `running`. What was given and is as it was does
/// no harm: mount(8) hands over what stands in fstab.
///
/// # Errors
/// A text that names the options that its daemon cannot change.
pub(crate) fn flags(running: &str, lists: &[String], cache_dir: Option<&Path>) -> Result<MountFlags, String> {
    let mut given = MountOptions::default();
    lists.iter().try_for_each(|list| given.add(list))?;
    let mut is = MountOptions::default();
    is.add(running)?;
    // That it is not what the mount has is no contradiction in terms.
    let mut wanted = MountOptions { retry: None, ..is.clone() };
    lists.iter().try_for_each(|list| wanted.add(list))?;
    wanted.retry = wanted.retry.or(is.retry);
    if let Some(dir) = cache_dir {
        wanted.cache_dir = Some(dir.to_path_buf());
    }
    let fixed = differences(&is.in_effect(), &wanted.in_effect());
    if !fixed.is_empty() {
        return Err(format!(
            "a remount cannot change {}: unmount and mount again. It was mounted with {running}",
            fixed.join(", ")
        ));
    }
    wanted.check()?;
    Ok(match wanted.access {
        Access::ReadOnly => MountFlags { access: MountAccess::ReadOnly, ..given.flags },
        Access::ReadWrite => given.flags,
    })
}

/// The daemon's options that are not the same. A daemon that may write does no harm to a mount that may not.
fn differences(is: &MountOptions, wanted: &MountOptions) -> Vec<&'static str> {
    let defaults = CacheConfig::default();
    let dir = |options: &MountOptions| {
        // The daemon tells it as text.
        options.cache_dir.as_ref().map(|dir| PathBuf::from(dir.to_string_lossy().as_ref()))
    };
    let memory = |options: &MountOptions| options.memory.unwrap_or(defaults.memory_bytes);
    let metadata = |options: &MountOptions| options.metadata_memory.unwrap_or(defaults.metadata_bytes);
    let size = |options: &MountOptions| options.cache_size.unwrap_or(defaults.dir_bytes);
    let idle = |options: &MountOptions| options.lease_idle.unwrap_or(defaults.idle);
    let delay = WriteBehind::default();
    let reserve_idle = |options: &MountOptions| options.reserve_idle.unwrap_or(delay.reserve_idle);
    let differ = [
        ("ro", is.access == Access::ReadOnly && wanted.access == Access::ReadWrite),
        ("hard or soft", is.retry() != wanted.retry()),
        ("consistency", is.consistency != wanted.consistency),
        ("write", is.write != wanted.write),
        ("dirty-age", is.dirty_age != wanted.dirty_age),
        ("dirty-size", is.dirty_size != wanted.dirty_size),
        ("digest-size", is.digest_bytes() != wanted.digest_bytes()),
        ("reserve-idle", reserve_idle(is) != reserve_idle(wanted)),
        ("fsync", is.fsync != wanted.fsync),
        ("lease-term", is.lease_term != wanted.lease_term),
        ("lease-idle", idle(is) != idle(wanted)),
        ("lease-poll", is.lease_poll != wanted.lease_poll),
        ("deep-leases", is.widest_lease != wanted.widest_lease),
        ("locks", is.locks != wanted.locks),
        ("cache-dir", dir(is) != dir(wanted)),
        ("cache-size", size(is) != size(wanted)),
        ("memory", memory(is) != memory(wanted)),
        ("metadata-memory", metadata(is) != metadata(wanted)),
        ("transport", is.transport != wanted.transport),
        ("cores", is.cores != wanted.cores),
    ];
    differ.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remount(mounted: &str, given: &str) -> Result<MountFlags, String> {
        let mut options = MountOptions::default();
        options.add(mounted).unwrap();
        flags(&options.in_effect().to_list(), &["remount".to_owned(), given.to_owned()], None)
    }

    #[test]
    fn what_the_daemon_cannot_change_is_named() {
        for (mounted, given, named) in [
            ("", "soft=5s", "hard or soft"),
            ("soft=5s", "soft=6s", "hard or soft"),
            ("soft=5s", "hard", "hard or soft"),
            ("", "consistency=verify,cache-dir=/x", "consistency, write, dirty-age, dirty-size, cache-dir"),
            ("consistency=ttl=3", "consistency=ttl=4", "consistency"),
            ("", "write=through", "write, dirty-age, dirty-size"),
            ("sync", "write=behind", "write, dirty-age, dirty-size"),
            ("write=behind", "dirty-age=5s", "dirty-age"),
            ("write=behind", "digest-size=2M,reserve-idle=1s", "digest-size, reserve-idle"),
            ("", "lease-idle=1s", "lease-idle"),
            ("write=behind,cache-dir=/c", "fsync=local", "fsync"),
            ("", "lease-term=0", "lease-term"),
            ("", "deep-leases=off", "deep-leases"),
            ("", "locks=server", "locks"),
            ("cache-dir=/c", "cache-dir=/d,cache-size=1G", "cache-dir, cache-size"),
            ("memory=1G", "memory=2G", "memory"),
            ("metadata-memory=1G", "metadata-memory=2G", "metadata-memory"),
            ("", "transport=dev", "transport"),
            ("", "cores=follow", "cores"),
            ("ro", "rw", "ro"),
        ] {
            let refused = remount(mounted, given).unwrap_err();
            assert!(refused.starts_with(&format!("a remount cannot change {named}: unmount")), "{refused}");
        }
        let other = flags("hard", &["remount".into()], Some(Path::new("/x"))).unwrap_err();
        assert!(other.contains("cache-dir"), "{other}");
        assert!(remount("sync", "dirty-age=1s").unwrap_err().contains("leave out write=through"));
        assert!(remount("", "hard,soft").unwrap_err().contains("contradict"));
    }

    #[test]
    fn what_is_the_same_or_the_kernels_is_taken() {
        let fstab =
            "soft=5s,write=behind,dirty-age=2s,cache-dir=/var/a\\,b,cache-size=1G,lease-term=30s,_netdev";
        let in_vain = "write=behind,consistency=verify";
        for (mounted, given) in [
            (
                "",
                "hard,memory=512M,consistency=lease,write=behind,fsync=server,deep-leases=on,locks=delegated",
            ),
            ("soft=1500us", "soft=1.5ms"),
            ("write=behind", "lease-idle=10m,digest-size=4M,reserve-idle=30s"),
            ("dirty-size=8M", "dirty-size=8M,digest-size=2M"),
            (fstab, fstab),
            (fstab, ""),
            (in_vain, in_vain),
            ("", "rw,noatime,user_id=0,group_id=0,default_permissions,allow_other"),
        ] {
            assert!(remount(mounted, given).is_ok(), "{mounted}: {given}");
        }
        let flags = remount("soft", "ro,nosuid,nodev,noexec").unwrap();
        assert_eq!(flags.access, MountAccess::ReadOnly);
        assert!(flags.no_suid && flags.no_dev && flags.no_exec);
        assert_eq!(remount("", "rw").unwrap().access, MountAccess::ReadWrite);
        assert_eq!(remount("ro", "nosuid").unwrap().access, MountAccess::ReadOnly);
    }
}
