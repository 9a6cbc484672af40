//! Calls that change nothing.

use super::conclusion::{Conclusion, Effects, Stop};
use super::directory;
use super::node::node;
use super::plan::{Found, Planned};
use crate::link::Incoming;
use crate::metrics::CallKind;
use crate::shared::Shared;
use bytes::Bytes;
use soda_lease::table::{OpKey, Outcome};
use soda_protocol::{Answer, Call, Failure, Layout, MAX_IO, MAX_LAYOUT, Node, Whence};
use soda_types::{Attr, Errno, Fid, FileKind, FsError, FsResult, Version, XATTRS_MAX};
use soda_volume::{SeekTarget, Volume};

/// Carries out an admitted call. `keys` grows if further objects were admitted on the way.
pub(super) fn run(
    shared: &Shared,
    incoming: &Incoming,
    found: Found,
    keys: &mut Vec<OpKey>,
) -> Result<Conclusion, Stop> {
    let volume = &*shared.volume;
    let mut payload = Bytes::new();
    let mut effects = Effects::default();
    let answer = match &incoming.request.call {
        Call::Lookup { parent, name } | Call::LookupStat { parent, name } => {
            if volume.resolve(*parent, name)?.map(|(fid, _)| fid) != found.inode {
                return Err(Stop::PlanAnew);
            }
            let found_parent = volume.getattr(*parent)?;
            match found.inode {
                Some(fid)
                    if found.inode_is == Planned::Named
                        && directory::admit_idle(shared, incoming, *parent, [fid].into_iter(), keys) == 0 =>
                {
                    let kind = volume.getattr(fid)?.kind;
                    Answer::Named { parent: found_parent, fid, kind }
                }
                inode => {
                    let node = inode.map(|fid| node(volume, fid)).transpose()?;
                    Answer::Found { parent: found_parent, node }
                }
            }
        }
        Call::GetAttr { fid } | Call::Stat { fid } => Answer::Node(node(volume, *fid)?),
        Call::Fetch { fid, most, known, .. } => {
            let node = node(volume, *fid)?;
            match small_file(volume, &node, *most, *known) {
                Some(data) => {
                    payload = data;
                    shared.metrics.bytes_read.add(payload.len() as u64);
                    Answer::Fetched(node)
                }
                None => Answer::Node(node),
            }
        }
        Call::ReadLink { fid } => Answer::Target(volume.readlink(*fid)?.to_vec()),
        Call::ReadDir { dir, after, limit, next } => {
            let page = directory::page(shared, incoming, *dir, after.as_ref(), *limit, keys)?;
            Answer::Entries(page, directory::next_pages(shared, incoming, next, keys))
        }
        Call::GetXattrs { fid } => Answer::Xattrs(xattrs(volume, *fid)?),
        Call::GetXattr { fid, name } => Answer::Xattr(volume.get_xattr(*fid, name)?.to_vec()),
        Call::Read { fid, offset, len } => {
            payload = volume.read(*fid, *offset, (*len).min(MAX_IO) as usize)?;
            shared.metrics.bytes_read.add(payload.len() as u64);
            Answer::Data { attr: volume.getattr(*fid)? }
        }
        Call::Seek { fid, offset, whence } => {
            let target = match whence {
                Whence::Data => SeekTarget::Data,
                Whence::Hole => SeekTarget::Hole,
            };
            Answer::Offset(volume.seek(*fid, *offset, target)?)
        }
        Call::Layout { fid, offset, most } => {
            let found = volume.layout(*fid, *offset, (*most).min(MAX_LAYOUT) as usize)?;
            Answer::Layout(Layout { data: found.data, until: found.until, size: found.size })
        }
        Call::Opened { fid } => {
            // An orphan that nobody else has open may be on its way out, but then its deletion waits for this.
            volume.getattr(*fid)?;
            effects.opened = Some(*fid);
            Answer::Done
        }
        other => {
            let name = CallKind::from(other).name();
            return Ok(Conclusion::failed(Failure::Unsupported(name.to_owned())));
        }
    };
    Ok(Conclusion { payload, effects, ..Conclusion::of(Ok(answer), Outcome::Applied) })
}

/// All that is in a file, if that is wanted. That it is damaged hears who reads it.
fn small_file(volume: &Volume, node: &Node, most: u32, known: Option<Version>) -> Option<Bytes> {
    let Attr { kind, size, data_version, .. } = node.attr;
    let wanted = kind == FileKind::File && known != Some(data_version);
    let size = u32::try_from(size).ok().filter(|size| wanted && (1..=most.min(MAX_IO)).contains(size))?;
    volume.read(node.fid, 0, size as usize).ok()
}

fn xattrs(volume: &Volume, fid: Fid) -> FsResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut size = 0;
    let mut all = Vec::new();
    for name in volume.list_xattrs(fid)? {
        let value = volume.get_xattr(fid, &name)?;
        size += name.len() + value.len();
        if size > XATTRS_MAX {
            return Err(FsError::new(Errno::TooBig, "more extended attributes than fit one answer"));
        }
        all.push((name.to_vec(), value.to_vec()));
    }
    Ok(all)
}
