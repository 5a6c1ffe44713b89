//! Takes an input apart: a few bytes that say how, then what it is about. Whatever the bytes are, they mean something.

/// What is left of an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// The next two bytes as a number.
    pub(crate) fn number(&mut self) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    /// One of `all`, by the next byte.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    /// As many bytes as the next byte says, or what is left.
    pub(crate) fn short(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.bytes(length)
    }

    /// So many bytes, or what is left.
    pub(crate) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// `bytes` in pieces that end at these distances from one another; the last one is the rest.
pub(crate) fn pieces<'b>(mut bytes: &'b [u8], distances: &[u8]) -> Vec<&'b [u8]> {
    let mut all = Vec::new();
    for &distance in distances {
        // Far apart now and then: heads are longer than 256 bytes.
        let distance = if distance < 0xc0 { usize::from(distance) } else { usize::from(distance - 0xbf) * 64 };
        let (piece, rest) = bytes.split_at(distance.min(bytes.len()));
        if !piece.is_empty() {
            all.push(piece);
        }
        bytes = rest;
    }
    if !bytes.is_empty() {
        all.push(bytes);
    }
    all
}
