//! How far a kept log has been applied: kept beside it, so that what failed can be applied later.

use soda_types::{Fid, Ino, Version};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// In the log's directory: a line for each inode, of `volume inode generation inode-now generation-now version`.
const NAME: &str = "reached";

/// What an inode of the log has become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reached {
    /// Its number now: another one if the log made it.
    pub(super) now: Fid,
    /// The version that we have brought it to.
    pub(super) version: Version,
}

/// What is not there, or is no such line, is left out: then what was changed counts as changed by somebody else.
pub(super) fn read(dir: &Path) -> HashMap<Fid, Reached> {
    let text = fs::read_to_string(dir.join(NAME)).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

pub(super) fn write(dir: &Path, reached: &HashMap<Fid, Reached>) -> io::Result<()> {
    let new = dir.join(format!("{NAME}.new"));
    let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    let mut text = String::new();
    for (fid, Reached { now, version }) in reached {
        let (volume, ino, generation) = (fid.volume.0, fid.ino.0, fid.generation);
        let line = format!("{volume} {ino} {generation} {} {} {}\n", now.ino.0, now.generation, version.0);
        text.push_str(&line);
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, dir.join(NAME))
}

fn parse(line: &str) -> Option<(Fid, Reached)> {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [volume, ino, generation, ino_now, generation_now, version] = numbers[..] else { return None };
    let of = |ino, generation: u64| {
        let volume = soda_types::VolumeId(volume.try_into().ok()?);
        Some(Fid { volume, ino: Ino(ino), generation: generation.try_into().ok()? })
    };
    let now = of(ino_now, generation_now)?;
    Some((of(ino, generation)?, Reached { now, version: Version(version) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::VolumeId;

    #[test]
    fn what_was_reached_is_read_back_and_garbage_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).is_empty());
        let fid = |ino| Fid { volume: VolumeId(1), ino: Ino(ino), generation: 3 };
        let reached = HashMap::from([
            (fid(5), Reached { now: fid(900), version: Version(7) }),
            (fid(6), Reached { now: fid(6), version: Version(u64::MAX) }),
        ]);
        write(dir.path(), &reached).unwrap();
        assert_eq!(read(dir.path()), reached);
        let mut text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        text.push_str("1 2 3\nx\n1 2 99999999999 4 5 6\n");
        fs::write(dir.path().join(NAME), text).unwrap();
        assert_eq!(read(dir.path()), reached);
    }
}
