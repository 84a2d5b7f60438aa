//! Finds the colours of a rectangle, up to a maximum, and packs palette indices. Few colours are cheap to encode.

/// Slots of the hash table: four times the largest number of colours.
const SLOTS: usize = 1024;

/// The colours of a rectangle, in the order of their first occurrence.
#[derive(Debug)]
pub(super) struct Palette {
    colours: Vec<u32>,
    /// For each slot the index of its colour plus one; 0 if it is free.
    table: Box<[u16; SLOTS]>,
}

impl Default for Palette {
    fn default() -> Self {
        Palette { colours: Vec::with_capacity(256), table: Box::new([0; SLOTS]) }
    }
}

impl Palette {
    /// Finds the colours of `pixels` and each pixel's index among them. Returns `false` if there are more than `max`
    /// (at most 256).
    pub(super) fn index(&mut self, pixels: &[u32], max: usize, indices: &mut Vec<u8>) -> bool {
        self.colours.clear();
        self.table.fill(0);
        indices.clear();
        indices.reserve(pixels.len());
        let mut rest = pixels;
        while let Some((&colour, following)) = rest.split_first() {
            let Some(index) = self.index_of(colour, max) else { return false };
            // Most pixels equal the one before: look up each run once.
            let run = 1 + following.iter().take_while(|next| **next == colour).count();
            indices.resize(indices.len() + run, index);
            rest = &rest[run..];
        }
        true
    }

    /// Returns the index of a colour, and adds it if there is room.
    fn index_of(&mut self, colour: u32, max: usize) -> Option<u8> {
        // Fibonacci hashing: the upper bits of a product with 2^32 divided by the golden ratio.
        let mut slot = (colour.wrapping_mul(0x9e37_79b9) >> 22) as usize;
        loop {
            match usize::from(self.table[slot]) {
                0 if self.colours.len() >= max => return None,
                0 => {
                    self.colours.push(colour);
                    self.table[slot] = self.colours.len() as u16;
                    return Some((self.colours.len() - 1) as u8);
                }
                used if self.colours[used - 1] == colour => return Some((used - 1) as u8),
                _ => slot = (slot + 1) % SLOTS,
            }
        }
    }

    /// Returns the colours that the last call of `index` found.
    pub(super) fn colours(&self) -> &[u32] {
        &self.colours
    }
}

/// Appends rows of indices with `bits` each (1, 2, 4 or 8), from the upper bits down. Each row starts at a new byte.
pub(super) fn pack(indices: &[u8], width: usize, bits: usize, out: &mut Vec<u8>) {
    if bits == 8 {
        return out.extend(indices);
    }
    let in_byte = 8 / bits;
    for row in indices.chunks_exact(width) {
        out.extend(row.chunks(in_byte).map(|group| {
            let byte = group.iter().fold(0, |byte, index| byte << bits | index);
            byte << (bits * (in_byte - group.len()))
        }));
    }
}

/// Returns the index at `column` of a packed row.
pub(super) fn unpack(row: &[u8], column: usize, bits: usize) -> u8 {
    let in_byte = 8 / bits;
    let byte = row[column / in_byte];
    let shift = 8 - bits * (column % in_byte + 1);
    byte >> shift & (0xff >> (8 - bits))
}
