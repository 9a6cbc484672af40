//! Places of the medium that more than one part of the volume has data in.
//!
//! A chunk is written for one place in one file, and only ever moves out of use. If two places have it (or chunks that
//! overlap), one of them is wrong, and whichever gives it up first punches a hole into the other.

use super::Problem;
use super::census::{Census, ExtentSummary};
use soda_storage::ChunkRef;
use soda_types::Ino;

/// An extent that refers to a chunk.
struct Use<'a> {
    chunk: ChunkRef,
    /// The stream, and where in it the whole chunk belongs.
    home: (u64, Option<u64>),
    owner: Option<Ino>,
    extent: &'a ExtentSummary,
}

pub(super) fn problems(census: &Census, problems: &mut Vec<Problem>) {
    let owners = census.owners();
    let mut uses: Vec<Use<'_>> = Vec::new();
    for (stream, extents) in &census.streams {
        let owner = owners.get(stream).copied();
        uses.extend(extents.extents.iter().filter_map(|extent| {
            let used = extent.chunk.as_ref().filter(|used| used.bad.is_none())?;
            let home = (*stream, extent.range.start.checked_sub(u64::from(used.skip)));
            Some(Use { chunk: used.chunk, home, owner, extent })
        }));
    }
    uses.sort_by_key(|used| (used.chunk, used.home));
    let mut rest = &uses[..];
    while let Some(first) = rest.first() {
        let mut end = 0;
        let touches = |used: &&Use<'_>| {
            let known = used.chunk.segment == first.chunk.segment && (end == 0 || used.chunk.offset < end);
            end = end.max(used.chunk.span().end);
            known
        };
        let (group, others) = rest.split_at(rest.iter().take_while(touches).count());
        report(group, problems);
        rest = others;
    }
}

/// Reports the uses of a place beside the first one.
fn report(group: &[Use<'_>], problems: &mut Vec<Problem>) {
    // One that is being deleted cannot be given anything else.
    let Some(keeper) = group.iter().find(|used| used.owner.is_none()).or(group.first()) else {
        return;
    };
    let others = group.iter().filter(|used| (used.chunk, used.home) != (keeper.chunk, keeper.home));
    problems.extend(others.filter_map(|used| {
        let (ino, range) = (used.owner?, used.extent.range.clone());
        Some(Problem::SharedData { ino, stream: used.home.0, range, chunk: used.chunk, other: keeper.owner })
    }));
}
