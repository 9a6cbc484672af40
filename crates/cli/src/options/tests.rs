use super::*;

fn parse(list: &str) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    options.add(list).map(|()| options)
}

#[test]
fn a_list_reads_back() {
    let list = "soft=5s,ro,consistency=ttl=3,cache-dir=/var/c,cache-size=1G,nosuid,nodev";
    let options = parse(list).unwrap();
    assert_eq!(options.retry, Some(Retry::Soft { timeout: Duration::from_secs(5) }));
    assert_eq!(options.consistency, Consistency::Ttl(Duration::from_secs(3)));
    assert_eq!(options.cache_size, Some(1 << 30));
    assert_eq!(parse(&options.to_list()).unwrap(), options);
}

#[test]
fn terms_of_leases_read_back() {
    let terms = [
        ("0", ObjectTerm::None),
        ("1.5s", ObjectTerm::For(Duration::from_millis(1500))),
        ("infinite", ObjectTerm::Session),
        ("session", ObjectTerm::Session),
    ];
    for (text, term) in terms {
        let options = parse(&format!("lease-term={text}")).unwrap();
        assert_eq!(options.lease_term, Some(term));
        assert_eq!(parse(&options.to_list()), Ok(options));
    }
    let narrow = parse("deep-leases=off").unwrap();
    assert_eq!(narrow.widest_lease, Scope::Node);
    assert_eq!(parse(&narrow.to_list()), Ok(narrow));
    assert!(parse("deep-leases=no").unwrap_err().contains("on or off"));
    let asking = parse("locks=server").unwrap();
    assert_eq!(asking.locks, Locks::AtServer);
    assert_eq!(parse(&asking.to_list()), Ok(asking));
    assert!(parse("locks=none").unwrap_err().contains("delegated or server"));
    assert_eq!(parse("hard").unwrap().lease_term, None);
    assert!(parse("lease-term=long").unwrap_err().contains("`lease-term=long`"));
}

#[test]
fn cores_read_back() {
    for name in ["follow", "free"] {
        let options = parse(&format!("cores={name}")).unwrap();
        assert_eq!(options.to_list().contains("cores="), name == "follow");
        assert_eq!(parse(&options.to_list()), Ok(options));
    }
    assert!(parse("cores=two").unwrap_err().contains("free, follow"));
}

#[test]
fn transports_read_back() {
    for name in ["dev", "uring"] {
        let options = parse(&format!("transport={name}")).unwrap();
        assert!(options.to_list().contains(&format!("transport={name}")));
        assert_eq!(parse(&options.to_list()), Ok(options));
    }
    assert_eq!(parse("transport=auto"), Ok(MountOptions::default()));
    assert!(parse("transport=tcp").unwrap_err().contains("auto, dev, uring"));
}

#[test]
fn a_local_fsync_reads_back_and_needs_a_log() {
    let options = parse("cache-dir=/c,fsync=local").unwrap();
    assert_eq!((options.check(), options.fsync), (Ok(()), Fsync::Local));
    assert_eq!(parse(&options.to_list()), Ok(options));
    for list in
        ["fsync=local", "sync,cache-dir=/c,fsync=local", "consistency=verify,cache-dir=/c,fsync=local"]
    {
        let refused = parse(list).unwrap().check().unwrap_err();
        assert!(refused.contains("add cache-dir=DIR, and leave out write=through"), "{refused}");
    }
    assert_eq!(parse("fsync=server").unwrap().fsync, Fsync::Server);
    assert!(parse("fsync=never").unwrap_err().contains("server or local"));
}

#[test]
fn bounds_of_delayed_writes_read_back_and_need_them() {
    assert_eq!(parse("write=behind,sync").unwrap().write_policy(), WritePolicy::Through);
    assert!(parse("sync,dirty-age=1s").unwrap().check().is_err());
    let options = parse("dirty-age=1500ms,dirty-size=8M").unwrap();
    assert_eq!(options.check(), Ok(()));
    let WritePolicy::Behind(behind) = options.write_policy() else { panic!("{options:?}") };
    assert_eq!((behind.max_age, behind.max_bytes), (Duration::from_millis(1500), 8 << 20));
    assert_eq!(parse(&options.to_list()), Ok(options));
    for list in
        ["write=through,dirty-age=1s", "write=through,dirty-size=1M", "consistency=ttl=1,dirty-age=5s"]
    {
        assert!(parse(list).unwrap().check().unwrap_err().contains("leave out write=through"), "{list}");
    }
    assert!(parse("write=later").unwrap_err().contains("`write=later`"));
    assert!(parse("dirty-age=soon").unwrap_err().contains("`dirty-age=soon`"));
    assert!(parse("dirty-size").unwrap_err().contains("dirty-size"));
}

#[test]
fn what_is_in_effect_says_the_defaults_of_delayed_writes() {
    let list = |given: &str| parse(given).unwrap().in_effect().to_list();
    assert_eq!(list("write=through"), "hard,write=through");
    let defaults = WriteBehind::default();
    let bounds = format!("dirty-age={}s,dirty-size={}", defaults.max_age.as_secs(), defaults.max_bytes);
    assert_eq!(list(""), format!("hard,write=behind,{bounds}"));
    assert!(list("consistency=verify").ends_with("write=through"), "nothing is delayed");
}

#[test]
fn a_name_may_have_a_comma() {
    let options = parse("ro,cache-dir=/var/a\\,b").unwrap();
    assert_eq!(options.cache_dir, Some(PathBuf::from("/var/a,b")));
    assert_eq!(parse(&options.to_list()).unwrap(), options);
}

#[test]
fn hard_and_soft_contradict_each_other() {
    for list in ["hard,soft", "soft=5s,ro,hard"] {
        let refused = parse(list).unwrap_err();
        assert!(refused.contains("`hard` and `soft`"), "{refused}");
    }
    let mut options = parse("hard").unwrap();
    assert!(options.add("soft").is_err(), "two lists are as one");
    assert_eq!(parse("hard,hard").unwrap().retry(), Retry::Hard);
}

#[test]
fn a_cache_is_named_by_an_absolute_path() {
    for list in ["cache-dir=cache", "cache-dir=./cache", "cache-dir="] {
        let refused = parse(list).unwrap_err();
        assert!(refused.contains("cache-dir=") && refused.contains("absolute"), "{refused}");
    }
}

#[test]
fn the_last_word_on_a_flag_counts() {
    let links = parse("nosymfollow").unwrap();
    assert!(links.flags.no_symfollow && links.to_list().contains("nosymfollow"));
    assert_eq!(parse("nosymfollow,symfollow"), Ok(MountOptions::default()));
    let flags = parse("nosuid,nodev,noexec,suid,exec").unwrap().flags;
    assert_eq!((flags.no_suid, flags.no_dev, flags.no_exec), (false, true, false));
}

#[test]
fn a_bound_of_a_cache_that_is_not_there_is_refused() {
    assert!(parse("cache-size=1G").unwrap().check().unwrap_err().contains("cache-dir"));
    assert_eq!(parse("cache-size=1G,cache-dir=/c").unwrap().check(), Ok(()));
    assert_eq!(parse("").unwrap().check(), Ok(()));
}

#[test]
fn all_options_are_told_to_people() {
    use crate::args::MOUNT_OPTIONS_HELP;
    let mut command = <crate::args::Cli as clap::CommandFactory>::command();
    let help = command.find_subcommand_mut("mount").unwrap().render_long_help().to_string();
    let explained = MOUNT_OPTIONS_HELP.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
    let explained: Vec<&str> = explained
        .flat_map(|(names, _)| names.split(", "))
        .filter_map(|name| name.split(['=', '[', ' ']).next())
        .collect();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(MOUNT_OPTIONS), "{help}");
    // That docs/OPTIONS.md has them all, `cargo xtask check` says.
    for option in MOUNT_OPTIONS.split(", ") {
        let name = option.split(['=', '[']).next().unwrap();
        assert!(explained.contains(&name), "the help does not say what {name} means");
        let unknown = |error: &String| error.contains("is not known");
        assert!(!parse(name).as_ref().is_err_and(unknown), "{name} is not known");
    }
}

#[test]
fn what_fstab_says_to_others_is_ignored() {
    assert_eq!(parse("rw,noauto,user,_netdev,x-systemd.automount,defaults"), Ok(MountOptions::default()));
}

#[test]
fn an_unknown_option_is_named() {
    assert!(parse("rw,sofft").unwrap_err().contains("sofft"));
    assert!(parse("cache-dir").unwrap_err().contains("cache-dir"));
    assert!(parse("relatime").unwrap_err().contains("noatime"));
    let refused = parse("dirsync").unwrap_err();
    assert!(refused.contains("`dirsync`") && refused.contains("`sync`"), "{refused}");
    for option in ["memory=1", "memory=1023K", "metadata-memory=0"] {
        let refused = parse(option).unwrap_err();
        assert!(refused.contains(option) && refused.contains("at least 1M"), "{refused}");
    }
    assert_eq!(parse("memory=1M").unwrap().memory, Some(1 << 20));
    assert!(parse("soft=soon").unwrap_err().contains("`soft=soon`"));
    assert!(parse("atime").unwrap_err().contains("atime"));
    assert!(parse("consistency=maybe").unwrap_err().contains("maybe"));
}

#[test]
fn policies_of_delayed_writes_read_back() {
    let options = parse("write=behind,digest-size=8M,reserve-idle=5s,lease-idle=2m").unwrap();
    let WritePolicy::Behind(behind) = options.write_policy() else { panic!("not delayed") };
    assert_eq!((behind.digest_bytes, behind.reserve_idle), (8 << 20, Duration::from_secs(5)));
    assert_eq!(options.lease_idle, Some(Duration::from_secs(120)));
    assert_eq!(parse(&options.to_list()).unwrap(), options);
    for (list, mib) in
        [("", 4), ("dirty-size=8M", 2), ("dirty-size=1M", 1), ("dirty-size=8M,digest-size=8M", 8)]
    {
        let WritePolicy::Behind(behind) = parse(list).unwrap().write_policy() else { panic!("{list}") };
        assert_eq!(behind.digest_bytes, mib << 20, "{list}");
    }
    assert!(parse("digest-size=65M").unwrap_err().contains("from 1 to 64M"));
    assert!(parse("lease-poll=0s").unwrap_err().contains("at least 100us"));
    assert!(parse("dirty-size=0").unwrap_err().contains("write=through"));
    let polls = parse("lease-poll=5ms").unwrap();
    assert_eq!((polls.lease_poll, parse(&polls.to_list()).unwrap()), (Some(Duration::from_millis(5)), polls));
    for option in ["sync,digest-size=1M", "sync,reserve-idle=1s"] {
        assert!(parse(option).unwrap().check().unwrap_err().contains("leave out write=through"), "{option}");
    }
}
