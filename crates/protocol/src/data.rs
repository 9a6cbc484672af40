//! File data in pieces, as it was written: to have it in one piece each byte would have to be copied.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Range;

/// Bytes, equal to others if the bytes are, whatever pieces they are in. Serialized they are in one.
#[derive(Clone)]
pub struct Data(Pieces);

#[derive(Clone)]
enum Pieces {
    /// Perhaps empty.
    One(Bytes),
    /// None of them empty.
    Several(Vec<Bytes>),
}

impl Data {
    pub const fn new() -> Data {
        Data(Pieces::One(Bytes::new()))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces().iter().all(Bytes::is_empty)
    }

    /// In their order.
    pub fn pieces(&self) -> &[Bytes] {
        match &self.0 {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Several(pieces) => pieces,
        }
    }

    /// The same in one piece: copied, if there are several.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Pieces::One(piece) => piece.clone(),
            Pieces::Several(pieces) => pieces.concat().into(),
        }
    }

    /// # Panics
    /// If the range ends beyond the data.
    pub fn slice(&self, range: Range<usize>) -> Data {
        assert!(range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let mut sliced = Data::new();
        let mut start = 0;
        for piece in self.pieces() {
            let end = start + piece.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                sliced.push(piece.slice(from - start..to - start));
            }
            start = end;
        }
        sliced
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        match &mut self.0 {
            Pieces::One(one) if one.is_empty() => *one = piece,
            Pieces::One(one) => self.0 = Pieces::Several(vec![std::mem::take(one), piece]),
            Pieces::Several(pieces) => pieces.push(piece),
        }
    }

    /// Appends what the other has.
    pub fn append(&mut self, other: Data) {
        match other.0 {
            Pieces::One(piece) => self.push(piece),
            Pieces::Several(pieces) => pieces.into_iter().for_each(|piece| self.push(piece)),
        }
    }

    /// Takes bytes away at the front.
    ///
    /// # Panics
    /// If there are less.
    pub fn advance(&mut self, mut count: usize) {
        match &mut self.0 {
            Pieces::One(piece) => drop(piece.split_to(count)),
            Pieces::Several(pieces) => {
                let mut gone = 0;
                while let Some(piece) = pieces.get(gone)
                    && piece.len() <= count
                {
                    count -= piece.len();
                    gone += 1;
                }
                pieces.drain(..gone);
                match pieces.first_mut() {
                    Some(piece) => drop(piece.split_to(count)),
                    None => assert_eq!(count, 0, "more than there is"),
                }
            }
        }
    }
}

impl Default for Data {
    fn default() -> Data {
        Data::new()
    }
}

impl From<Bytes> for Data {
    fn from(piece: Bytes) -> Data {
        Data(Pieces::One(piece))
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Data {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Data {
    fn from(bytes: &'static [u8]) -> Data {
        Bytes::from_static(bytes).into()
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Data) -> bool {
        self.len() == other.len() && self.to_bytes() == other.to_bytes()
    }
}

impl Eq for Data {}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_bytes(), f)
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        Bytes::deserialize(deserializer).map(Data::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(pieces: &[&'static str]) -> Data {
        let mut data = Data::new();
        pieces.iter().for_each(|piece| data.push(Bytes::from_static(piece.as_bytes())));
        data
    }

    #[test]
    fn the_pieces_do_not_matter() {
        let (one, other) = (in_pieces(&["in", "", " pieces"]), in_pieces(&["in pieces"]));
        assert_eq!(one, other);
        assert_eq!((one.len(), one.pieces().len(), other.pieces().len()), (9, 2, 1));
        assert_ne!(one, in_pieces(&["in", " piece", "z"]));
        assert_eq!(
            postcard::to_stdvec(&one).unwrap(),
            postcard::to_stdvec(&Bytes::from("in pieces")).unwrap()
        );
        assert_eq!(postcard::from_bytes::<Data>(&postcard::to_stdvec(&one).unwrap()).unwrap(), other);
    }

    #[test]
    fn a_part_is_what_the_whole_has_there() {
        let (data, whole) = (in_pieces(&["abc", "d", "efgh", "ij"]), b"abcdefghij");
        for start in 0..=whole.len() {
            for end in start..=whole.len() {
                let part = data.slice(start..end);
                assert_eq!(part.to_bytes(), &whole[start..end]);
                assert!(part.pieces().len() == 1 || part.pieces().iter().all(|piece| !piece.is_empty()));
            }
            let mut rest = data.clone();
            rest.advance(start);
            assert_eq!(rest.to_bytes(), &whole[start..]);
            rest.append(data.slice(0..start));
            assert_eq!(rest.len(), whole.len());
        }
    }
}
