//! Numbered places for values, in chunks: growing never copies what is there, so a table of a million leases has no
//! moment at which it needs the memory twice, nor one request that pays for the move.

const CHUNK: usize = 1024;

#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Place<T>>>,
    /// First free place; each one names the next.
    free: Option<u32>,
    len: usize,
}

#[derive(Debug)]
enum Place<T> {
    Used(T),
    Free(Option<u32>),
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), free: None, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if let Some(id) = self.free {
            let place = &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK];
            if let Place::Free(next) = place {
                self.free = *next;
            }
            *place = Place::Used(value);
            return id;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(Place::Used(value));
        (last * CHUNK + self.chunks[last].len() - 1) as u32
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let place = self.chunks.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)?;
        if matches!(place, Place::Free(_)) {
            return None;
        }
        self.len -= 1;
        let Place::Used(value) = std::mem::replace(place, Place::Free(self.free)) else {
            return None;
        };
        self.free = Some(id);
        Some(value)
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        match self.chunks.get(id as usize / CHUNK)?.get(id as usize % CHUNK)? {
            Place::Used(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        match self.chunks.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)? {
            Place::Used(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    /// In the order of the places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|place| match place {
            Place::Used(value) => Some(value),
            Place::Free(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::new();
        let ids: Vec<u32> = (0..3000).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.len(), 3000);
        assert_eq!(slab.get(ids[2048]), Some(&2048));
        assert_eq!(slab.remove(ids[5]), Some(5));
        assert_eq!(slab.remove(ids[5]), None);
        assert_eq!(slab.get(ids[5]), None);
        assert_eq!(slab.insert(9), ids[5]);
        assert_eq!(slab.iter().count(), 3000);
    }

    #[test]
    fn a_free_mark_costs_nothing() {
        assert_eq!(size_of::<Place<super::super::store::Lease>>(), size_of::<super::super::store::Lease>());
        assert_eq!(size_of::<super::super::store::Lease>(), 48);
    }
}
