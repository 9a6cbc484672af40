//! Keys in the order of their last use: a doubly linked list in a slab, every step O(1).

#[derive(Debug)]
pub(crate) struct Lru<K> {
    nodes: Vec<Node<K>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    len: usize,
}

#[derive(Debug)]
struct Node<K> {
    key: Option<K>,
    newer: u32,
    older: u32,
}

/// Where a key is in the list. Belongs to the one entry that is in the list there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LruPlace(u32);

const NIL: u32 = u32::MAX;

impl<K> Default for Lru<K> {
    fn default() -> Lru<K> {
        Lru { nodes: Vec::new(), free: Vec::new(), newest: NIL, oldest: NIL, len: 0 }
    }
}

impl<K> Lru<K> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, key: K) -> LruPlace {
        let node = Node { key: Some(key), newer: NIL, older: NIL };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).unwrap_or(NIL)
            }
        };
        self.link(at);
        self.len += 1;
        LruPlace(at)
    }

    pub(crate) fn touch(&mut self, place: &LruPlace) {
        if self.newest != place.0 {
            self.unlink(place.0);
            self.link(place.0);
        }
    }

    pub(crate) fn remove(&mut self, place: LruPlace) -> Option<K> {
        self.unlink(place.0);
        self.free.push(place.0);
        self.len -= 1;
        self.nodes[place.0 as usize].key.take()
    }

    pub(crate) fn oldest(&self) -> Option<&K> {
        self.nodes.get(self.oldest as usize)?.key.as_ref()
    }

    fn link(&mut self, at: u32) {
        let older = self.newest;
        let node = &mut self.nodes[at as usize];
        node.older = older;
        node.newer = NIL;
        match self.nodes.get_mut(older as usize) {
            Some(previous) => previous.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.nodes[at as usize].newer, self.nodes[at as usize].older);
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_the_one_not_used_for_longest() {
        let mut lru = Lru::default();
        let (a, b, c) = (lru.insert('a'), lru.insert('b'), lru.insert('c'));
        assert_eq!(lru.oldest(), Some(&'a'));
        lru.touch(&a);
        assert_eq!(lru.oldest(), Some(&'b'));
        assert_eq!(lru.remove(b), Some('b'));
        assert_eq!(lru.oldest(), Some(&'c'));
        let d = lru.insert('d');
        lru.touch(&c);
        assert_eq!(lru.oldest(), Some(&'a'));
        for place in [a, c, d] {
            lru.remove(place);
        }
        assert_eq!((lru.oldest(), lru.len()), (None, 0));
    }
}
