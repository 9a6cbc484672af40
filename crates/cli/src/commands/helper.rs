//! Called by mount(8): as `/sbin/mount.fuse.soda SPEC DIR [-sfnv] [-N NS] [-o OPTIONS] [-t TYPE]`, or by mount.fuse3 as
//! `soda SPEC DIR -o OPTIONS`. Both become `soda mount`. And by umount(8), as `/sbin/umount.fuse.soda DIR [-flnrv] [-N NS]
//! [-t TYPE]`: that becomes `soda umount`, which waits until delayed writes are told.

use crate::error::CliError;
use crate::spec::Spec;
use std::ffi::OsString;
use std::path::Path;

pub(crate) fn rewrite(arguments: Vec<OsString>) -> Result<Vec<OsString>, CliError> {
    let program = arguments.first().and_then(|path| Path::new(path).file_name()).unwrap_or_default();
    let is_helper = matches!(program.to_str(), Some("mount.fuse.soda" | "mount.soda"));
    let is_spec = |word: &OsString| {
        word.to_str().is_some_and(|text| text.contains(':') && text.parse::<Spec>().is_ok())
    };
    if matches!(program.to_str(), Some("umount.fuse.soda" | "umount.soda")) {
        return Ok(from_umount(&arguments[1..]));
    }
    match is_helper || arguments.get(1).is_some_and(is_spec) {
        true => from_mount(&arguments[1..]),
        false => Ok(arguments),
    }
}

fn from_mount(words: &[OsString]) -> Result<Vec<OsString>, CliError> {
    let mut rewritten: Vec<OsString> = vec!["soda".into(), "mount".into()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let missing = || CliError::Usage(format!("{} needs a value", word.display()));
        match word.to_str() {
            Some("-o") => rewritten.extend(["-o".into(), words.next().ok_or_else(missing)?.clone()]),
            // The name space and the type: mount(8) has dealt with them.
            Some("-N" | "-t") => drop(words.next().ok_or_else(missing)?),
            Some(flags) if is_flags(flags) => {}
            _ => rewritten.push(word.clone()),
        }
    }
    Ok(rewritten)
}

fn from_umount(words: &[OsString]) -> Vec<OsString> {
    let mut rewritten: Vec<OsString> = vec!["soda".into(), "umount".into()];
    let (mut lazy, mut force) = (false, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-N" | "-t") => drop(words.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                lazy |= flags.contains('l');
                force |= flags.contains('f');
            }
            _ => rewritten.push(word.clone()),
        }
    }
    // Both: as umount(8), whose force is for what the lazy one does anyway.
    match (lazy, force) {
        (true, _) => rewritten.push("--lazy".into()),
        (false, true) => rewritten.push("--force".into()),
        (false, false) => {}
    }
    rewritten
}

/// Sloppy, fake, no-mtab, verbose: nothing that changes what is done here.
fn is_flags(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|flags| !flags.is_empty() && flags.bytes().all(|flag| b"sfnvrw".contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let words = rewrite(line.split(' ').map(OsString::from).collect()).unwrap();
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_mount_calls_becomes_a_mount() {
        assert_eq!(
            rewritten("/sbin/mount.fuse.soda h:1/main /m -s -v -o rw,noauto -t fuse.soda"),
            "soda mount h:1/main /m -o rw,noauto"
        );
        assert_eq!(rewritten("/usr/bin/soda h:1/main /m -o dev,suid"), "soda mount h:1/main /m -o dev,suid");
        assert_eq!(rewritten("soda status --json"), "soda status --json");
    }

    #[test]
    fn what_umount_calls_becomes_an_unmount() {
        let called = |more: &str| rewritten(&format!("/sbin/umount.fuse.soda /m{more}"));
        assert_eq!(called(" -t fuse.soda"), "soda umount /m");
        assert_eq!(called(" -v -N 7 -t fuse.soda"), "soda umount /m");
        assert_eq!(
            (called(" -l"), called(" -f")),
            ("soda umount /m --lazy".into(), "soda umount /m --force".into())
        );
        assert_eq!(called(" -fln"), "soda umount /m --lazy");
    }
}
