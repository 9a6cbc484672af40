//! Inodes as clients cache them.

use soda_protocol::{Node, XattrSummary};
use soda_types::{Fid, FsResult};
use soda_volume::Volume;

pub(super) fn node(volume: &Volume, fid: Fid) -> FsResult<Node> {
    Ok(Node { fid, attr: volume.getattr(fid)?, xattrs: summary(volume.xattr_count(fid)?) })
}

pub(super) fn summary(xattrs: u32) -> XattrSummary {
    if xattrs == 0 { XattrSummary::None } else { XattrSummary::Some }
}
