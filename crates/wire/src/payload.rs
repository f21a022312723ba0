//! A text made of pieces of other texts, written out without copying the large ones.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Texts up to this many bytes are joined into one piece: one small copy is cheaper than one more write.
const JOIN_BELOW: usize = 32 * 1024;

/// An ordered list of byte pieces that together are one text.
#[derive(Debug, Clone, Default)]
pub struct Payload(SmallVec<[Bytes; 4]>);

impl Payload {
    /// Joins `pieces` if they are small together, else keeps them as they are.
    pub fn from_pieces(pieces: SmallVec<[Bytes; 4]>) -> Self {
        let mut payload = Self(pieces);
        if payload.0.len() > 1 && payload.len() <= JOIN_BELOW {
            payload = Self::from(payload.into_bytes());
        }
        payload
    }

    /// How many bytes all pieces have.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.0
    }

    /// All bytes in one piece; copies only if there are several.
    pub fn into_bytes(mut self) -> Bytes {
        match self.0.len() {
            0 => Bytes::new(),
            1 => self.0.swap_remove(0),
            _ => {
                let mut joined = BytesMut::with_capacity(self.len());
                self.0.iter().for_each(|piece| joined.extend_from_slice(piece));
                joined.freeze()
            }
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(SmallVec::from_iter([bytes]))
    }
}

impl IntoIterator for Payload {
    type Item = Bytes;
    type IntoIter = smallvec::IntoIter<[Bytes; 4]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
