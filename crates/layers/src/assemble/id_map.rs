//! Which ids on disk appear as which ids of the sandbox's range.
//!
//! System trees map all 65,536 ids in order. A user's directory swaps its owner with the id the sandbox's user has
//! inside, so that the step owns the files and ids stay one to one: what belongs to others keeps its number, can be
//! looked at and removed like anything else, and is never unmapped (an unmapped owner makes even `unlink` fail).
//! Writes never reach these files: only the upper is written, and the upper is mapped in order.

use branchbox_model::IdRange;
use branchbox_sys::id_map::{MapEntry, id_map_namespace};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Owner on disk and the owner it appears as, each a pair of uid and gid.
type OwnerPair = ((u32, u32), (u32, u32));

/// Id-map namespaces by the owners they show; each is made once per assembly.
pub(super) struct IdMaps {
    range: IdRange,
    made: HashMap<OwnerPair, OwnedFd>,
}

impl IdMaps {
    pub(super) fn new(range: IdRange) -> Self {
        Self { range, made: HashMap::new() }
    }

    /// The range that is shown.
    pub(super) fn range(&self) -> IdRange {
        self.range
    }

    /// The namespace that shows `outside` as `inside`.
    pub(super) fn get(&mut self, outside: (u32, u32), inside: (u32, u32)) -> io::Result<BorrowedFd<'_>> {
        let key = (outside, inside);
        if !self.made.contains_key(&key) {
            let uids = map_entries(self.range, outside.0, inside.0);
            let gids = map_entries(self.range, outside.1, inside.1);
            self.made.insert(key, id_map_namespace(&uids, &gids)?);
        }
        Ok(self.made[&key].as_fd())
    }
}

/// The map that shows `outside` as `inside`, `inside` as `outside` where that is in the range, and the rest in order.
fn map_entries(range: IdRange, outside: u32, inside: u32) -> Vec<MapEntry> {
    let mut special = vec![(outside, inside)];
    if outside != inside && outside < IdRange::LENGTH {
        special.push((inside, outside));
    }
    let mut cuts: Vec<u32> = vec![outside, inside];
    cuts.retain(|id| *id < IdRange::LENGTH);
    cuts.sort_unstable();
    cuts.dedup();
    let mut entries: Vec<MapEntry> = special
        .into_iter()
        .map(|(disk, shown)| MapEntry { inside: disk, outside: range.base + shown, length: 1 })
        .collect();
    let mut next = 0;
    for cut in cuts.into_iter().chain([IdRange::LENGTH]) {
        if cut > next {
            entries.push(MapEntry { inside: next, outside: range.base + next, length: cut - next });
        }
        next = cut + 1;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(entries: &[MapEntry], disk: u32) -> Option<u32> {
        entries.iter().find(|e| disk >= e.inside && disk - e.inside < e.length).map(|e| e.outside + (disk - e.inside))
    }

    #[test]
    fn maps_are_one_to_one_and_show_the_owner_inside() {
        let range = IdRange { base: 131_072 };
        for (outside, inside) in [(0, 0), (0, 1000), (1000, 1000), (1001, 1000), (70_000, 1000), (65_535, 0)] {
            let entries = map_entries(range, outside, inside);
            assert_eq!(shown(&entries, outside), Some(range.base + inside), "{outside} {inside}");
            let all: Vec<u32> = (0..65_536).chain([outside]).filter_map(|id| shown(&entries, id)).collect();
            let unique: std::collections::HashSet<u32> = (0..65_536)
                .chain([outside])
                .collect::<std::collections::HashSet<_>>()
                .into_iter()
                .filter_map(|id| shown(&entries, id))
                .collect();
            assert!(all.iter().all(|id| (range.base..range.base + 65_536).contains(id)));
            assert_eq!(unique.len(), 65_536, "{outside} {inside}");
        }
    }
}
